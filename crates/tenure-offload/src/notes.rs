//! Notes on when each saved tensor is moved, made while a step is recorded.

use std::collections::BTreeMap;
use std::time::Instant;

use tenure_tier::Destination;
use tenure_tier::codec::Encoded;

use crate::held::HeldTensor;
use crate::identity::HeldId;

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
    saved: BTreeMap<HeldId, SavedRecord>,
}

impl Notes {
    pub(crate) fn new(began: Instant) -> Self {
        Self { began, saved: BTreeMap::new() }
    }

    /// Adds a tensor that is held from now on.
    pub(crate) fn add(&mut self, id: HeldId, held: &HeldTensor) {
        let record = SavedRecord {
            name: held.name.clone(),
            bytes: held.bytes,
            saved_us: since(self.began),
            ..SavedRecord::default()
        };
        self.saved.insert(id, record);
    }

    /// Calls `note` with the record of a tensor and the current time, in microseconds.
    pub(crate) fn note(&mut self, id: HeldId, note: impl FnOnce(&mut SavedRecord, u64)) {
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
