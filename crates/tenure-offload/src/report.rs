//! Reports of steps: what a step took, the effort of its plan, and when each saved tensor was moved.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use tenure_tier::Destination;
use tenure_tier::codec::{Choice, Encoded};

use crate::identity::TensorId;
use crate::place::OffloadTensor;

/// The report of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepReport {
    /// The most bytes that were allocated at once. None unless the step was measured.
    pub peak_bytes: Option<u64>,
    /// The most bytes at once that were allocated or cached for later allocations. None unless the step was measured.
    pub reserved_bytes: Option<u64>,
    /// The most bytes that the step would take at once if no tensor left memory. None unless the step was measured or
    /// estimated.
    pub plain_bytes: Option<u64>,
    /// The most bytes that were allocated at once in a step that exceeded the budget. None if it kept to it.
    pub exceeded_bytes: Option<u64>,
    /// The bytes that were spilled.
    pub spilled_bytes: u64,
    /// The bytes that were fetched.
    pub fetched_bytes: u64,
    /// The bytes that were recomputed.
    pub recomputed_bytes: u64,
    /// The time to recompute them, as measured when they were computed first.
    pub recomputed: Duration,
    /// The time that the host waited for bytes to leave or arrive.
    pub stalled: Duration,
    /// The number of spills that no plan asked for, because there was no room otherwise.
    pub unplanned: u64,
    /// Whether the step followed a plan to its end.
    pub is_planned: bool,
    /// The predicted time of the plan, by what was measured: on the device, without an update after backward. None if
    /// there was no plan.
    pub predicted: Option<Duration>,
    /// The codec for bytes on their way to a disk. A lossy one changes the results.
    pub codec: Choice,
}

/// The effort of making a plan. Displayed as one line for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planning {
    /// The number of operations of the step: the intervals of its profile.
    pub operations: usize,
    /// The number of plans that the planner tried.
    pub evaluations: u64,
    /// The time from the profile to the actions at each operation.
    pub elapsed: Duration,
}

impl fmt::Display for Planning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, evaluations, elapsed } = self;
        write!(formatter, "planned a step of {operations} operations in {elapsed:.2?}: {evaluations} plans tried")
    }
}

/// The record of a saved tensor. Times are in microseconds since the record began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedRecord {
    /// The name of the tensor.
    pub name: String,
    /// The size of the tensor in bytes.
    pub bytes: u64,
    /// The time at which it was saved.
    pub saved_us: u64,
    /// The time at which its spill began, and the destination.
    pub spilled: Option<(u64, Destination)>,
    /// The time at which its fetch began.
    pub fetched_us: Option<u64>,
    /// Its encoding on a disk when its fetch began, if all of it was there.
    pub encoded: Option<Encoded>,
    /// The time at which its bytes were dropped.
    pub dropped_us: Option<u64>,
    /// The time at which it had been recomputed.
    pub recomputed_us: Option<u64>,
    /// The time at which it was needed first.
    pub needed_us: Option<u64>,
    /// The microseconds that the host waited for it.
    pub stalled_us: u64,
}

/// The fate of a saved tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The tensor stayed in memory.
    Kept,
    /// The tensor was spilled, and fetched if it was needed.
    Spilled(Destination),
    /// The tensor was dropped, and recomputed if it was needed.
    Recomputed,
}

impl SavedRecord {
    /// Returns the fate of the tensor.
    pub fn fate(&self) -> Fate {
        match (self.spilled, self.dropped_us) {
            (Some((_, destination)), _) => Fate::Spilled(destination),
            (None, Some(_)) => Fate::Recomputed,
            (None, None) => Fate::Kept,
        }
    }
}

/// The notes of a recorded step.
pub(crate) struct Notes {
    began: Instant,
    saved: BTreeMap<TensorId, SavedRecord>,
}

impl Notes {
    pub(crate) fn new(began: Instant) -> Self {
        Self { began, saved: BTreeMap::new() }
    }

    /// Adds a tensor that the engine has from now on.
    pub(crate) fn add(&mut self, id: TensorId, tensor: &OffloadTensor) {
        let record = SavedRecord {
            name: tensor.name.clone(),
            bytes: tensor.bytes,
            saved_us: since(self.began),
            ..SavedRecord::default()
        };
        self.saved.insert(id, record);
    }

    /// Calls `note` with the record of a tensor and the current time, in microseconds.
    pub(crate) fn note(&mut self, id: TensorId, note: impl FnOnce(&mut SavedRecord, u64)) {
        let now_us = since(self.began);
        if let Some(record) = self.saved.get_mut(&id) {
            note(record, now_us);
        }
    }

    /// Returns the records, in the order in which the tensors were added.
    pub(crate) fn finish(self) -> Vec<SavedRecord> {
        self.saved.into_values().collect()
    }
}

/// Returns the microseconds since `began`.
pub(crate) fn since(began: Instant) -> u64 {
    began.elapsed().as_micros() as u64
}
