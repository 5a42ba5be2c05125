use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_switch::residency::{Rate, worth};

use super::ModelId;

/// Which models' weights are on one device, and which of them leave when room is needed.
///
/// Keeping weights is worth the time that requests would wait for them otherwise: requests a second (by their recent past)
/// × time to copy them × 2^priority. The least worth per byte leaves first, in chunks from the end of the weights, unless
/// they leave [as a whole](Self::evicting_whole): what is needed last when a model runs is copied behind its computation when it
/// is missing. Where models are worth the same, it
/// is always the same one that leaves, so that a loop over more models than fit finds most of them.
#[derive(Clone, Debug)]
pub struct Residency {
    chunk_bytes: u64,
    capacity_chunks: u64,
    resident_chunks: u64,
    /// Of all pinned models, resident or not.
    pinned_chunks: u64,
    half_life: Duration,
    /// Nothing leaves in part.
    evicts_whole: bool,
    models: BTreeMap<ModelId, Kept>,
}

/// What is known of a model's weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Their size.
    pub bytes: u64,
    /// Time to copy all of them to the device.
    pub reload: Duration,
    /// Each unit doubles what they are worth.
    pub priority: i32,
    /// They never leave.
    pub is_pinned: bool,
}

/// Chunks that a model gives up, from the end of its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The model.
    pub model: ModelId,
    /// Its last resident chunks, as many.
    pub chunks: u64,
}

/// There is not enough that could leave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} bytes find no room on the device: of {capacity} bytes {free} are free, pinned models hold {pinned}, and models \
     in use {in_use}; wait for those, or pin less"
)]
pub struct NoRoom {
    /// Asked for.
    pub bytes: u64,
    /// The device's room for weights.
    pub capacity: u64,
    /// Of it, what is free.
    pub free: u64,
    /// Of it, what never leaves.
    pub pinned: u64,
    /// Of it, what runs or is being copied.
    pub in_use: u64,
}

#[derive(Clone, Debug)]
struct Kept {
    weights: Weights,
    chunks: u64,
    resident: u64,
    /// By how many.
    users: u32,
    rate: Rate,
}

impl Residency {
    /// Nothing on a device with so much room, in chunks of a size, a part of a chunk left out. What was asked for a
    /// half-life ago counts half.
    pub fn new(capacity_bytes: u64, chunk_bytes: u64, half_life: Duration) -> Self {
        let chunk_bytes = chunk_bytes.max(1);
        let capacity_chunks = capacity_bytes / chunk_bytes;
        let (resident_chunks, pinned_chunks, evicts_whole, models) = (0, 0, false, BTreeMap::new());
        Self { chunk_bytes, capacity_chunks, resident_chunks, pinned_chunks, half_life, evicts_whole, models }
    }

    /// The same, on a device whose memory cannot be given back in parts: models leave as a whole.
    #[must_use]
    pub fn evicting_whole(self) -> Self {
        Self { evicts_whole: true, ..self }
    }

    /// Makes a model known, or what is said of it anew. Nothing of it is on the device yet.
    pub fn add(&mut self, model: ModelId, weights: Weights) {
        self.remove(model);
        let chunks = weights.bytes.div_ceil(self.chunk_bytes);
        let kept = Kept { weights, chunks, resident: 0, users: 0, rate: Rate::new(self.half_life) };
        self.pinned_chunks += kept.pinned();
        self.models.insert(model, kept);
    }

    /// Forgets a model, and says how many chunks of it were on the device; nothing if it was not known.
    pub fn remove(&mut self, model: ModelId) -> Option<u64> {
        let kept = self.models.remove(&model)?;
        self.pinned_chunks -= kept.pinned();
        self.resident_chunks -= kept.resident;
        Some(kept.resident)
    }

    /// So many requests for a model run now.
    pub fn used(&mut self, model: ModelId, requests: usize, now: Duration) {
        if let Some(kept) = self.models.get_mut(&model) {
            kept.rate.used(requests, now);
        }
    }

    /// A model runs or is copied, and stays until it is [let go](Self::let_go) as often.
    pub fn hold(&mut self, model: ModelId) {
        if let Some(kept) = self.models.get_mut(&model) {
            kept.users += 1;
        }
    }

    /// The opposite of [`hold`](Self::hold).
    pub fn let_go(&mut self, model: ModelId) {
        if let Some(kept) = self.models.get_mut(&model) {
            kept.users = kept.users.saturating_sub(1);
        }
    }

    /// A model may leave from now on.
    pub(super) fn unpin(&mut self, model: ModelId) {
        if let Some(kept) = self.models.get_mut(&model) {
            self.pinned_chunks -= kept.pinned();
            kept.weights.is_pinned = false;
        }
    }

    /// Copying a model was measured to take so long.
    pub(super) fn set_reload(&mut self, model: ModelId, reload: Duration) {
        if let Some(kept) = self.models.get_mut(&model) {
            kept.weights.reload = reload;
        }
    }

    /// Bytes of a model, in whole chunks, that are not on the device. All of one that is not known: `None`.
    pub fn missing_bytes(&self, model: ModelId) -> Option<u64> {
        self.models.get(&model).map(|kept| (kept.chunks - kept.resident) * self.chunk_bytes)
    }

    /// Room for weights, in whole chunks.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_chunks * self.chunk_bytes
    }

    /// Of it, what is free.
    pub fn free_bytes(&self) -> u64 {
        (self.capacity_chunks - self.resident_chunks) * self.chunk_bytes
    }

    /// Room beside the models that never leave, whether they are there already or not.
    pub(super) fn unpinned_bytes(&self) -> u64 {
        self.capacity_chunks.saturating_sub(self.pinned_chunks) * self.chunk_bytes
    }

    /// Whether a model can be on the device at all, beside those that never leave.
    pub(super) fn fits(&self, model: ModelId) -> bool {
        self.models.get(&model).is_some_and(|kept| {
            let others = self.pinned_chunks - kept.pinned();
            kept.chunks <= self.capacity_chunks.saturating_sub(others)
        })
    }

    /// What would leave for so many bytes to be free. Of the models that are `wanted` soon nothing does, unless all
    /// others have left.
    ///
    /// # Errors
    /// What may leave is not enough.
    pub fn plan(&self, bytes: u64, now: Duration, wanted: &BTreeSet<ModelId>) -> Result<Vec<Eviction>, NoRoom> {
        let mut needed = bytes.saturating_sub(self.free_bytes()).div_ceil(self.chunk_bytes);
        if needed == 0 {
            return Ok(Vec::new());
        }
        let may_leave = |kept: &Kept| kept.resident > 0 && kept.users == 0 && !kept.weights.is_pinned;
        let mut leaving: Vec<_> = self.models.iter().filter(|(_, kept)| may_leave(kept)).collect();
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

    /// Takes what [`plan`](Self::plan) says from the device: its user frees those chunks.
    ///
    /// # Errors
    /// As of [`plan`](Self::plan). Then nothing leaves.
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

    /// Makes room for what is missing of a model, whose weights are taken to be on the device from now on.
    ///
    /// # Errors
    /// As of [`plan`](Self::plan). Then nothing changes.
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

    /// Nothing of a model is on the device, whatever was thought.
    pub(super) fn clear(&mut self, model: ModelId) {
        if let Some(kept) = self.models.get_mut(&model) {
            self.resident_chunks -= kept.resident;
            kept.resident = 0;
        }
    }

    /// Nothing is on the device, and nothing in use.
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
