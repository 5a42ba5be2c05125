//! The devices of a scheduler, and their work.

use std::time::Duration;

use super::{BatchId, ModelId, RequestId, Residency};

/// A device of a scheduler, with one executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub(super) usize);

impl DeviceId {
    /// Returns its index in the order in which the scheduler's devices were added.
    pub fn index(self) -> usize {
        self.0
    }
}

/// A device's work, its weights and its copies.
#[derive(Debug)]
pub(super) struct ScheduledDevice {
    pub(super) work: Work,
    pub(super) residency: Residency,
    /// The copies in progress: for the running batch, and ahead of later ones.
    pub(super) copies: Vec<WeightCopy>,
    /// The time for which the device waited for switches, less the time that resident models computed since. While it
    /// is not zero, due requests of resident models go first.
    pub(super) switch_debt: Duration,
}

/// The current work of an executor.
#[derive(Debug)]
pub(super) enum Work {
    /// The executor is gone.
    Lost,
    /// The executor waits for a batch.
    Idle,
    /// Background work, which yields to requests.
    Background,
    Batch(RunningBatch),
}

/// A batch that was handed out and is not over.
#[derive(Debug)]
pub(super) struct RunningBatch {
    pub(super) id: BatchId,
    pub(super) model: ModelId,
    pub(super) requests: Vec<RequestId>,
    pub(super) rows: u32,
    pub(super) issued: Duration,
    pub(super) expected_end: Duration,
    /// Whether it has started to compute.
    pub(super) has_started: bool,
    /// Whether some of its weights were missing.
    pub(super) is_switch: bool,
}

/// A copy of a model's missing weights to the device.
#[derive(Debug)]
pub(super) struct WeightCopy {
    pub(super) model: ModelId,
    /// The bytes to copy as a fraction of all weights, from 0 to 1.
    pub(super) fraction: f64,
    pub(super) expected_end: Duration,
}

impl ScheduledDevice {
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.work, Work::Idle)
    }

    pub(super) fn is_copying(&self, model: ModelId) -> bool {
        self.copies.iter().any(|copy| copy.model == model)
    }

    /// Returns the time until the device can run another batch, or `None` if its executor is gone. An overdue batch is
    /// expected to take as long again as it has run, so that other work does not wait for it forever.
    pub(super) fn free_in(&self, now: Duration) -> Option<Duration> {
        match &self.work {
            Work::Lost => None,
            Work::Idle | Work::Background => Some(Duration::ZERO),
            Work::Batch(running) => Some(match running.expected_end.checked_sub(now) {
                Some(left) if !left.is_zero() => left,
                _ => now.saturating_sub(running.issued),
            }),
        }
    }

    /// Removes a model's copy from those in progress, and returns it if there was one. The model may have been removed
    /// meanwhile.
    pub(super) fn end_copy(&mut self, model: ModelId) -> Option<WeightCopy> {
        let index = self.copies.iter().position(|copy| copy.model == model)?;
        self.residency.let_go(model);
        Some(self.copies.swap_remove(index))
    }
}
