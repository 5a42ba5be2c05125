//! The summary of an open load.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tenure::report::{ModelLatencies, SentRequest};
use tenure::units::Percent;

use super::metrics::{PHASES, Split};
use super::replay::{Replayed, Sample};
use super::target::RequestOutcome;
use crate::figures::table;

/// The figures of an open load. Times are in ms, from when a request was due. Requests that were not answered count as
/// longer than all others, and are `null` in JSON.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) requests: usize,
    pub(super) answered: usize,
    pub(super) refused: usize,
    pub(super) failed: usize,
    pub(super) wrong: usize,
    pub(super) late: usize,
    pub(super) seconds: f64,
    /// Requests per second that were answered correctly and in time.
    pub(super) goodput: f64,
    p50_ms: Option<f64>,
    p90_ms: Option<f64>,
    p99_ms: Option<f64>,
    max_ms: Option<f64>,
    /// The number of times that models were brought to the device.
    switches: u64,
    /// The share of computed requests that waited for their model to be brought to the device.
    switched_share: f64,
    resident: Phases,
    switched: Phases,
}

/// The mean times of a request's phases in the server.
#[derive(Debug, Serialize)]
struct Phases {
    requests: u64,
    queue_ms: f64,
    copy_ms: f64,
    wait_ms: f64,
    compute_ms: f64,
}

impl Summary {
    /// Summarizes a replay. Answers that took longer than `deadline` are late.
    pub(super) fn of(replayed: &Replayed, deadline: Duration) -> Self {
        let samples = &replayed.samples;
        let count = |is_it: &dyn Fn(&Sample) -> bool| samples.iter().filter(|sample| is_it(sample)).count();
        let of = |outcome| count(&|sample| sample.outcome == outcome);
        let late = count(&|sample| sample.outcome == RequestOutcome::Answered && sample.took > deadline);
        let (before, after) = match &replayed.counted[..] {
            [(_, first), .., (_, last)] => (first, last),
            _ => {
                return Self::of(
                    &Replayed { samples: samples.clone(), counted: vec![Default::default(); 2], error: None },
                    deadline,
                );
            }
        };
        let [resident, switched] = ["resident", "switched"].map(|weights| after.since(before, weights));
        let seconds =
            samples.iter().map(|sample| sample.arrival.at + sample.took).max().unwrap_or_default().as_secs_f64();
        let mut sorted: Vec<f64> = samples.iter().map(milliseconds).collect();
        sorted.sort_by(f64::total_cmp);
        let [p50_ms, p90_ms, p99_ms, max_ms] = [0.5, 0.9, 0.99, 1.0].map(|share| quantile(&sorted, share));
        let answered = of(RequestOutcome::Answered);
        Self {
            requests: samples.len(),
            answered,
            refused: of(RequestOutcome::Refused),
            failed: of(RequestOutcome::Failed),
            wrong: of(RequestOutcome::Wrong),
            late,
            seconds,
            goodput: (answered - late) as f64 / seconds.max(f64::MIN_POSITIVE),
            p50_ms,
            p90_ms,
            p99_ms,
            max_ms,
            switches: after.switches.saturating_sub(before.switches),
            switched_share: switched.requests as f64 / (resident.requests + switched.requests).max(1) as f64,
            resident: resident.into(),
            switched: switched.into(),
        }
    }

    /// Returns tables of the figures.
    pub(super) fn describe(&self) -> String {
        let Self { requests, answered, refused, failed, wrong, late, seconds, goodput, .. } = self;
        let counts = [
            ("answered", answered),
            ("of them late", late),
            ("refused", refused),
            ("failed", failed),
            ("wrong", wrong),
        ];
        let rows = counts.map(|(name, count)| {
            let share = Percent(*count as f64 / (*requests).max(1) as f64);
            [name.to_owned(), count.to_string(), share.to_string()]
        });
        let mut text = format!(
            "{requests} requests in {seconds:.1} s; {goodput:.1} a second were answered rightly and in time\n\n{}\n",
            table(&["requests", "", ""], &rows)
        );
        let times = [("p50", self.p50_ms), ("p90", self.p90_ms), ("p99", self.p99_ms), ("max", self.max_ms)];
        let rows = times.map(|(name, ms)| {
            let time = ms.map_or_else(|| "never".to_owned(), |ms| format!("{ms:.2}"));
            [name.to_owned(), time]
        });
        text += &format!("{}\n", table(&["latency", "ms"], &rows));
        text += &format!(
            "{} switches; {} of the requests that were computed waited for one\n\n",
            self.switches,
            Percent(self.switched_share)
        );
        let row = |name: &str, phases: &Phases| {
            let Phases { requests, queue_ms, copy_ms, wait_ms, compute_ms } = phases;
            let times = [queue_ms, copy_ms, wait_ms, compute_ms].map(|ms| format!("{ms:.2}"));
            [vec![name.to_owned(), requests.to_string()], times.into()].concat()
        };
        let rows = [row("resident", &self.resident), row("switched", &self.switched)];
        let heads = [&["weights", "requests"][..], &PHASES.map(head)].concat();
        text + &table(&heads, &rows)
    }
}

/// Returns a phase's column heading.
fn head(phase: &'static str) -> &'static str {
    match phase {
        "queue" => "queue ms",
        "copy" => "copy ms",
        "wait" => "wait ms",
        _ => "compute ms",
    }
}

impl From<Split> for Phases {
    fn from(Split { requests, phases_ms: [queue_ms, copy_ms, wait_ms, compute_ms] }: Split) -> Self {
        Self { requests, queue_ms, copy_ms, wait_ms, compute_ms }
    }
}

/// Returns the time that a request took in ms; infinite if it was not answered.
fn milliseconds(sample: &Sample) -> f64 {
    match sample.outcome {
        RequestOutcome::Answered | RequestOutcome::Wrong => sample.took.as_secs_f64() * 1e3,
        RequestOutcome::Refused | RequestOutcome::Failed => f64::INFINITY,
    }
}

/// Returns the smallest time that at least this share of all requests does not exceed; `None` if there is none.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().filter(|ms| ms.is_finite())
}

/// Returns the answered requests, by model.
pub(super) fn by_model(samples: &[Sample], names: &[&str]) -> Vec<ModelLatencies> {
    let mut models: BTreeMap<usize, Vec<SentRequest>> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| milliseconds(sample).is_finite()) {
        let request = SentRequest { sent: sample.arrival.at, took: sample.took };
        models.entry(sample.arrival.model).or_default().push(request);
    }
    models.into_iter().map(|(model, requests)| ModelLatencies { model: names[model].to_owned(), requests }).collect()
}

/// Returns the approximate times at which models were brought to the device.
pub(super) fn switches(replayed: &Replayed) -> Vec<Duration> {
    let seen = replayed.counted.windows(2).filter(|seen| seen[1].1.switches > seen[0].1.switches);
    seen.map(|seen| seen[1].0).collect()
}

#[cfg(test)]
mod tests {
    use super::super::arrivals::Arrival;
    use super::*;

    fn sample(took_ms: u64, outcome: RequestOutcome) -> Sample {
        Sample { arrival: Arrival { at: Duration::ZERO, model: 0 }, took: Duration::from_millis(took_ms), outcome }
    }

    #[test]
    fn a_request_that_is_not_answered_takes_for_ever() {
        let answered = (1..=98).map(|ms| sample(ms, RequestOutcome::Answered));
        let samples = answered.chain([sample(1, RequestOutcome::Refused), sample(1, RequestOutcome::Failed)]).collect();
        let replayed = Replayed { samples, counted: Vec::new(), error: None };
        let summary = Summary::of(&replayed, Duration::from_millis(90));
        let counts = [summary.requests, summary.answered, summary.late, summary.refused, summary.failed, summary.wrong];
        assert_eq!(counts, [100, 98, 8, 1, 1, 0]);
        assert_eq!(
            (summary.p50_ms, summary.p90_ms, summary.p99_ms, summary.max_ms),
            (Some(50.0), Some(90.0), None, None)
        );
        assert!(summary.describe().contains("never"));
    }

    #[test]
    fn no_request_is_no_figure() {
        let summary = Summary::of(&Replayed { samples: Vec::new(), counted: Vec::new(), error: None }, Duration::MAX);
        assert_eq!((summary.requests, summary.p50_ms, summary.goodput), (0, None, 0.0));
        assert!(summary.describe().starts_with("0 requests"));
    }
}
