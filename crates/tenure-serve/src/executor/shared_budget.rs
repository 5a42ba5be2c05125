//! A budget of device memory for two switchers, each of which loads weights in its own process.
//!
//! A switcher keeps chunks that no model uses, for its next model. So before one switcher loads a model, the other
//! returns its unused chunks to the driver, if any of its weights were evicted since it last did so. Together the two
//! never take more than the capacity, in whatever order the scheduler's decisions take effect.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tenure_switch::SwitchError;

use super::ModelError;
use super::backend::{BackendWeights, LoadedCallback, TimedOutputs};
use super::batch_control::BatchControl;
use super::tensors::RawTensor;

/// The switcher that a model's weights belong to: that of our own networks, or that of PyTorch modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Native,
    Python,
}

/// Counts the bytes of a device's memory that both switchers use.
pub(crate) struct SharedBudget {
    capacity_bytes: u64,
    chunk_bytes: u64,
    /// Locked while weights start to load.
    loading: Mutex<()>,
    state: Mutex<SharedBudgetState>,
    /// Notified when bytes are given back.
    freed: Condvar,
}

#[derive(Default)]
struct SharedBudgetState {
    /// Bytes taken by all models, in whole chunks.
    taken_bytes: u64,
    /// The owners that may have unused chunks, since their weights were evicted.
    with_unused_chunks: Vec<Owner>,
}

/// Weights of a model, which take their bytes from a [`SharedBudget`] before they are loaded.
pub(super) struct BudgetedWeights {
    budget: Arc<SharedBudget>,
    /// The model's name.
    name: String,
    owner: Owner,
    weights: Box<dyn BackendWeights>,
    /// Makes the other owner return its unused chunks to the driver.
    trim_other: Box<dyn Fn() + Send + Sync>,
    /// The bytes that these weights have taken. Locked before the budget's state.
    taken_bytes: Mutex<u64>,
}

impl SharedBudget {
    pub(crate) fn new(capacity_bytes: u64, chunk_bytes: u64) -> Self {
        let loading = Mutex::default();
        let state = Mutex::default();
        let freed = Condvar::new();
        Self { capacity_bytes, chunk_bytes, loading, state, freed }
    }

    /// Waits up to `patience` for this many bytes, and takes them. Returns whether the other owner must now
    /// return its unused chunks.
    fn take(&self, bytes: u64, by: &BudgetedWeights, patience: Duration) -> Result<bool, SwitchError> {
        let mut state = self.state.lock();
        let end = Instant::now() + patience;
        while bytes > self.capacity_bytes.saturating_sub(state.taken_bytes) {
            if self.freed.wait_until(&mut state, end).timed_out() {
                let free = self.capacity_bytes.saturating_sub(state.taken_bytes);
                let budget = self.capacity_bytes;
                return Err(SwitchError::NoDeviceRoom { model: by.name.clone(), needed: bytes, free, budget });
            }
        }
        state.taken_bytes += bytes;
        let owners = state.with_unused_chunks.len();
        state.with_unused_chunks.retain(|owner| *owner == by.owner);
        Ok(state.with_unused_chunks.len() < owners)
    }

    /// Gives back bytes of evicted weights, whose chunks their owner may keep.
    fn give_back(&self, bytes: u64, by: Owner) {
        let mut state = self.state.lock();
        state.taken_bytes -= bytes;
        if !state.with_unused_chunks.contains(&by) {
            state.with_unused_chunks.push(by);
        }
        drop(state);
        self.freed.notify_all();
    }
}

impl BudgetedWeights {
    pub(super) fn new(
        budget: &Arc<SharedBudget>,
        name: String,
        owner: Owner,
        weights: Box<dyn BackendWeights>,
        trim_other: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let budget = Arc::clone(budget);
        let trim_other = Box::new(trim_other);
        let taken_bytes = Mutex::default();
        Self { budget, name, owner, weights, trim_other, taken_bytes }
    }

    /// Gives back all but this many bytes.
    fn give_back_all_but(&self, taken_bytes: &mut u64, bytes: u64) {
        if bytes < *taken_bytes {
            self.budget.give_back(*taken_bytes - bytes, self.owner);
            *taken_bytes = bytes;
        }
    }
}

impl BackendWeights for BudgetedWeights {
    fn bytes(&self) -> u64 {
        self.weights.bytes()
    }

    fn resident_bytes(&self) -> u64 {
        self.weights.resident_bytes()
    }

    fn load(&self, patience: Duration) -> Result<(), ModelError> {
        let _loading = self.budget.loading.lock();
        let mut taken_bytes = self.taken_bytes.lock();
        let all = self.weights.bytes().next_multiple_of(self.budget.chunk_bytes);
        if self.budget.take(all - *taken_bytes, self, patience)? {
            (self.trim_other)();
        }
        *taken_bytes = all;
        self.weights
            .load(patience)
            .inspect_err(|_| self.give_back_all_but(&mut taken_bytes, self.weights.resident_bytes()))
    }

    fn when_loaded(&self, done: LoadedCallback) {
        self.weights.when_loaded(done);
    }

    fn loaded(&self) -> Result<(), ModelError> {
        self.weights.loaded()
    }

    fn evict(&self, bytes: u64) {
        let mut taken_bytes = self.taken_bytes.lock();
        self.weights.evict(bytes);
        self.give_back_all_but(&mut taken_bytes, self.weights.resident_bytes());
    }

    fn compute(&self, inputs: &[RawTensor], control: &BatchControl) -> Result<TimedOutputs, ModelError> {
        self.weights.compute(inputs, control)
    }
}

impl Drop for BudgetedWeights {
    fn drop(&mut self) {
        self.evict(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const CHUNK: u64 = 16;

    /// Weights of some bytes, which are loaded and evicted at once in whole chunks.
    struct Fake {
        bytes: u64,
        resident: AtomicU64,
        can_load: bool,
    }

    impl BackendWeights for Fake {
        fn bytes(&self) -> u64 {
            self.bytes
        }

        fn resident_bytes(&self) -> u64 {
            self.resident.load(Ordering::Relaxed)
        }

        fn load(&self, _: Duration) -> Result<(), ModelError> {
            if !self.can_load {
                return Err(ModelError::NoWeights);
            }
            self.resident.store(self.bytes.next_multiple_of(CHUNK), Ordering::Relaxed);
            Ok(())
        }

        fn when_loaded(&self, done: LoadedCallback) {
            done(None);
        }

        fn loaded(&self) -> Result<(), ModelError> {
            Ok(())
        }

        fn evict(&self, bytes: u64) {
            let left = self.resident_bytes().saturating_sub(bytes);
            self.resident.store(left, Ordering::Relaxed);
        }

        fn compute(&self, _: &[RawTensor], _: &BatchControl) -> Result<TimedOutputs, ModelError> {
            Err(ModelError::NoWeights)
        }
    }

    /// Creates weights, and a counter of how often the other owner gave back its kept chunks.
    fn weights(
        room: &Arc<SharedBudget>,
        owner: Owner,
        bytes: u64,
        can_load: bool,
    ) -> (BudgetedWeights, Arc<AtomicU64>) {
        let trims: Arc<AtomicU64> = Arc::default();
        let trimmed = Arc::clone(&trims);
        let fake = Box::new(Fake { bytes, resident: AtomicU64::default(), can_load });
        (
            BudgetedWeights::new(room, "m".into(), owner, fake, move || {
                trimmed.fetch_add(1, Ordering::Relaxed);
            }),
            trims,
        )
    }

    fn free(room: &SharedBudget) -> u64 {
        room.capacity_bytes - room.state.lock().taken_bytes
    }

    #[test]
    fn both_take_whole_chunks_and_never_more_than_there_are() {
        let room = Arc::new(SharedBudget::new(4 * CHUNK, CHUNK));
        let (ours, _) = weights(&room, Owner::Native, 2 * CHUNK - 3, true);
        let (theirs, _) = weights(&room, Owner::Python, 2 * CHUNK + 1, true);
        ours.load(Duration::ZERO).unwrap();
        ours.load(Duration::ZERO).unwrap();
        assert_eq!(free(&room), 2 * CHUNK);
        let refused = theirs.load(Duration::ZERO).unwrap_err();
        assert!(matches!(refused, ModelError::Switch(SwitchError::NoDeviceRoom { needed: 48, free: 32, .. })));
        ours.evict(CHUNK);
        theirs.load(Duration::ZERO).unwrap();
        assert_eq!(free(&room), 0);
        drop(theirs);
        drop(ours);
        assert_eq!(free(&room), 4 * CHUNK);
    }

    #[test]
    fn kept_room_is_given_back_once_before_the_other_owner_brings_more() {
        let room = Arc::new(SharedBudget::new(4 * CHUNK, CHUNK));
        let (ours, python_trims) = weights(&room, Owner::Native, CHUNK, true);
        let (theirs, native_trims) = weights(&room, Owner::Python, CHUNK, true);
        let trims = || [&native_trims, &python_trims].map(|trims| trims.load(Ordering::Relaxed));
        for _ in 0..3 {
            theirs.load(Duration::ZERO).unwrap();
            theirs.evict(u64::MAX);
        }
        assert_eq!(trims(), [0, 0], "chunks of its own are used again");
        ours.load(Duration::ZERO).unwrap();
        ours.evict(u64::MAX);
        ours.load(Duration::ZERO).unwrap();
        assert_eq!(trims(), [0, 1]);
        theirs.load(Duration::ZERO).unwrap();
        assert_eq!(trims(), [1, 1]);
    }

    #[test]
    fn room_is_waited_for_and_weights_that_do_not_come_take_none() {
        let room = Arc::new(SharedBudget::new(2 * CHUNK, CHUNK));
        let (broken, _) = weights(&room, Owner::Python, CHUNK, false);
        broken.load(Duration::ZERO).unwrap_err();
        assert_eq!(free(&room), 2 * CHUNK);
        let (first, _) = weights(&room, Owner::Native, 2 * CHUNK, true);
        let (second, _) = weights(&room, Owner::Python, CHUNK, true);
        first.load(Duration::ZERO).unwrap();
        let (sender, loaded) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| sender.send(second.load(Duration::MAX / 4)).unwrap());
            first.evict(CHUNK);
            loaded.recv().unwrap().unwrap();
        });
        assert_eq!(free(&room), 0);
    }
}
