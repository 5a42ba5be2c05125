//! The private pools to which allocations go now.

use std::cell::Cell;

use tenure_core::StreamId;

use super::pool::COMMON;
use crate::{PoolUse, StreamFilter};

/// The private pools to which allocations on some streams go now.
#[derive(Default)]
pub(crate) struct Captures {
    /// These pools, the one begun last at the end.
    underway: Vec<Underway>,
    /// The number of these pools that are used for captures.
    capturing: usize,
    /// Pools whose free blocks any allocation may use before it fails for lack of memory, by index.
    pub(super) overflow: Vec<usize>,
}

/// A private pool, by index, to which allocations on the filter's streams go.
struct Underway {
    owner: usize,
    purpose: PoolUse,
    filter: StreamFilter,
}

impl Captures {
    /// Returns whether a stream may be capturing: no stream must be queried or awaited then. (PyTorch 2.11 takes every
    /// use of a private pool for a capture.)
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.capturing > 0
    }

    /// Returns whether `stream` is captured.
    pub(super) fn is_captured(&self, stream: StreamId) -> bool {
        let mut captures = self.underway.iter().filter(|underway| underway.purpose == PoolUse::Capture);
        captures.any(|underway| (underway.filter)(stream))
    }

    /// Returns whether allocations on `stream` go to a private pool.
    pub(crate) fn diverts(&self, stream: StreamId) -> bool {
        self.owner_for(stream) != COMMON
    }

    /// Returns the number of private pools that allocations go to.
    pub(crate) fn underway(&self) -> usize {
        self.underway.len()
    }

    /// Returns whether allocations on some stream go to a private pool, given by index.
    pub(super) fn is_underway(&self, owner: usize) -> bool {
        self.underway.iter().any(|underway| underway.owner == owner)
    }

    /// Returns the index of the pools that an allocation on `stream` goes to.
    #[inline]
    pub(super) fn owner_for(&self, stream: StreamId) -> usize {
        let latest = self.underway.iter().rev().find(|underway| (underway.filter)(stream));
        latest.filter(|_| !is_calling()).map_or(COMMON, |underway| underway.owner)
    }

    /// Sends allocations on the filter's streams to the pool with index `owner`.
    pub(super) fn begin(&mut self, owner: usize, purpose: PoolUse, filter: StreamFilter) {
        self.underway.push(Underway { owner, purpose, filter });
        self.count_captures();
    }

    /// Stops sending allocations to a pool. Returns whether any were sent there.
    pub(super) fn end(&mut self, owner: usize) -> bool {
        let before = self.underway.len();
        self.underway.retain(|underway| underway.owner != owner);
        self.count_captures();
        self.underway.len() < before
    }

    /// Changes the use of a pool that allocations go to.
    pub(super) fn set_use(&mut self, owner: usize, purpose: PoolUse) {
        if let Some(underway) = self.underway.iter_mut().find(|underway| underway.owner == owner) {
            underway.purpose = purpose;
        }
        self.count_captures();
    }

    fn count_captures(&mut self) {
        self.capturing = self.underway.iter().filter(|underway| underway.purpose == PoolUse::Capture).count();
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
pub(super) fn marked_as_calling<T>(call: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            CALLING.set(self.0);
        }
    }
    let _restore = Restore(CALLING.replace(true));
    call()
}
