//! The weights on a device, and their eviction.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_switch::residency::{Rate, worth};

use super::ModelId;

/// The weights of models on one device, and the choice of weights to evict when room is needed.
///
/// The worth of keeping weights is the time that requests would otherwise wait for them: requests a second (from their
/// recent past) × time to copy the weights × 2^priority. The weights with the least worth per byte leave first, in
/// chunks from their end, unless models leave [as a whole](Self::evicting_whole). A missing end costs least, since a
/// run needs those weights last and they are copied while it computes. Among models of equal worth, always the same one
/// leaves, so that a loop over more models than fit finds most of them.
#[derive(Clone, Debug)]
pub struct Residency {
    chunk_bytes: u64,
    capacity_chunks: u64,
    resident_chunks: u64,
    /// The chunks of all pinned models, resident or not.
    pinned_chunks: u64,
    half_life: Duration,
    /// Whether models leave only as a whole.
    evicts_whole: bool,
    models: BTreeMap<ModelId, Kept>,
}

/// The properties of a model's weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightsSpec {
    /// The size in bytes.
    pub bytes: u64,
    /// The time to copy all of them to the device.
    pub reload: Duration,
    /// The priority. Each unit doubles their worth.
    pub priority: i32,
    /// Whether they never leave.
    pub is_pinned: bool,
}

/// Chunks that a model gives up, from the end of its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The model.
    pub model: ModelId,
    /// The number of its last resident chunks to free.
    pub chunks: u64,
}

/// The error of a request for more room than evictions can free.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} bytes find no room on the device: of {capacity} bytes {free} are free, pinned models hold {pinned}, and models \
     in use {in_use}; wait for those, or pin less"
)]
pub struct NoRoom {
    /// The bytes that were asked for.
    pub bytes: u64,
    /// The device's room for weights in bytes.
    pub capacity: u64,
    /// The free part of it in bytes.
    pub free: u64,
    /// The bytes of pinned models, which never leave.
    pub pinned: u64,
    /// The bytes of models that run or are being copied.
    pub in_use: u64,
}

#[derive(Clone, Debug)]
struct Kept {
    weights: WeightsSpec,
    chunks: u64,
    resident: u64,
    /// The number of users that hold the model.
    users: u32,
    rate: Rate,
}

impl Residency {
    /// Creates the record of an empty device with `capacity_bytes`, rounded down to whole chunks. A request one
    /// `half_life` ago counts half.
    pub fn new(capacity_bytes: u64, chunk_bytes: u64, half_life: Duration) -> Self {
        let chunk_bytes = chunk_bytes.max(1);
        let capacity_chunks = capacity_bytes / chunk_bytes;
        let resident_chunks = 0;
        let pinned_chunks = 0;
        let evicts_whole = false;
        let models = BTreeMap::new();
        Self { chunk_bytes, capacity_chunks, resident_chunks, pinned_chunks, half_life, evicts_whole, models }
    }

    /// Returns the same for a device whose memory cannot be returned in parts: models leave as a whole.
    #[must_use]
    pub fn evicting_whole(self) -> Self {
        Self { evicts_whole: true, ..self }
    }

    /// Adds a model or replaces its properties. None of its weights count as resident.
    pub fn add(&mut self, model: ModelId, weights: WeightsSpec) {
        self.remove(model);
        let chunks = weights.bytes.div_ceil(self.chunk_bytes);
        let kept = Kept { weights, chunks, resident: 0, users: 0, rate: Rate::new(self.half_life) };
        self.pinned_chunks += kept.pinned();
        self.models.insert(model, kept);
    }

    /// Removes a model and returns how many of its chunks were on the device, or `None` if it was unknown.
    pub fn remove(&mut self, model: ModelId) -> Option<u64> {
        let kept = self.models.remove(&model)?;
        self.pinned_chunks -= kept.pinned();
        self.resident_chunks -= kept.resident;
        Some(kept.resident)
    }

    /// Counts requests for a model that start to run now.
    pub fn used(&mut self, model: ModelId, requests: usize, now: Duration) {
        if let Some(kept) = self.models.get_mut(&model) {
            kept.rate.used(requests, now);
        }
    }

    /// Holds a model that runs or is copied. It stays until it is [let go](Self::let_go) as many times.
    pub fn hold(&mut self, model: ModelId) {
        if let Some(kept) = self.models.get_mut(&model) {
            kept.users += 1;
        }
    }

    /// Undoes one [`hold`](Self::hold).
    pub fn let_go(&mut self, model: ModelId) {
        if let Some(kept) = self.models.get_mut(&model) {
            kept.users = kept.users.saturating_sub(1);
        }
    }

    /// Allows a pinned model to leave.
    pub(super) fn unpin(&mut self, model: ModelId) {
        if let Some(kept) = self.models.get_mut(&model) {
            self.pinned_chunks -= kept.pinned();
            kept.weights.is_pinned = false;
        }
    }

    /// Sets the measured time to copy a model.
    pub(super) fn set_reload(&mut self, model: ModelId, reload: Duration) {
        if let Some(kept) = self.models.get_mut(&model) {
            kept.weights.reload = reload;
        }
    }

    /// Returns the bytes of a model, in whole chunks, that are not on the device; `None` for an unknown model.
    pub fn missing_bytes(&self, model: ModelId) -> Option<u64> {
        self.models.get(&model).map(|kept| (kept.chunks - kept.resident) * self.chunk_bytes)
    }

    /// Returns the room for weights in bytes, in whole chunks.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_chunks * self.chunk_bytes
    }

    /// Returns the free room in bytes.
    pub fn free_bytes(&self) -> u64 {
        (self.capacity_chunks - self.resident_chunks) * self.chunk_bytes
    }

    /// Returns the room in bytes beside all pinned models, resident or not.
    pub(super) fn unpinned_bytes(&self) -> u64 {
        self.capacity_chunks.saturating_sub(self.pinned_chunks) * self.chunk_bytes
    }

    /// Returns whether a model can ever be on the device, beside the pinned models.
    pub(super) fn fits(&self, model: ModelId) -> bool {
        self.models.get(&model).is_some_and(|kept| {
            let others = self.pinned_chunks - kept.pinned();
            kept.chunks <= self.capacity_chunks.saturating_sub(others)
        })
    }

    /// Returns the evictions that would free this many bytes. Models that are `wanted` soon leave only after all
    /// others.
    ///
    /// # Errors
    /// The models that may leave have too few bytes.
    pub fn plan(&self, bytes: u64, now: Duration, wanted: &BTreeSet<ModelId>) -> Result<Vec<Eviction>, NoRoom> {
        let mut needed = bytes.saturating_sub(self.free_bytes()).div_ceil(self.chunk_bytes);
        if needed == 0 {
            return Ok(Vec::new());
        }
        let mut leaving: Vec<_> = self
            .models
            .iter()
            .filter(|(_, kept)| kept.resident > 0 && kept.users == 0 && !kept.weights.is_pinned)
            .collect();
        leaving.sort_by_cached_key(|(model, kept)| (wanted.contains(model), kept.worth(now), Reverse(**model)));
        let mut evictions = Vec::new();
        for (model, kept) in leaving {
            let chunks = if self.evicts_whole { kept.resident } else { kept.resident.min(needed) };
            needed = needed.saturating_sub(chunks);
            evictions.push(Eviction { model: *model, chunks });
            if needed == 0 {
                return Ok(evictions);
            }
        }
        Err(NoRoom {
            bytes,
            capacity: self.capacity_bytes(),
            free: self.free_bytes(),
            pinned: self.sum(|kept| if kept.weights.is_pinned { kept.resident } else { 0 }),
            in_use: self.sum(|kept| if kept.users > 0 && !kept.weights.is_pinned { kept.resident } else { 0 }),
        })
    }

    /// Evicts as [`plan`](Self::plan) says; the caller frees the returned chunks.
    ///
    /// # Errors
    /// The same as of [`plan`](Self::plan). Then nothing leaves.
    pub fn evict(&mut self, bytes: u64, now: Duration, wanted: &BTreeSet<ModelId>) -> Result<Vec<Eviction>, NoRoom> {
        let evictions = self.plan(bytes, now, wanted)?;
        for Eviction { model, chunks } in &evictions {
            if let Some(kept) = self.models.get_mut(model) {
                kept.resident -= chunks;
                self.resident_chunks -= chunks;
            }
        }
        Ok(evictions)
    }

    /// Makes room for the missing weights of a model, which count as resident from now on.
    ///
    /// # Errors
    /// The same as of [`plan`](Self::plan). Then nothing changes.
    pub fn admit(
        &mut self,
        model: ModelId,
        now: Duration,
        wanted: &BTreeSet<ModelId>,
    ) -> Result<Vec<Eviction>, NoRoom> {
        let missing = self.missing_bytes(model).unwrap_or(0);
        self.hold(model);
        let evictions = self.evict(missing, now, wanted);
        self.let_go(model);
        if let (Ok(_), Some(kept)) = (&evictions, self.models.get_mut(&model)) {
            self.resident_chunks += kept.chunks - kept.resident;
            kept.resident = kept.chunks;
        }
        evictions
    }

    /// Records that no weights of a model are on the device.
    pub(super) fn clear(&mut self, model: ModelId) {
        if let Some(kept) = self.models.get_mut(&model) {
            self.resident_chunks -= kept.resident;
            kept.resident = 0;
        }
    }

    /// Records that the device is empty and no model is in use.
    pub(super) fn clear_all(&mut self) {
        self.models.values_mut().for_each(|kept| (kept.resident, kept.users) = (0, 0));
        self.resident_chunks = 0;
    }

    fn sum(&self, chunks: impl Fn(&Kept) -> u64) -> u64 {
        self.models.values().map(chunks).sum::<u64>() * self.chunk_bytes
    }
}

impl Kept {
    fn pinned(&self) -> u64 {
        if self.weights.is_pinned { self.chunks } else { 0 }
    }

    fn worth(&self, now: Duration) -> i64 {
        worth(&self.rate, now, self.weights.reload, self.chunks, self.weights.priority)
    }
}
