//! Blocks: allocating and freeing them, and finding the device of one.

use std::ffi::{c_int, c_void};
use std::ptr;

use tenure_alloc::{Address, AllocError, Request};
use tenure_core::{Purpose, StreamId};
use tenure_device::allocation_clock::AllocationClock;
use tenure_device::memory::MemoryError;
use tenure_device::{exchange, zero_copy};

use super::devices::device;
use super::object::Object;
use crate::device::OpenDevice;
use crate::failure::{Failure, Status, guarded};
use crate::stream_id;

pub(super) unsafe extern "C" fn allocate(
    number: c_int,
    bytes: usize,
    stream: *mut c_void,
    context: Object,
    address: *mut *mut c_void,
) -> Status {
    guarded(|| {
        let device = device(number)?;
        let stream = stream_id(stream);
        if let Some(lent) = exchange::take_lent(device.memory.device(), bytes) {
            // SAFETY: by the header, a place to write to.
            unsafe { address.write(lent.cast()) };
            return Ok(());
        }
        AllocationClock::of(device.memory.device()).allocate(bytes);
        // SAFETY: by the header, a stream of the device.
        unsafe { device.adopt(stream) };
        let (tag, key) = Purpose::current();
        let request = Request::new(bytes as u64, stream).with_tag(tag).with_key(key);
        let _context = context.enter();
        let data = match device.memory.allocate(request) {
            Ok(block) => ptr::without_provenance_mut(block.address as usize),
            Err(error) => overflow(device, bytes, stream, error)?,
        };
        // SAFETY: by the header, a place to write to.
        unsafe { address.write(data) };
        Ok(())
    })
}

pub(super) extern "C" fn free(address: *mut c_void, context: Object) -> Status {
    guarded(|| {
        let _context = context.enter();
        if exchange::release(address.addr()) {
            return Ok(());
        }
        let address = address.addr() as Address;
        on_owner(address, |device| device.memory.free(address))
    })
}

pub(super) unsafe extern "C" fn record_stream(address: *mut c_void, stream: *mut c_void) -> Status {
    guarded(|| {
        let address = address.addr() as Address;
        let stream = stream_id(stream);
        let recorded = on_owner(address, |device| {
            // SAFETY: by the header, a stream of the block's device. Other devices only remember its name.
            unsafe { device.adopt(stream) };
            device.memory.record_stream(address, stream)
        });
        // Few blocks are zero-copy memory, which no device owns.
        if recorded.is_err() && zero_copy::record_stream(address, stream) { Ok(()) } else { recorded }
    })
}

pub(super) unsafe extern "C" fn block(address: *mut c_void, number: *mut c_int, bytes: *mut usize) -> Status {
    guarded(|| {
        let address = address.addr() as Address;
        on_owner(address, |device| {
            let block = device.memory.allocator().block(address).ok_or(AllocError::UnknownAddress(address))?;
            // SAFETY: by the header, places to write to.
            unsafe {
                number.write(device.memory.device().index().into());
                bytes.write(block.bytes as usize);
            }
            Ok(())
        })
    })
}

pub(super) unsafe extern "C" fn extent(address: *mut c_void, first: *mut *mut c_void, bytes: *mut usize) -> Status {
    guarded(|| {
        let address = address.addr() as Address;
        on_owner(address, |device| {
            let extent = device.memory.allocator().extent(address);
            let (start, length) = extent.ok_or(AllocError::UnknownAddress(address))?;
            // SAFETY: by the header, places to write to.
            unsafe {
                first.write(ptr::without_provenance_mut(start as usize));
                bytes.write(length as usize);
            }
            Ok(())
        })
    })
}

pub(super) type ContextVisit = unsafe extern "C" fn(*mut c_void, *mut c_void);

pub(super) unsafe extern "C" fn context(address: *mut c_void, visit: ContextVisit, user: *mut c_void) -> Status {
    guarded(|| {
        let address = address.addr() as Address;
        on_owner(address, |device| {
            let allocator = device.memory.allocator();
            allocator.block(address).ok_or(AllocError::UnknownAddress(address))?;
            let context = allocator.history().context_of(address);
            // SAFETY: by the header, a function to call with this; the context lives until it has returned.
            unsafe { visit(user, Object::pointer_of(context.as_ref())) };
            Ok(())
        })
    })
}

pub(super) extern "C" fn annotate_block(address: *mut c_void, context: Object) -> Status {
    guarded(|| {
        let _context = context.enter();
        let address = address.addr() as Address;
        on_owner(address, |device| Ok(device.memory.allocator().annotate(address)?))
    })
}

/// Serves an allocation that found no room on the device from zero-copy memory, if a budget allows it.
#[cold]
fn overflow(device: &OpenDevice, bytes: usize, stream: StreamId, error: MemoryError) -> Result<*mut c_void, Failure> {
    match error {
        MemoryError::OutOfMemory(report) => match zero_copy::overflow(device.memory.device(), bytes, stream) {
            Some(storage) => Ok(exchange::give(storage).cast()),
            None => Err(Failure::OutOfMemoryInPytorch(report)),
        },
        other => Err(other.into()),
    }
}

/// Runs `call` on the device that owns `address`. If no range of addresses tells, asks one device after the other.
#[inline]
fn on_owner(address: Address, call: impl Fn(&OpenDevice) -> Result<(), MemoryError>) -> Result<(), Failure> {
    if let Some((_, owner)) = OpenDevice::all().find(|(_, device)| device.memory.owns(address)) {
        return Ok(call(owner)?);
    }
    for (_, device) in OpenDevice::all() {
        match call(device) {
            Err(MemoryError::Allocator(AllocError::UnknownAddress(_))) => {}
            result => return Ok(result?),
        }
    }
    Err(AllocError::UnknownAddress(address).into())
}
