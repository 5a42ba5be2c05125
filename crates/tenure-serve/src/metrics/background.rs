//! The metrics of programs in the background.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The counters of a server's background programs.
#[derive(Debug)]
pub(crate) struct BackgroundMetrics {
    /// 1 while background programs may use the devices.
    running: Gauge<u64, AtomicU64>,
    /// The times from a request's arrival until all programs had yielded.
    yields: Histogram,
    /// The number of requests for which some program did not yield in time.
    late: Counter,
}

impl BackgroundMetrics {
    /// Creates the counters and registers them in `registry`.
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let metrics = Self {
            running: Gauge::default(),
            // The buckets go from 50 µs to 107 ms in steps of a quarter.
            yields: Histogram::new(exponential_buckets(50e-6, 1.25, 35)),
            late: Counter::default(),
        };
        let help = "Whether background programs have the device";
        registry.register("background_running", help, metrics.running.clone());
        let help = "Time from a request's arrival until the background programs had yielded";
        registry.register_with_unit("background_yield", help, Unit::Seconds, metrics.yields.clone());
        let help = "Requests that stopped waiting for background programs";
        registry.register("background_late_yields", help, metrics.late.clone());
        metrics
    }

    /// Records that background programs have started.
    pub(crate) fn begun(&self) {
        self.running.set(1);
    }

    /// Records that the background has stopped. `took` is the time since a request came, if one did; `in_time` says
    /// whether all programs yielded in time.
    pub(crate) fn ended(&self, took: Option<Duration>, in_time: bool) {
        self.running.set(0);
        if !in_time {
            self.late.inc();
        } else if let Some(took) = took {
            self.yields.observe(took.as_secs_f64());
        }
    }
}
