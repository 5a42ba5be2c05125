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
/// run needs those weights last and they are copied while it computes. Among models of equal worth, the one with the
/// largest id always leaves first. So when requests go round over more models than fit, most of these stay resident.
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
    models: BTreeMap<ModelId, ModelWeights>,
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

/// The error when evictions cannot free as many bytes as weights need.
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

/// The weights of a model, and how many of them are on the device.
#[derive(Clone, Debug)]
struct ModelWeights {
    spec: WeightsSpec,
    /// The number of chunks of all weights.
    chunks: u64,
    resident_chunks: u64,
    /// The number of [`hold`](Residency::hold)s that were not undone. While it is not 0, the weights stay.
    users: u32,
    /// The rate of requests for the model.
    rate: Rate,
}

impl Residency {
    /// Creates the record of an empty device with `capacity_bytes` for weights, rounded down to whole chunks. In a
    /// model's rate of requests, a request one `half_life` ago counts half.
    pub fn new(capacity_bytes: u64, chunk_bytes: u64, half_life: Duration) -> Self {
        let chunk_bytes = chunk_bytes.max(1);
        let capacity_chunks = capacity_bytes / chunk_bytes;
        let resident_chunks = 0;
        let pinned_chunks = 0;
        let evicts_whole = false;
        let models = BTreeMap::new();
        Self { chunk_bytes, capacity_chunks, resident_chunks, pinned_chunks, half_life, evicts_whole, models }
    }

    /// Returns the same record with another rule of eviction: models leave as a whole, since the device's memory cannot
    /// be returned in parts.
    #[must_use]
    pub fn evicting_whole(self) -> Self {
        Self { evicts_whole: true, ..self }
    }

    /// Adds a model or replaces its properties. None of its weights count as resident.
    pub fn add(&mut self, model: ModelId, weights: WeightsSpec) {
        self.remove(model);
        let chunks = weights.bytes.div_ceil(self.chunk_bytes);
        let entry =
            ModelWeights { spec: weights, chunks, resident_chunks: 0, users: 0, rate: Rate::new(self.half_life) };
        self.pinned_chunks += entry.pinned_chunks();
        self.models.insert(model, entry);
    }

    /// Removes a model and returns how many of its chunks were on the device, or `None` if it was unknown.
    pub fn remove(&mut self, model: ModelId) -> Option<u64> {
        let entry = self.models.remove(&model)?;
        self.pinned_chunks -= entry.pinned_chunks();
        self.resident_chunks -= entry.resident_chunks;
        Some(entry.resident_chunks)
    }

    /// Counts requests for a model that start to run now.
    pub fn used(&mut self, model: ModelId, requests: usize, now: Duration) {
        if let Some(entry) = self.models.get_mut(&model) {
            entry.rate.used(requests, now);
        }
    }

    /// Protects a model that runs or is being copied from eviction, until [`let_go`](Self::let_go) was called as often.
    pub fn hold(&mut self, model: ModelId) {
        if let Some(entry) = self.models.get_mut(&model) {
            entry.users += 1;
        }
    }

    /// Undoes one [`hold`](Self::hold).
    pub fn let_go(&mut self, model: ModelId) {
        if let Some(entry) = self.models.get_mut(&model) {
            entry.users = entry.users.saturating_sub(1);
        }
    }

    /// Allows a pinned model to be evicted.
    pub(super) fn unpin(&mut self, model: ModelId) {
        if let Some(entry) = self.models.get_mut(&model) {
            self.pinned_chunks -= entry.pinned_chunks();
            entry.spec.is_pinned = false;
        }
    }

    /// Sets the measured time to copy a model.
    pub(super) fn set_reload(&mut self, model: ModelId, reload: Duration) {
        if let Some(entry) = self.models.get_mut(&model) {
            entry.spec.reload = reload;
        }
    }

    /// Returns the bytes of a model, in whole chunks, that are not on the device; `None` for an unknown model.
    pub fn missing_bytes(&self, model: ModelId) -> Option<u64> {
        self.models.get(&model).map(|entry| (entry.chunks - entry.resident_chunks) * self.chunk_bytes)
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
        self.models.get(&model).is_some_and(|entry| {
            let others = self.pinned_chunks - entry.pinned_chunks();
            entry.chunks <= self.capacity_chunks.saturating_sub(others)
        })
    }

    /// Returns whether the missing weights of a model find room now, after evictions.
    pub(super) fn can_admit(&self, model: ModelId) -> bool {
        self.finds_room(model, |_, entry| entry.users == 0)
    }

    /// Returns whether a model finds room once all others have ended that are in use now, but for the `staying` ones.
    pub(super) fn can_admit_beside(&self, model: ModelId, staying: &[ModelId]) -> bool {
        self.finds_room(model, |other, _| !staying.contains(&other))
    }

    /// Returns whether a model finds room beside the pinned models and those that cannot leave.
    fn finds_room(&self, model: ModelId, can_leave: impl Fn(ModelId, &ModelWeights) -> bool) -> bool {
        let Some(chunks) = self.models.get(&model).map(|entry| entry.chunks) else { return false };
        let others = self.models.iter().filter(|(other, _)| **other != model);
        let stays = others.filter(|(other, entry)| entry.spec.is_pinned || !can_leave(**other, entry));
        let staying: u64 = stays.map(|(_, entry)| entry.resident_chunks).sum();
        chunks + staying <= self.capacity_chunks
    }

    /// Returns the evictions after which this many bytes are free, without making them. Models that are `wanted` soon
    /// leave only after all others.
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
            .filter(|(_, entry)| entry.resident_chunks > 0 && entry.users == 0 && !entry.spec.is_pinned)
            .collect();
        leaving.sort_by_cached_key(|(model, entry)| (wanted.contains(model), entry.worth(now), Reverse(**model)));
        let mut evictions = Vec::new();
        for (model, entry) in leaving {
            let chunks = if self.evicts_whole { entry.resident_chunks } else { entry.resident_chunks.min(needed) };
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
            pinned: self.sum_bytes(|entry| if entry.spec.is_pinned { entry.resident_chunks } else { 0 }),
            in_use: self
                .sum_bytes(|entry| if entry.users > 0 && !entry.spec.is_pinned { entry.resident_chunks } else { 0 }),
        })
    }

    /// Evicts as [`plan`](Self::plan) says; the caller frees the returned chunks.
    ///
    /// # Errors
    /// The same as of [`plan`](Self::plan). Then nothing leaves.
    pub fn evict(&mut self, bytes: u64, now: Duration, wanted: &BTreeSet<ModelId>) -> Result<Vec<Eviction>, NoRoom> {
        let evictions = self.plan(bytes, now, wanted)?;
        for Eviction { model, chunks } in &evictions {
            if let Some(entry) = self.models.get_mut(model) {
                entry.resident_chunks -= chunks;
                self.resident_chunks -= chunks;
            }
        }
        Ok(evictions)
    }

    /// Evicts other models to make room for the missing weights of a model, which count as resident from now on.
    /// Returns the evictions; the caller frees their chunks, then copies the weights.
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
        if let (Ok(_), Some(entry)) = (&evictions, self.models.get_mut(&model)) {
            self.resident_chunks += entry.chunks - entry.resident_chunks;
            entry.resident_chunks = entry.chunks;
        }
        evictions
    }

    /// Records that no weights of a model are on the device.
    pub(super) fn clear(&mut self, model: ModelId) {
        if let Some(entry) = self.models.get_mut(&model) {
            self.resident_chunks -= entry.resident_chunks;
            entry.resident_chunks = 0;
        }
    }

    /// Records that the device is empty and no model is in use.
    pub(super) fn clear_all(&mut self) {
        for entry in self.models.values_mut() {
            entry.resident_chunks = 0;
            entry.users = 0;
        }
        self.resident_chunks = 0;
    }

    /// Returns the sum over all models of a number of chunks, in bytes.
    fn sum_bytes(&self, chunks: impl Fn(&ModelWeights) -> u64) -> u64 {
        self.models.values().map(chunks).sum::<u64>() * self.chunk_bytes
    }
}

impl ModelWeights {
    /// Returns the number of chunks that count as pinned: all or none.
    fn pinned_chunks(&self) -> u64 {
        if self.spec.is_pinned { self.chunks } else { 0 }
    }

    /// Returns the worth of keeping one chunk, as [`Residency`] describes it.
    fn worth(&self, now: Duration) -> i64 {
        worth(&self.rate, now, self.spec.reload, self.chunks, self.spec.priority)
    }
}
