//! Counters and times of a server, for Prometheus and for the live page.

mod background;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, prometheus_text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::watch;

use self::background::BackgroundMetrics;
use crate::protocol::{BatchStatistics, ModelStatistics};

/// The media type of [`Metrics::to_text`].
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// The number of a model's latest answers that the quantiles cover.
const RECENT: usize = 1024;

/// The number of latest switches that are kept.
const SWITCHES: usize = 32;

/// Creates a histogram with buckets from 100 µs to 52 s.
fn latency_histogram() -> Histogram {
    Histogram::new(exponential_buckets(100e-6, 2.0, 20))
}

/// The phases of an answered request. Overlapping time is counted once: `wait` is only the time that computing lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// The time from the request's arrival until the scheduler chose it.
    pub queue: Duration,
    /// The time spent copying weights before computing began.
    pub copy: Duration,
    /// The time spent waiting for weights after computing began.
    pub wait: Duration,
    /// The time spent computing.
    pub compute: Duration,
}

impl Phases {
    /// Returns the sum of the phases.
    pub fn total(&self) -> Duration {
        self.queue + self.copy + self.wait + self.compute
    }
}

/// A function that returns the time of one phase.
type PhaseTime = fn(&Phases) -> Duration;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// It was answered.
    Answered,
    /// The request was malformed, unknown or not allowed.
    Refused,
    /// There was no room for the request, or the server or model was not ready.
    Unavailable,
    /// The request's time limit passed.
    TimedOut,
    /// The client went away.
    Cancelled,
    /// The server failed.
    Failed,
}

impl RequestOutcome {
    /// Returns the label in the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

/// The place where a request found its model's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsFound {
    /// On the device.
    Resident,
    /// Elsewhere: they were loaded for the request's batch.
    Switched,
}

impl WeightsFound {
    /// Returns the label in the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Switched => "switched",
        }
    }
}

/// The latency quantiles of a model's last answers, at most 1,024 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// The median: half of the answers took no longer.
    pub median: Duration,
    /// The 99th percentile: 99 of 100 answers took no longer.
    pub p99: Duration,
}

/// A switch: the loading of a model's weights to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The model's name.
    pub model: String,
    /// The time at which its weights were there.
    pub ended: Instant,
    /// The duration of copying them.
    pub took: Duration,
}

/// Converts a time to milliseconds, truncated to a microsecond, so that the number is short in text.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfModel {
    model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    model: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPhase {
    model: String,
    phase: &'static str,
    weights: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTier {
    model: String,
    tier: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfLink {
    from: String,
    to: String,
}

type Gauges<L> = Family<L, Gauge<u64, AtomicU64>>;
type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Counters and latencies of a server. All methods may be called from any thread, at any rate.
///
/// A model's name is a label, and every label is kept: callers must give only names of existing models.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<OfOutcome, Counter>,
    latencies: Histograms<OfModel>,
    phases: Histograms<OfPhase>,
    switches: Family<OfModel, Counter>,
    worker_deaths: Counter,
    pub(crate) background: BackgroundMetrics,
    copied: Family<OfLink, Counter>,
    resident: Gauges<OfTier>,
    queued: Gauges<OfModel>,
    recent: Mutex<HashMap<String, VecDeque<Duration>>>,
    statistics: Mutex<HashMap<String, ModelStatistics>>,
    /// The latest switches, oldest first.
    latest_switches: Mutex<VecDeque<Switch>>,
    /// A signal that the numbers on the live page changed.
    changes: watch::Sender<()>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("tenure");
        let requests = Family::default();
        registry.register("requests", "Inference requests by outcome", requests.clone());
        let latencies = Histograms::new_with_constructor(latency_histogram as fn() -> Histogram);
        let help = "Time from a request's arrival until its answer";
        registry.register_with_unit("request_latency", help, Unit::Seconds, latencies.clone());
        let phases = Histograms::new_with_constructor(latency_histogram as fn() -> Histogram);
        let help = "Time of answered requests by phase (queue, copy, wait for weights, compute) and weights found";
        registry.register_with_unit("request_phase", help, Unit::Seconds, phases.clone());
        let switches = Family::default();
        registry.register("switches", "Loads of a model's weights to a device", switches.clone());
        let worker_deaths = Counter::default();
        registry.register("worker_deaths", "Workers that ended before the server", worker_deaths.clone());
        let background = BackgroundMetrics::registered(&mut registry);
        let copied = Family::default();
        registry.register_with_unit("copied", "Bytes of weights that were copied", Unit::Bytes, copied.clone());
        let resident = Family::default();
        registry.register_with_unit("resident", "Bytes of weights in a tier", Unit::Bytes, resident.clone());
        let queued = Family::default();
        registry.register("queued_requests", "Requests that wait to run", queued.clone());
        let (recent, statistics, latest_switches) = Default::default();
        Self {
            registry,
            requests,
            latencies,
            phases,
            switches,
            worker_deaths,
            background,
            copied,
            resident,
            queued,
            recent,
            statistics,
            latest_switches,
            changes: watch::Sender::new(()),
        }
    }
}

impl Metrics {
    /// Counts a request that ended after `took`. The server calls this.
    pub fn ended(&self, model: &str, outcome: RequestOutcome, took: Duration) {
        self.requests.get_or_create(&OfOutcome { model: model.into(), outcome: outcome.name() }).inc();
        self.count(model, |counted| match outcome {
            RequestOutcome::Answered => counted.inference_stats.success.add(took),
            _ => counted.inference_stats.fail.add(took),
        });
        self.changed();
    }

    /// Counts a computed request. The service that computes calls this.
    pub fn computed(&self, model: &str, phases: Phases, found: WeightsFound) {
        self.all_computed(model, &[phases], found);
    }

    /// Counts requests that were computed together, looking up their metrics once.
    pub(crate) fn all_computed(&self, model: &str, requests: &[Phases], found: WeightsFound) {
        let times: [(_, PhaseTime); 4] = [
            ("queue", |phases| phases.queue),
            ("copy", |phases| phases.copy),
            ("wait", |phases| phases.wait),
            ("compute", |phases| phases.compute),
        ];
        for (phase, time) in times {
            let labels = OfPhase { model: model.into(), phase, weights: found.name() };
            let histogram = self.phases.get_or_create_owned(&labels);
            requests.iter().for_each(|phases| histogram.observe(time(phases).as_secs_f64()));
        }
        let latencies = self.latencies.get_or_create_owned(&OfModel { model: model.into() });
        let mut recent = self.recent.lock();
        let recent = recent.entry(model.into()).or_default();
        for total in requests.iter().map(Phases::total) {
            latencies.observe(total.as_secs_f64());
            if recent.len() == RECENT {
                recent.pop_front();
            }
            recent.push_back(total);
        }
        self.count(model, |ModelStatistics { inference_stats: counted, .. }| {
            for Phases { queue, copy, wait, compute } in requests {
                counted.queue.add(*queue);
                counted.compute_input.add(*copy + *wait);
                counted.compute_infer.add(*compute);
                counted.compute_output.add(Duration::ZERO);
            }
        });
    }

    /// Counts a computed batch of `rows` rows, of one request or several. `phases.queue` is ignored. The service that
    /// computes calls this before it answers the requests.
    pub fn executed(&self, model: &str, rows: u64, phases: Phases) {
        let Phases { copy, wait, compute, .. } = phases;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.count(model, |counted| {
            counted.last_inference = now.as_millis().try_into().unwrap_or(u64::MAX);
            counted.inference_count += rows;
            counted.execution_count += 1;
            let batches = &mut counted.batch_stats;
            let at = batches.binary_search_by_key(&rows, |batch| batch.batch_size).unwrap_or_else(|at| {
                batches.insert(at, BatchStatistics { batch_size: rows, ..BatchStatistics::default() });
                at
            });
            batches[at].compute_input.add(copy + wait);
            batches[at].compute_infer.add(compute);
            batches[at].compute_output.add(Duration::ZERO);
        });
    }

    fn count(&self, model: &str, count: impl FnOnce(&mut ModelStatistics)) {
        count(self.statistics.lock().entry(model.into()).or_default());
    }

    /// Counts a switch: the model's weights were copied to a device in `took`.
    pub fn switched(&self, model: &str, took: Duration) {
        self.switches.get_or_create(&OfModel { model: model.into() }).inc();
        let mut latest = self.latest_switches.lock();
        if latest.len() == SWITCHES {
            latest.pop_front();
        }
        latest.push_back(Switch { model: model.into(), ended: Instant::now(), took });
        drop(latest);
        self.changed();
    }

    /// Counts bytes of weights copied from one tier to another, such as from `pinned` to `cuda:0`.
    pub fn copied(&self, from: &str, to: &str, bytes: u64) {
        self.copied.get_or_create(&OfLink { from: from.into(), to: to.into() }).inc_by(bytes);
    }

    /// Sets the bytes of a model's weights in a tier.
    pub fn resident(&self, model: &str, tier: &str, bytes: u64) {
        self.resident.get_or_create(&OfTier { model: model.into(), tier: tier.into() }).set(bytes);
        self.changed();
    }

    /// Sets the number of requests that wait for a model.
    pub fn queued(&self, model: &str, requests: u64) {
        self.queued.get_or_create(&OfModel { model: model.into() }).set(requests);
        self.changed();
    }

    /// Notifies the receivers of [`watch`](Self::watch). It costs next to nothing while there are none.
    fn changed(&self) {
        if self.changes.receiver_count() > 0 {
            self.changes.send_replace(());
        }
    }

    /// Returns a receiver that is notified whenever a number on the live page changes.
    pub(crate) fn watch(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Returns the counter of workers that ended before the server.
    pub(crate) fn worker_deaths(&self) -> Counter {
        self.worker_deaths.clone()
    }

    /// Returns how often a model was loaded to a device.
    pub fn switches(&self, model: &str) -> u64 {
        self.switches.get(&OfModel { model: model.into() }).map_or(0, |counter| counter.get())
    }

    /// Returns the latest switches of all models, newest first: at most 32.
    pub fn latest_switches(&self) -> Vec<Switch> {
        self.latest_switches.lock().iter().rev().cloned().collect()
    }

    /// Returns how many requests for a model were answered.
    pub fn answered(&self, model: &str) -> u64 {
        let labels = OfOutcome { model: model.into(), outcome: RequestOutcome::Answered.name() };
        self.requests.get(&labels).map_or(0, |counter| counter.get())
    }

    /// Returns the statistics of a model's requests, without its name and version.
    pub fn statistics(&self, model: &str) -> ModelStatistics {
        self.statistics.lock().get(model).cloned().unwrap_or_default()
    }

    /// Returns the latency quantiles of a model's last answers, or `None` before the first.
    pub fn latency(&self, model: &str) -> Option<Latency> {
        let mut latencies: Vec<Duration> = self.recent.lock().get(model)?.iter().copied().collect();
        latencies.sort_unstable();
        // The smallest latency that at least this share of the answers does not exceed.
        let quantile = |hundredths: usize| latencies.get((latencies.len() * hundredths).div_ceil(100) - 1).copied();
        Some(Latency { median: quantile(50)?, p99: quantile(99)? })
    }

    /// Returns the latencies of a model's last answers, oldest first: at most `count`.
    pub fn last_latencies(&self, model: &str, count: usize) -> Vec<Duration> {
        let recent = self.recent.lock();
        let Some(recent) = recent.get(model) else { return Vec::new() };
        recent.iter().skip(recent.len().saturating_sub(count)).copied().collect()
    }

    /// Returns all metrics in Prometheus's text format, whose media type is [`CONTENT_TYPE`].
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry).expect("a string takes every character");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_reads_what_was_counted() {
        let metrics = Metrics::default();
        metrics.ended("a\"b", RequestOutcome::Answered, Duration::ZERO);
        metrics.ended("a\"b", RequestOutcome::Answered, Duration::ZERO);
        metrics.switched("resnet", Duration::ZERO);
        metrics.copied("pinned", "cuda:0", 300);
        metrics.resident("resnet", "cuda:0", 200);
        metrics.resident("resnet", "cuda:0", 0);
        metrics.queued("resnet", 3);
        let ms = Duration::from_millis;
        metrics.computed(
            "resnet",
            Phases { queue: ms(1), copy: ms(2), wait: ms(0), compute: ms(4) },
            WeightsFound::Switched,
        );
        let text = metrics.to_text();
        for line in [
            r#"tenure_requests_total{model="a\"b",outcome="answered"} 2"#,
            r#"tenure_switches_total{model="resnet"} 1"#,
            r#"tenure_copied_bytes_total{from="pinned",to="cuda:0"} 300"#,
            r#"tenure_resident_bytes{model="resnet",tier="cuda:0"} 0"#,
            r#"tenure_queued_requests{model="resnet"} 3"#,
            r#"tenure_request_phase_seconds_sum{model="resnet",phase="copy",weights="switched"} 0.002"#,
            r#"tenure_request_latency_seconds_count{model="resnet"} 1"#,
            "# TYPE tenure_request_latency_seconds histogram",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
        assert_eq!((metrics.answered("a\"b"), metrics.switches("resnet"), metrics.switches("other")), (2, 1, 0));
    }

    #[test]
    fn quantiles_are_those_of_the_last_answers() {
        let metrics = Metrics::default();
        assert_eq!(metrics.latency("m"), None);
        let ms = Duration::from_millis;
        let computed = |compute| metrics.computed("m", Phases { compute, ..Phases::default() }, WeightsFound::Resident);
        computed(ms(7));
        assert_eq!(metrics.latency("m"), Some(Latency { median: ms(7), p99: ms(7) }));
        (0..RECENT).for_each(|_| computed(ms(1)));
        assert_eq!(metrics.latency("m"), Some(Latency { median: ms(1), p99: ms(1) }));
        (0..20).for_each(|_| computed(ms(9)));
        assert_eq!(metrics.latency("m"), Some(Latency { median: ms(1), p99: ms(9) }));
    }

    #[test]
    fn the_latest_switches_and_latencies_are_kept() {
        let metrics = Metrics::default();
        let ms = |number: usize| Duration::from_millis(number as u64);
        (0..SWITCHES + 2).for_each(|number| metrics.switched("m", ms(number)));
        let took: Vec<Duration> = metrics.latest_switches().into_iter().map(|switch| switch.took).collect();
        assert_eq!(took, (2..SWITCHES + 2).rev().map(ms).collect::<Vec<_>>());
        assert!(metrics.last_latencies("m", 2).is_empty());
        (1..4).for_each(|number| {
            metrics.computed("m", Phases { compute: ms(number), ..Phases::default() }, WeightsFound::Resident)
        });
        assert_eq!(metrics.last_latencies("m", 2), [ms(2), ms(3)]);
        assert_eq!(metrics.last_latencies("m", 5).len(), 3);
    }

    #[test]
    fn watchers_are_notified_of_each_count() {
        let metrics = Metrics::default();
        metrics.queued("m", 1);
        let mut watched = metrics.watch();
        assert!(!watched.has_changed().unwrap());
        let counts: [fn(&Metrics); 4] = [
            |metrics| metrics.queued("m", 0),
            |metrics| metrics.resident("m", "host", 1),
            |metrics| metrics.switched("m", Duration::ZERO),
            |metrics| metrics.ended("m", RequestOutcome::Answered, Duration::ZERO),
        ];
        for count in counts {
            count(&metrics);
            assert!(watched.has_changed().unwrap());
            watched.mark_unchanged();
        }
    }
}
