use std::time::Duration;

use super::cost::Cost;
use super::queue::Queue;

/// A model that was registered. No two are the same, even one after the other by one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub(super) u64);

/// What is known of a model when it is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its weights on a device.
    pub bytes: u64,
    /// Rows of a batch, at most.
    pub max_rows: u32,
    /// For how long a request waits for others to ride along.
    pub max_delay: Duration,
    /// Requests that may wait, at most.
    pub max_queued: usize,
    /// Each unit halves the time after which a request is due, and doubles what it is worth.
    pub priority: i32,
    /// Its weights stay on one device once they are there.
    pub is_pinned: bool,
}

impl Default for Model {
    /// No weights, batches of one, 128 that wait.
    fn default() -> Self {
        Self { bytes: 0, max_rows: 1, max_delay: Duration::ZERO, max_queued: 128, priority: 0, is_pinned: false }
    }
}

/// Why a model is not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// It fits nowhere.
    #[error(
        "the model's weights are {bytes} bytes, and the most that a device has beside its pinned models is {available}: use a \
         narrower dtype, pin less, or give weights at least {needed} bytes"
    )]
    TooLarge {
        /// Its size, in whole chunks.
        bytes: u64,
        /// The most there is for it.
        available: u64,
        /// Bytes for weights with which it would fit beside the pinned models.
        needed: u64,
    },
    /// Pinned, it would leave another no room anywhere.
    #[error(
        "pinned, {bytes} bytes of weights leave no device room for a model of {largest} bytes that is registered: do not pin \
         it, or remove that one"
    )]
    PinsTooMuch {
        /// Its size, in whole chunks.
        bytes: u64,
        /// That of the other.
        largest: u64,
    },
    /// No batch would ever be made.
    #[error("max_rows and max_queued are {max_rows} and {max_queued}: both must be at least 1")]
    NoBatch {
        /// Rows of a batch.
        max_rows: u32,
        /// Requests that may wait.
        max_queued: usize,
    },
}

/// A model with what waits for it and what it costs.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) model: Model,
    pub(super) queue: Queue,
    pub(super) cost: Cost,
}
