//! Private pools of memory.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use tenure_alloc::{Address, BackingError, PoolCheckpoint, PoolId, PoolSource, PoolUse};
use tenure_core::StreamId;

use super::devices::device;
use super::object::Object;
use crate::failure::{Status, guarded};

/// `tenure_pool` of `tenure_torch.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct CPool {
    first: u64,
    second: u64,
}

/// `tenure_pool_source`: C functions that allocate and free the memory of a pool.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CPoolSource {
    user: Object,
    allocate: unsafe extern "C" fn(*mut c_void, usize, *mut c_void) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut c_void),
}

/// A C function to call with its object and an address.
pub(super) type AddressVisit = unsafe extern "C" fn(*mut c_void, *mut c_void);
/// A C function to call with its object and a stream. Returns whether the stream allocates from the pool.
pub(super) type StreamFilter = unsafe extern "C" fn(*mut c_void, *mut c_void) -> bool;

impl CPool {
    /// The memory outside of private pools.
    pub(super) const COMMON: Self = Self { first: 0, second: 0 };
}

impl From<CPool> for PoolId {
    fn from(pool: CPool) -> Self {
        Self(pool.first, pool.second)
    }
}

impl From<PoolId> for CPool {
    fn from(pool: PoolId) -> Self {
        Self { first: pool.0, second: pool.1 }
    }
}

pub(super) unsafe extern "C" fn create_pool(number: c_int, pool: CPool, source: *mut CPoolSource) -> Status {
    guarded(|| {
        // SAFETY: by the header, null, or a source whose object is handed over.
        let source = (!source.is_null()).then(|| Arc::new(unsafe { source.read() }) as Arc<dyn PoolSource>);
        Ok(device(number)?.memory.allocator().create_pool(pool.into(), source)?)
    })
}

pub(super) extern "C" fn release_pool(number: c_int, pool: CPool) -> Status {
    guarded(|| Ok(device(number)?.memory.allocator().release_pool(pool.into())?))
}

pub(super) unsafe extern "C" fn pool_uses(number: c_int, pool: CPool, uses: *mut usize) -> Status {
    guarded(|| {
        let count = device(number)?.memory.allocator().pool_uses(pool.into());
        // SAFETY: by the header, a place to write to.
        unsafe { uses.write(count) };
        Ok(())
    })
}

pub(super) extern "C" fn begin_pool(
    number: c_int,
    pool: CPool,
    captures: bool,
    filter: StreamFilter,
    user: Object,
) -> Status {
    guarded(|| {
        // SAFETY: the filter was handed over with its object, which lives as long as this closure.
        let filter = Box::new(move |stream: StreamId| unsafe { filter(user.pointer(), pointer(stream.0)) });
        Ok(device(number)?.memory.allocator().begin_pool(pool.into(), pool_use(captures), filter)?)
    })
}

pub(super) extern "C" fn set_capturing(number: c_int, pool: CPool, captures: bool) -> Status {
    guarded(|| {
        device(number)?.memory.allocator().set_pool_use(pool.into(), pool_use(captures));
        Ok(())
    })
}

pub(super) extern "C" fn end_pool(number: c_int, pool: CPool) -> Status {
    guarded(|| Ok(device(number)?.memory.allocator().end_pool(pool.into())?))
}

pub(super) extern "C" fn use_pool_on_oom(number: c_int, pool: CPool, on: bool) -> Status {
    guarded(|| Ok(device(number)?.memory.allocator().use_pool_on_oom(pool.into(), on)?))
}

pub(super) extern "C" fn set_no_split(number: c_int, pool: CPool) -> Status {
    guarded(|| Ok(device(number)?.memory.allocator().set_no_split(pool.into())?))
}

pub(super) extern "C" fn release_cached(number: c_int, pool: CPool, context: Object) -> Status {
    guarded(|| {
        let _context = context.enter();
        Ok(device(number)?.memory.allocator().release_cached_in(pool.into())?)
    })
}

pub(super) unsafe extern "C" fn live_blocks(
    number: c_int,
    pool: CPool,
    visit: AddressVisit,
    user: *mut c_void,
) -> Status {
    guarded(|| {
        let blocks = device(number)?.memory.allocator().live_blocks(pool.into())?;
        // SAFETY: by the header, a function and its object.
        unsafe { visit_all(&blocks, visit, user) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn checkpoint(number: c_int, pool: CPool, target: *mut *mut PoolCheckpoint) -> Status {
    guarded(|| {
        let checkpoint = device(number)?.memory.allocator().checkpoint(pool.into())?;
        // SAFETY: by the header, a place to write to.
        unsafe { target.write(Box::into_raw(Box::new(checkpoint))) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn drop_checkpoint(checkpoint: *mut PoolCheckpoint) {
    // SAFETY: by the header, `checkpoint` made it from a box, and it is not used again.
    drop(unsafe { Box::from_raw(checkpoint) });
}

pub(super) unsafe extern "C" fn restore(
    number: c_int,
    checkpoint: *const PoolCheckpoint,
    freed: AddressVisit,
    allocated: AddressVisit,
    user: *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: by the header, a checkpoint.
        let restored = device(number)?.memory.allocator().restore(unsafe { &*checkpoint })?;
        // SAFETY: by the header, functions and their object.
        unsafe {
            visit_all(&restored.freed, freed, user);
            visit_all(&restored.allocated, allocated, user);
        }
        Ok(())
    })
}

impl PoolSource for CPoolSource {
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<Address, BackingError> {
        // SAFETY: the function was handed over with its object.
        let address = unsafe { (self.allocate)(self.user.pointer(), bytes as usize, pointer(stream.0)) };
        if address.is_null() {
            return Err(BackingError::OutOfMemory { call: "allocate of the pool's source", requested: bytes, free: 0 });
        }
        Ok(address.addr() as Address)
    }

    fn free(&self, address: Address, bytes: u64, stream: StreamId) {
        // SAFETY: the function was handed over with its object.
        unsafe { (self.free)(self.user.pointer(), pointer(address), bytes as usize, pointer(stream.0)) }
    }
}

/// Calls `visit` with each address.
///
/// # Safety
/// `visit` may be called with `user`.
unsafe fn visit_all(addresses: &[Address], visit: AddressVisit, user: *mut c_void) {
    // SAFETY: by the function's contract.
    addresses.iter().for_each(|&address| unsafe { visit(user, pointer(address)) });
}

/// Converts an address or a stream's handle to C's form.
fn pointer(value: u64) -> *mut c_void {
    ptr::without_provenance_mut(value as usize)
}

/// Converts C's form of a pool's use.
fn pool_use(captures: bool) -> PoolUse {
    if captures { PoolUse::Capture } else { PoolUse::Eager }
}
