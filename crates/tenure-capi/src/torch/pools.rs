//! Private pools.

use std::ffi::{c_int, c_void};
use std::ptr;

use tenure_alloc::{PoolId, PoolUse};

use super::devices::device;
use super::object::Object;
use crate::failure::{Status, guarded};

/// `tenure_pool` of `tenure_torch.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Pool {
    first: u64,
    second: u64,
}

pub(super) type Filter = unsafe extern "C" fn(*mut c_void, *mut c_void) -> bool;

impl Pool {
    /// No private one.
    pub(super) const COMMON: Self = Self { first: 0, second: 0 };
}

impl From<Pool> for PoolId {
    fn from(pool: Pool) -> Self {
        Self(pool.first, pool.second)
    }
}

pub(super) extern "C" fn begin_pool(number: c_int, pool: Pool, filter: Filter, user: Object) -> Status {
    guarded(|| {
        // SAFETY: the filter was handed over with its object, which lives as long as this closure.
        let passes = move |stream: *mut c_void| unsafe { filter(user.pointer(), stream) };
        let filter =
            Box::new(move |stream: tenure_core::StreamId| passes(ptr::without_provenance_mut(stream.0 as usize)));
        Ok(device(number)?.memory.allocator().begin_pool(pool.into(), PoolUse::Capture, filter)?)
    })
}

pub(super) extern "C" fn end_pool(number: c_int, pool: Pool) -> Status {
    guarded(|| Ok(device(number)?.memory.allocator().end_pool(pool.into())?))
}

pub(super) extern "C" fn release_pool(number: c_int, pool: Pool) -> Status {
    guarded(|| Ok(device(number)?.memory.allocator().release_pool(pool.into())?))
}

pub(super) extern "C" fn release_cached(number: c_int, _pool: Pool, context: Object) -> Status {
    guarded(|| {
        let _context = context.enter();
        Ok(device(number)?.memory.allocator().release_cached()?)
    })
}
