use std::time::Duration;

use super::{BatchId, ModelId, RequestId, Residency};

/// A device of a scheduler, with one executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub(super) usize);

impl DeviceId {
    /// How many devices its scheduler had before it.
    pub fn index(self) -> usize {
        self.0
    }
}

#[derive(Debug)]
pub(super) struct Device {
    pub(super) work: Work,
    pub(super) residency: Residency,
    /// What is being copied: for what runs, and ahead.
    pub(super) copies: Vec<Copy>,
    /// The time that it stood still for switches, and that is owed to what is resident.
    pub(super) debt: Duration,
}

/// What an executor does.
#[derive(Debug)]
pub(super) enum Work {
    /// It is not there.
    Lost,
    Nothing,
    /// What yields to requests.
    Background,
    Batch(Running),
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) id: BatchId,
    pub(super) model: ModelId,
    pub(super) requests: Vec<RequestId>,
    pub(super) rows: u32,
    pub(super) issued: Duration,
    pub(super) expected_end: Duration,
    /// It computes.
    pub(super) has_started: bool,
    /// Its weights, or some of them, were missing.
    pub(super) is_switch: bool,
}

#[derive(Debug)]
pub(super) struct Copy {
    pub(super) model: ModelId,
    /// Of all weights.
    pub(super) part: f64,
    pub(super) expected_end: Duration,
}

impl Device {
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.work, Work::Nothing)
    }

    pub(super) fn is_copying(&self, model: ModelId) -> bool {
        self.copies.iter().any(|copy| copy.model == model)
    }

    /// Time until it can run something else, if it is there. A batch that takes longer than it should is taken to take as
    /// long again, so that nothing waits for it for ever.
    pub(super) fn free_in(&self, now: Duration) -> Option<Duration> {
        match &self.work {
            Work::Lost => None,
            Work::Nothing | Work::Background => Some(Duration::ZERO),
            Work::Batch(running) => Some(match running.expected_end.checked_sub(now) {
                Some(left) if !left.is_zero() => left,
                _ => now.saturating_sub(running.issued),
            }),
        }
    }

    /// A copy is over, whether the model was removed meanwhile or not.
    pub(super) fn end_copy(&mut self, model: ModelId) -> Option<Copy> {
        let index = self.copies.iter().position(|copy| copy.model == model)?;
        self.residency.let_go(model);
        Some(self.copies.swap_remove(index))
    }
}
