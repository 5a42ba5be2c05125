//! Batches, and the decisions of the scheduler.

use super::{DeviceId, Eviction, ModelId, RequestId, Unanswered};

/// The id of a batch that was handed out. No two batches have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub(super) u64);

/// A decision that the scheduler's user must carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Run this batch.
    Run(Batch),
    /// Answer a request that no batch will answer.
    Answer {
        /// The request.
        request: RequestId,
        /// The reason why it has no result.
        outcome: Unanswered,
    },
    /// Discard the result of a running request: its client no longer waits for it.
    Discard {
        /// The device on which it runs.
        device: DeviceId,
        /// The batch in which it runs.
        batch: BatchId,
        /// The request.
        request: RequestId,
    },
    /// Free everything that a device holds of a removed model. It comes once for each device, when nothing there uses
    /// the model any more.
    Unload {
        /// The device.
        device: DeviceId,
        /// The model.
        model: ModelId,
    },
}

/// Requests that run together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The id, which reports refer to.
    pub id: BatchId,
    /// The device on which it runs.
    pub device: DeviceId,
    /// The model that it runs.
    pub model: ModelId,
    /// The requests, in the order of their rows.
    pub requests: Vec<RequestId>,
    /// The rows of all requests together.
    pub rows: u32,
    /// The bytes of weights to copy, in whole chunks, after the evictions. 0 if all weights are there or on their way.
    pub load_bytes: u64,
    /// The evictions that must come first.
    pub evict: Vec<Eviction>,
}

/// Weights to be copied ahead of their requests' turn: the answer of [`Scheduler::prefetch`](super::Scheduler::prefetch).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The device to copy to.
    pub device: DeviceId,
    /// The model whose weights are copied.
    pub model: ModelId,
    /// The bytes to copy, in whole chunks, after the evictions.
    pub bytes: u64,
    /// The evictions that must come first.
    pub evict: Vec<Eviction>,
}
