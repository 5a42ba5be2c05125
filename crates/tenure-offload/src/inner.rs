//! The state that an engine's handles share: its memory, its mover, its options and its ledger.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tenure_plan::Planner;
use tenure_plan::planner::PlannerOptions;
use tenure_tier::{Destination, Mover};

use crate::clock::HostTime;
use crate::error::OffloadError;
use crate::held::{HeldTensor, Keeper};
use crate::identity::HeldId;
use crate::ledger::Ledger;
use crate::machine::SpillLink;
use crate::memory::Memory;

/// Settings of an [`Engine`](crate::Engine).
pub struct EngineOptions {
    /// The size in bytes below which saved tensors stay in memory.
    pub min_tensor_bytes: u64,
    /// The destinations of spills, the fastest first.
    pub links: Vec<(SpillLink, Destination)>,
    /// The planner.
    pub planner: Box<dyn Planner + Send + Sync>,
    /// The planner's objective and limits.
    pub planning: PlannerOptions,
}

/// The state that all handles of an engine share.
pub(crate) struct EngineInner {
    pub(crate) memory: Memory,
    pub(crate) mover: Mover,
    pub(crate) options: EngineOptions,
    pub(crate) host_time: Mutex<HostTime>,
    /// The front end's callback: see [`Engine::on_wake`](crate::Engine::on_wake).
    pub(crate) wake: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    /// See [`Engine::set_strict`](crate::Engine::set_strict).
    pub(crate) is_strict: AtomicBool,
    /// See [`Engine::move_all`](crate::Engine::move_all).
    pub(crate) moves_all: AtomicBool,
    /// The memory's limit in bytes, as it was set last. Setting it gives back cached memory, so the same limit is not
    /// set again.
    pub(crate) limit: Mutex<Option<u64>>,
    pub(crate) ledger: Mutex<Ledger>,
}

impl Drop for EngineInner {
    fn drop(&mut self) {
        // The allocator reports a failure. Another engine's limit stays.
        let _ = self.set_limit(None);
    }
}

impl Keeper for EngineInner {
    fn remove(&self, id: HeldId) -> Option<HeldTensor> {
        // The caller drops the tensor after the lock is released.
        self.ledger.lock().remove(id)
    }
}

impl EngineInner {
    /// Sets the memory's limit, if it differs from the current one.
    pub(crate) fn set_limit(&self, bytes: Option<u64>) -> Result<(), OffloadError> {
        let mut limit = self.limit.lock();
        if *limit != bytes {
            self.memory.set_limit(bytes)?;
            *limit = bytes;
        }
        Ok(())
    }

    /// Returns whether measured steps keep to the budget as all others do.
    pub(crate) fn is_strict(&self) -> bool {
        self.is_strict.load(Ordering::Relaxed)
    }

    /// Returns the bytes that are allocated of the memory now.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.memory.statistics().all.allocated_bytes.current
    }

    /// Calls `wait`, and adds its time to the stalled time of the step's report.
    pub(crate) fn stalled<T>(&self, wait: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let waited = wait();
        self.ledger.lock().report.stalled += since.elapsed();
        waited
    }
}
