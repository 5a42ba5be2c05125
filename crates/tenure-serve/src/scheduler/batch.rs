use super::{DeviceId, Eviction, ModelId, Outcome, RequestId};

/// A batch that was handed out. No two are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub(super) u64);

/// What the user of a scheduler is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Run these.
    Run(Batch),
    /// Answer a request that no batch answers.
    Answer {
        /// The request.
        request: RequestId,
        /// Why.
        outcome: Outcome,
    },
    /// Nobody waits for the result of a request that runs.
    Discard {
        /// Where.
        device: DeviceId,
        /// With which others.
        batch: BatchId,
        /// The request.
        request: RequestId,
    },
    /// Free all that a device holds of a model, which was removed. Each device is told once, when nothing there uses the model.
    Unload {
        /// Where.
        device: DeviceId,
        /// The model.
        model: ModelId,
    },
}

/// Requests that run together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// To be named in reports.
    pub id: BatchId,
    /// Where it runs.
    pub device: DeviceId,
    /// What runs.
    pub model: ModelId,
    /// In the order of their rows.
    pub requests: Vec<RequestId>,
    /// Of all requests.
    pub rows: u32,
    /// Bytes of the weights, in whole chunks, that are to be copied, behind what leaves. 0 if all are there or on their way.
    pub load_bytes: u64,
    /// What leaves before.
    pub evict: Vec<Eviction>,
}

/// Weights to be copied ahead of their requests' turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Where to.
    pub device: DeviceId,
    /// Whose.
    pub model: ModelId,
    /// Bytes in whole chunks, behind what leaves.
    pub bytes: u64,
    /// What leaves before.
    pub evict: Vec<Eviction>,
}
