//! Counts of a model's requests, as Triton's extension `statistics` says them.

use std::time::Duration;

use serde::Serialize;

/// Counts of a model's requests since the server began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelStatistics {
    /// The model's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// When the model was last computed, in ms since 1970; 0 if it never was.
    pub last_inference: u64,
    /// Rows that were computed.
    pub inference_count: u64,
    /// Batches that were computed.
    pub execution_count: u64,
    /// Requests, and where their time went.
    pub inference_stats: RequestStatistics,
    /// Batches by their rows, fewest first.
    pub batch_stats: Vec<BatchStatistics>,
}

/// How many requests there were, and where their time went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestStatistics {
    /// Answered, from when they came until the answer was written.
    pub success: Times,
    /// Not answered, whatever the reason.
    pub fail: Times,
    /// From when they came until they were chosen.
    pub queue: Times,
    /// Waiting for weights, before computing and in it.
    pub compute_input: Times,
    /// Computing.
    pub compute_infer: Times,
    /// Nothing is to be done with what was computed: this takes no time.
    pub compute_output: Times,
    /// Nothing is answered from a cache.
    pub cache_hit: Times,
    /// Nothing is looked for in a cache.
    pub cache_miss: Times,
}

/// Batches of as many rows, and where their time went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BatchStatistics {
    /// Rows of each.
    pub batch_size: u64,
    /// Waiting for weights, before computing and in it.
    pub compute_input: Times,
    /// Computing.
    pub compute_infer: Times,
    /// Takes no time.
    pub compute_output: Times,
}

/// How often something happened, and how long it took in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    /// How often.
    pub count: u64,
    /// How long in all, in ns.
    pub ns: u64,
}

impl Times {
    /// It happened once more.
    pub(crate) fn add(&mut self, took: Duration) {
        self.count += 1;
        self.ns = self.ns.saturating_add(took.as_nanos().try_into().unwrap_or(u64::MAX));
    }
}

/// The statistics of some models, as they are sent.
#[derive(Serialize)]
pub(crate) struct Statistics {
    pub(crate) model_stats: Vec<ModelStatistics>,
}
