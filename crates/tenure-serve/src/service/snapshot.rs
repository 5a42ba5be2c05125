//! Snapshots of a service's state, for display.

use std::time::Duration;

use crate::metrics::{Latency, Switch};
use crate::protocol::ModelState;

/// A snapshot of the server's state, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The time since the server started.
    pub uptime: Duration,
    /// The tiers of memory for weights, fastest first.
    pub tiers: Vec<Tier>,
    /// The models, in display order.
    pub models: Vec<ModelSnapshot>,
    /// The latest switches, newest first.
    pub switches: Vec<Switch>,
}

/// A tier of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// The name, such as `cuda:0`.
    pub name: String,
    /// The bytes of weights in it.
    pub used_bytes: u64,
    /// The most bytes that it may hold.
    pub capacity_bytes: u64,
}

/// A snapshot of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSnapshot {
    /// The model's name.
    pub name: String,
    /// The state, which says whether the model can be asked.
    pub state: ModelState,
    /// The tiers that hold its weights, fastest first.
    pub resident: Vec<Resident>,
    /// The number of waiting requests.
    pub queued: u64,
    /// The number of answered requests.
    pub answered: u64,
    /// The number of times that it was loaded to a device.
    pub switches: u64,
    /// The latency of its last answers.
    pub latency: Option<Latency>,
    /// The latencies of its last answers, oldest first: at most [`ModelSnapshot::LATENCIES`].
    pub last_latencies: Vec<Duration>,
}

impl ModelSnapshot {
    /// The number of a model's last latencies that are shown.
    pub const LATENCIES: usize = 32;
}

/// A model's weights in a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The tier's name.
    pub tier: String,
    /// The bytes of its weights there.
    pub bytes: u64,
}
