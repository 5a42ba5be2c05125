//! The state that an engine's handles share: its memory, its mover, its options and its ledger. Steps that are known to
//! fit into the budget go unwatched here: the front end reports nothing of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use tenure_plan::Planner;
use tenure_plan::planner::PlannerOptions;
use tenure_tier::{Destination, Mover};

use crate::clock::HostTime;
use crate::course::Course;
use crate::error::OffloadError;
use crate::identity::{Signature, TensorId};
use crate::layout::Layout;
use crate::ledger::Ledger;
use crate::machine::{Memory, SpillLink};
use crate::pace::PacedFrontEnd;
use crate::place::{OffloadTensor, TensorOwner};

/// Settings of an [`Engine`](crate::Engine).
pub struct EngineOptions {
    /// The size in bytes below which saved tensors stay in memory.
    pub min_tensor_bytes: u64,
    /// The destinations of spills, the fastest first. A plan counts tiers from the memory of the budget, which is tier 0:
    /// link `n` leads to tier `n + 1`.
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
    /// The front end whose program's allocations are counted: see
    /// [`Engine::count_allocations`](crate::Engine::count_allocations).
    pub(crate) paced: OnceLock<Arc<dyn PacedFrontEnd>>,
    /// See [`Engine::set_strict`](crate::Engine::set_strict).
    pub(crate) is_strict: AtomicBool,
    /// See [`Engine::set_may_exceed`](crate::Engine::set_may_exceed).
    pub(crate) may_exceed: AtomicBool,
    /// See [`Engine::move_all`](crate::Engine::move_all).
    pub(crate) moves_all: AtomicBool,
    /// The memory's limit in bytes, as it was set last. Setting it gives back cached memory, so the same limit is not
    /// set again.
    pub(crate) limit: Mutex<Option<u64>>,
    pub(crate) ledger: Mutex<Ledger>,
    pub(crate) layout: Mutex<Layout>,
}

impl Drop for EngineInner {
    fn drop(&mut self) {
        // The allocator reports a failure. Another engine's limit stays.
        let _ = self.set_limit(None);
    }
}

impl TensorOwner for EngineInner {
    fn remove(&self, id: TensorId) -> Option<OffloadTensor> {
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

    /// Lifts the limit until the next step begins, if the budget may be exceeded. Returns whether there is
    /// no limit now.
    pub(crate) fn lift_limit(&self) -> bool {
        self.may_exceed.load(Ordering::Relaxed) && self.set_limit(None).is_ok()
    }

    /// Returns the bytes that are allocated of the memory now.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.memory.statistics().all.allocated_bytes.current
    }

    /// Calls `wait`, and adds its time to the stalled time of the step's report.
    pub(crate) fn stalled<T>(&self, wait: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let waited = wait();
        self.ledger.lock().report.stalled += since.elapsed();
        waited
    }

    /// Returns the course of an unwatched step, if the step is known to fit by its signature or by steps of other
    /// sizes.
    pub(crate) fn unwatched(&self, signature: Signature) -> Option<Course> {
        self.wake.lock().as_ref()?;
        let room_bytes = self.unwatched_bytes()?;
        let allocated_bytes = self.allocated_bytes();
        let ledger = self.ledger.lock();
        let is_too_much = ledger.out_of_room.contains(&signature.id) || ledger.peaks.is_too_much(signature);
        if is_too_much || !ledger.residents.is_empty() {
            return None;
        }
        let taken_bytes = match ledger.steps.measured(signature) {
            Some(profiled) => profiled.profile.plain_bytes(),
            None => allocated_bytes + ledger.peaks.predict(signature)?,
        };
        let fits = taken_bytes + self.memory.slack_bytes() <= room_bytes;
        fits.then_some(Course::Unwatched { allocated_bytes })
    }

    /// Returns the memory limit of an unwatched step in bytes: three quarters of the engine's.
    pub(crate) fn unwatched_bytes(&self) -> Option<u64> {
        self.ledger.lock().limit_bytes().map(|bytes| bytes / 4 * 3)
    }

    /// Wakes the front end in an unwatched step, which then gets the whole budget. Returns whether the step was
    /// unwatched.
    pub(crate) fn wake(&self) -> Result<bool, OffloadError> {
        let mut ledger = self.ledger.lock();
        if !matches!(ledger.course, Course::Unwatched { .. }) {
            return Ok(false);
        }
        ledger.course = Course::Free;
        let signature = ledger.signature;
        let limit_bytes = ledger.limit_bytes();
        ledger.out_of_room.insert(signature.id);
        // The next step of this kind and size is watched.
        ledger.peaks.record_too_much(signature);
        drop(ledger);
        self.set_limit(limit_bytes)?;
        let wake = self.wake.lock().clone();
        if let Some(wake) = wake {
            wake();
        }
        Ok(true)
    }
}
