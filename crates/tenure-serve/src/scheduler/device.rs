//! The devices of a scheduler, and their work.

use std::time::Duration;

use super::{BatchId, ModelId, RequestId, Residency};

/// A device of a scheduler, whose executor runs one batch at a time, or batches of several models.
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
    /// The most batches that run at once, each of another model.
    pub(super) max_batches: usize,
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
    /// Background work, which yields to requests.
    Background,
    /// Batches of different models. If there are none, the executor is idle.
    Batches(Vec<RunningBatch>),
}

impl Work {
    pub(super) const IDLE: Self = Self::Batches(Vec::new());
}

/// A batch that was handed out and is not over.
#[derive(Debug)]
pub(super) struct RunningBatch {
    pub(super) id: BatchId,
    pub(super) model: ModelId,
    pub(super) requests: Vec<RequestId>,
    /// The elements of all inputs.
    pub(super) size: u64,
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
    /// Returns the batches that run.
    pub(super) fn running(&self) -> &[RunningBatch] {
        match &self.work {
            Work::Batches(running) => running,
            Work::Lost | Work::Background => &[],
        }
    }

    /// Returns whether the executor waits for a batch, and runs none.
    pub(super) fn is_idle(&self) -> bool {
        matches!(&self.work, Work::Batches(running) if running.is_empty())
    }

    /// Returns whether another batch may run.
    pub(super) fn has_room(&self) -> bool {
        matches!(&self.work, Work::Batches(running) if running.len() < self.max_batches)
    }

    pub(super) fn runs(&self, model: ModelId) -> bool {
        self.running().iter().any(|batch| batch.model == model)
    }

    /// Returns whether a batch of this model may run now: one batch of a model runs at a time.
    pub(super) fn can_run(&self, model: ModelId) -> bool {
        self.has_room() && !self.runs(model)
    }

    /// Removes a batch from those that run.
    pub(super) fn end_batch(&mut self, batch: BatchId) -> Option<RunningBatch> {
        let Work::Batches(running) = &mut self.work else { return None };
        let index = running.iter().position(|running| running.id == batch)?;
        Some(running.swap_remove(index))
    }

    pub(super) fn is_copying(&self, model: ModelId) -> bool {
        self.copies.iter().any(|copy| copy.model == model)
    }

    /// Returns the time until the device can run a batch of a model, or `None` if its executor is gone.
    pub(super) fn free_in(&self, model: ModelId, now: Duration) -> Option<Duration> {
        match &self.work {
            Work::Lost => None,
            Work::Background => Some(Duration::ZERO),
            Work::Batches(running) => Some(match running.iter().find(|batch| batch.model == model) {
                Some(batch) => batch.left(now),
                None if self.has_room() => Duration::ZERO,
                None => running.iter().map(|batch| batch.left(now)).min().unwrap_or_default(),
            }),
        }
    }

    /// Returns the time until all batches that run are over, or `None` if the executor is gone.
    pub(super) fn idle_in(&self, now: Duration) -> Option<Duration> {
        let longest = self.running().iter().map(|batch| batch.left(now)).max();
        (!matches!(self.work, Work::Lost)).then(|| longest.unwrap_or_default())
    }

    /// Removes a model's copy from those in progress, and returns it if there was one. The model may have been removed
    /// meanwhile.
    pub(super) fn end_copy(&mut self, model: ModelId) -> Option<WeightCopy> {
        let index = self.copies.iter().position(|copy| copy.model == model)?;
        self.residency.let_go(model);
        Some(self.copies.swap_remove(index))
    }
}

impl RunningBatch {
    /// Returns the time until the batch is over. An overdue batch is expected to take as long again as it has run, so
    /// that other work does not wait for it forever.
    pub(super) fn left(&self, now: Duration) -> Duration {
        match self.expected_end.checked_sub(now) {
            Some(left) if !left.is_zero() => left,
            _ => now.saturating_sub(self.issued),
        }
    }

    /// Returns whether the batch should have ended, so that nothing is planned on its end.
    pub(super) fn is_overdue(&self, now: Duration) -> bool {
        self.expected_end <= now
    }
}
