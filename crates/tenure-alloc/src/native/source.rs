//! Segments from a program's own allocator ([`PoolSource`]). It is called without the lock, because it may allocate
//! here itself.

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::MutexGuard;
use tenure_core::StreamId;

use super::NativeState;
use super::engine::{Engine, Wanted};
use crate::accounts::Accounts;
use crate::{Address, BackingError, PoolSource};

/// An engine and its allocator's accounts, under a lock that can be released for a while.
pub(crate) trait Locked {
    /// Returns the engine and the accounts.
    fn engine(&mut self) -> (&mut Engine, &mut Accounts);

    /// Calls `call` with the lock released, and returns its result.
    fn unlocked<T>(&mut self, call: impl FnOnce() -> T) -> T;
}

impl Locked for MutexGuard<'_, NativeState> {
    fn engine(&mut self) -> (&mut Engine, &mut Accounts) {
        let NativeState { engine, accounts } = &mut **self;
        (engine, accounts)
    }

    fn unlocked<T>(&mut self, call: impl FnOnce() -> T) -> T {
        MutexGuard::unlocked(self, call)
    }
}

/// A segment that was released, to be given back to its source.
pub(super) struct Returned {
    pub(super) source: Arc<dyn PoolSource>,
    pub(super) address: Address,
    pub(super) bytes: u64,
    pub(super) stream: StreamId,
}

/// Runs `search` for `wanted`, and keeps the pool from being removed meanwhile: the search may release the lock. Then
/// gives the segments that the search released back to their sources, whether or not it succeeded.
pub(super) fn with_pool_kept<L: Locked, T>(locked: &mut L, wanted: &Wanted, search: impl FnOnce(&mut L) -> T) -> T {
    locked.engine().0.pools.pair_mut(wanted.pool.owner).searches += 1;
    let found = search(locked);
    give_back(locked);
    locked.engine().0.pools.pair_mut(wanted.pool.owner).searches -= 1;
    found
}

/// Allocates a segment of `bytes` bytes from the pool's source.
pub(super) fn allocate(
    locked: &mut impl Locked,
    source: &dyn PoolSource,
    bytes: u64,
    wanted: &Wanted,
) -> Result<Address, BackingError> {
    let stream = wanted.request.stream;
    locked.unlocked(|| marked_as_calling(|| source.allocate(bytes, stream)))
}

/// Gives sources back their released segments.
pub(crate) fn give_back(locked: &mut impl Locked) {
    let returned = std::mem::take(&mut locked.engine().0.returned);
    if !returned.is_empty() {
        locked.unlocked(|| {
            marked_as_calling(|| {
                for Returned { source, address, bytes, stream } in returned {
                    source.free(address, bytes, stream);
                }
            })
        });
    }
}

thread_local! {
    /// Whether this thread is in a call of a source.
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is in a call of a source. Its own allocations during the call must not go to the pool
/// that the call serves: that pool would call the source again.
pub(super) fn is_calling() -> bool {
    CALLING.get()
}

/// Calls `call`, during which [`is_calling`] returns `true` on this thread.
fn marked_as_calling<T>(call: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            CALLING.set(self.0);
        }
    }
    let _restore = Restore(CALLING.replace(true));
    call()
}
