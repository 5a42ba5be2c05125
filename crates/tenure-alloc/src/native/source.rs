//! Segments from a program's own allocator ([`PoolSource`]), which is called without the lock: it may allocate here itself.

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::MutexGuard;
use tenure_core::StreamId;

use super::engine::{Engine, Wanted};
use crate::{Address, BackingError, PoolSource};

/// An engine behind a lock that can be let go of for a while.
pub(crate) trait Locked {
    fn engine(&mut self) -> &mut Engine;

    /// What `call` returns, with the lock let go of meanwhile.
    fn unlocked<T>(&mut self, call: impl FnOnce() -> T) -> T;
}

impl Locked for MutexGuard<'_, Engine> {
    fn engine(&mut self) -> &mut Engine {
        self
    }

    fn unlocked<T>(&mut self, call: impl FnOnce() -> T) -> T {
        MutexGuard::unlocked(self, call)
    }
}

/// A segment that is no longer there, to go back where it came from.
pub(super) struct Returned {
    pub(super) source: Arc<dyn PoolSource>,
    pub(super) address: Address,
    pub(super) bytes: u64,
    pub(super) stream: StreamId,
}

/// What `search` finds for `wanted`, whose pool is there all the while, although the lock may be let go of. Sources get
/// back what was released on the way, found or not.
pub(super) fn keeping_pool<L: Locked, T>(locked: &mut L, wanted: &Wanted, search: impl FnOnce(&mut L) -> T) -> T {
    locked.engine().pools.pair_mut(wanted.pool.owner).searches += 1;
    let found = search(locked);
    give_back(locked);
    locked.engine().pools.pair_mut(wanted.pool.owner).searches -= 1;
    found
}

/// A segment of `bytes` bytes from the pool's source.
pub(super) fn allocate(
    locked: &mut impl Locked,
    source: &dyn PoolSource,
    bytes: u64,
    wanted: &Wanted,
) -> Result<Address, BackingError> {
    let stream = wanted.request.stream;
    locked.unlocked(|| calling(|| source.allocate(bytes, stream)))
}

/// Gives sources what was released of theirs.
pub(crate) fn give_back(locked: &mut impl Locked) {
    let returned = std::mem::take(&mut locked.engine().returned);
    if !returned.is_empty() {
        let free = |it: Returned| it.source.free(it.address, it.bytes, it.stream);
        locked.unlocked(|| calling(|| returned.into_iter().for_each(free)));
    }
}

thread_local! {
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in a call of a source: what that allocates here must not be sent to the pool that it is for,
/// which would ask the source again.
pub(super) fn is_calling() -> bool {
    CALLING.get()
}

fn calling<T>(call: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            CALLING.set(self.0);
        }
    }
    let _restore = Restore(CALLING.replace(true));
    call()
}
