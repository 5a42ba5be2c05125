//! The models of a scheduler.

use std::time::Duration;

use super::cost::Cost;
use super::queue::Queue;

/// The id of a registered model. No two models have the same, even if one replaces the other under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub(super) u64);

/// The properties of a model when it is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// The bytes of its weights on a device.
    pub bytes: u64,
    /// The most rows of a batch.
    pub max_rows: u32,
    /// The longest time that a request waits for others to join its batch.
    pub max_delay: Duration,
    /// The most requests that may wait.
    pub max_queued: usize,
    /// The priority. Each unit halves the time until a request is due, and doubles its worth.
    pub priority: i32,
    /// Whether its weights stay on one device once they are there.
    pub is_pinned: bool,
}

impl Default for ModelSpec {
    /// No weights, batches of one row, and at most 256 waiting requests.
    fn default() -> Self {
        Self { bytes: 0, max_rows: 1, max_delay: Duration::ZERO, max_queued: 256, priority: 0, is_pinned: false }
    }
}

/// The reason why a model is not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The model fits on no device.
    #[error(
        "the model's weights are {bytes} bytes, and the most that a device has beside its pinned models is {available}: use a \
         narrower dtype, pin less, or give weights at least {needed} bytes"
    )]
    TooLarge {
        /// The size of its weights in bytes, in whole chunks.
        bytes: u64,
        /// The most bytes available to it on one device.
        available: u64,
        /// The bytes for weights with which it would fit beside the pinned models.
        needed: u64,
    },
    /// Pinning this model would leave no device with room for another.
    #[error(
        "pinned, {bytes} bytes of weights leave no device room for a model of {largest} bytes that is registered: do not pin \
         it, or remove that one"
    )]
    PinsTooMuch {
        /// The size of its weights in bytes, in whole chunks.
        bytes: u64,
        /// The size of the other model's weights in bytes.
        largest: u64,
    },
    /// The limits allow no batch.
    #[error("max_rows and max_queued are {max_rows} and {max_queued}: both must be at least 1")]
    NoBatch {
        /// The most rows of a batch.
        max_rows: u32,
        /// The most requests that may wait.
        max_queued: usize,
    },
}

/// A model with its waiting requests and its costs.
#[derive(Debug)]
pub(super) struct ServedModel {
    pub(super) spec: ModelSpec,
    pub(super) queue: Queue,
    /// The time before which none of its batches runs.
    pub(super) rests_until: Duration,
    pub(super) cost: Cost,
}
