//! Counts of a model's requests, in the form of Triton's extension `statistics`.

use std::time::Duration;

use serde::Serialize;

/// Counts of a model's requests since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelStatistics {
    /// The model's name.
    pub name: String,
    /// The model's version.
    pub version: String,
    /// The time of the model's last computation, in ms since 1970; 0 if there was none.
    pub last_inference: u64,
    /// The number of computed rows.
    pub inference_count: u64,
    /// The number of computed batches.
    pub execution_count: u64,
    /// The requests and their times.
    pub inference_stats: RequestStatistics,
    /// The batches by number of rows, fewest first.
    pub batch_stats: Vec<BatchStatistics>,
}

/// The number of requests, and their times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestStatistics {
    /// Answered requests, from arrival until the answer was written.
    pub success: Times,
    /// Requests that failed for any reason.
    pub fail: Times,
    /// The time from arrival until the scheduler chose them.
    pub queue: Times,
    /// The time spent waiting for weights, before and during computing.
    pub compute_input: Times,
    /// The time spent computing.
    pub compute_infer: Times,
    /// The time for processing outputs: always zero, since they need none.
    pub compute_output: Times,
    /// Cache hits: always zero, since there is no cache.
    pub cache_hit: Times,
    /// Cache misses: always zero, since there is no cache.
    pub cache_miss: Times,
}

/// The batches with one number of rows, and their times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BatchStatistics {
    /// The rows of each batch.
    pub batch_size: u64,
    /// The time spent waiting for weights, before and during computing.
    pub compute_input: Times,
    /// The time spent computing.
    pub compute_infer: Times,
    /// Always zero.
    pub compute_output: Times,
}

/// The count of an event, and its total time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    /// The number of events.
    pub count: u64,
    /// The total time in ns.
    pub ns: u64,
}

impl Times {
    /// Adds one event.
    pub(crate) fn add(&mut self, took: Duration) {
        self.count += 1;
        self.ns = self.ns.saturating_add(took.as_nanos().try_into().unwrap_or(u64::MAX));
    }
}

/// The statistics of some models, in the form in which they are sent.
#[derive(Serialize)]
pub(crate) struct Statistics {
    pub(crate) model_stats: Vec<ModelStatistics>,
}
