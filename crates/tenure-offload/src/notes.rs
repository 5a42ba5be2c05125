//! What became of saved tensors, noted while a step is recorded.

use std::collections::BTreeMap;
use std::time::Instant;

use tenure_tier::Destination;
use tenure_tier::codec::Encoded;

use crate::held::Held;
use crate::identity::HeldId;

/// What became of something that was saved. Times are since the record began, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedRecord {
    /// What it is called.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// When it was saved.
    pub saved_us: u64,
    /// When it went, and where.
    pub spilled: Option<(u64, Destination)>,
    /// When it was asked for, to come back.
    pub fetched_us: Option<u64>,
    /// What it was on a disk when it was asked for, if all of it was there.
    pub encoded: Option<Encoded>,
    /// When it was given up.
    pub dropped_us: Option<u64>,
    /// When it had been computed again.
    pub recomputed_us: Option<u64>,
    /// When it was needed first.
    pub needed_us: Option<u64>,
    /// How long the host waited for it.
    pub stalled_us: u64,
}

/// What something that was saved came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stayed in memory.
    Kept,
    /// It went out, and came back if it was needed.
    Spilled(Destination),
    /// It was given up, and computed again if it was needed.
    Recomputed,
}

impl SavedRecord {
    /// What it came to.
    pub fn fate(&self) -> Fate {
        match (self.spilled, self.dropped_us) {
            (Some((_, destination)), _) => Fate::Spilled(destination),
            (None, Some(_)) => Fate::Recomputed,
            (None, None) => Fate::Kept,
        }
    }
}

/// What is noted while somebody records.
pub(crate) struct Notes {
    began: Instant,
    saved: BTreeMap<HeldId, SavedRecord>,
}

impl Notes {
    pub(crate) fn new(began: Instant) -> Self {
        Self { began, saved: BTreeMap::new() }
    }

    /// Adds a tensor that is held from now on.
    pub(crate) fn add(&mut self, id: HeldId, held: &Held) {
        let record = SavedRecord {
            name: held.name.clone(),
            bytes: held.bytes,
            saved_us: since(self.began),
            ..SavedRecord::default()
        };
        self.saved.insert(id, record);
    }

    /// Notes what becomes of a tensor now.
    pub(crate) fn note(&mut self, id: HeldId, note: impl FnOnce(&mut SavedRecord, u64)) {
        let now_us = since(self.began);
        if let Some(record) = self.saved.get_mut(&id) {
            note(record, now_us);
        }
    }

    pub(crate) fn finish(self) -> Vec<SavedRecord> {
        self.saved.into_values().collect()
    }
}

/// Returns the microseconds since a moment.
pub(crate) fn since(began: Instant) -> u64 {
    began.elapsed().as_micros() as u64
}
