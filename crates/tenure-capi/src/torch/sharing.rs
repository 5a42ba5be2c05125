//! Memory that other devices or other processes use.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;
use std::{ptr, slice};

use tenure_alloc::Address;
use tenure_core::Device;
use tenure_device::memory::ImportedBlock;
use tenure_device::share::ShareError;

use super::devices::device;
use crate::device::OpenDevice;
use crate::failure::{Failure, Status, guarded};

/// A C function to call with its object and the bytes of a handle.
pub(super) type HandleVisit = unsafe extern "C" fn(*mut c_void, *const c_char, usize);
pub(super) type Imported = ImportedBlock<'static>;

/// A function that runs the closure it is given, which waits for another process. It must call the closure.
type AroundWait = fn(&mut (dyn FnMut() + Send));

static AROUND_WAIT: OnceLock<AroundWait> = OnceLock::new();

/// Makes `around` run each wait for another process; it must call the closure it is given. PyTorch holds Python's lock
/// when it opens a block, and a program that embeds Python can release the lock during the wait. Only the first call
/// has an effect.
pub fn run_waits_in(around: AroundWait) {
    AROUND_WAIT.get_or_init(|| around);
}

/// Runs `wait`, inside the function of [`run_waits_in`] if there is one, and returns its value.
fn run_wait<T: Send>(mut wait: impl FnMut() -> T + Send) -> T {
    let mut value = None;
    if let Some(around) = AROUND_WAIT.get() {
        around(&mut || value = Some(wait()));
    }
    value.unwrap_or_else(wait)
}

pub(super) extern "C" fn enable_peer(number: c_int, peer: c_int) -> Status {
    guarded(|| {
        let peer = u8::try_from(peer).map_err(|_| Failure::NotOpen { device: peer })?;
        Ok(device(number)?.memory.enable_peer(Device::cuda(peer))?)
    })
}

pub(super) unsafe extern "C" fn share(
    address: *mut c_void,
    offset: *mut usize,
    visit: HandleVisit,
    user: *mut c_void,
) -> Status {
    guarded(|| {
        let address = address.addr() as Address;
        // A device that does not have the block answers `NotShareable`.
        let mut shared = Err(ShareError::NotShareable { address });
        for (_, device) in OpenDevice::all() {
            shared = device.memory.share(address);
            if !matches!(shared, Err(ShareError::NotShareable { .. })) {
                break;
            }
        }
        let shared = shared?;
        // SAFETY: by the header, a place to write to, and a function with its object.
        unsafe {
            offset.write(shared.offset as usize);
            visit(user, shared.handle.as_ptr().cast(), shared.handle.len());
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn open_shared(
    number: c_int,
    handle: *const c_char,
    bytes: usize,
    address: *mut *mut c_void,
    imported: *mut *mut Imported,
) -> Status {
    guarded(|| {
        // SAFETY: by the header, this many bytes.
        let handle = unsafe { slice::from_raw_parts(handle.cast::<u8>(), bytes) };
        let memory = device(number)?.memory;
        let block = run_wait(|| memory.open(handle))?;
        // SAFETY: by the header, places to write to.
        unsafe {
            address.write(ptr::without_provenance_mut(block.address() as usize));
            imported.write(Box::into_raw(Box::new(block)));
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn close_shared(imported: *mut Imported) {
    // The caller gets no status: a panic is only kept as this thread's last error.
    let _ = guarded(|| {
        // SAFETY: by the header, `open_shared` made it from a box, and it is not used again.
        drop(unsafe { Box::from_raw(imported) });
        Ok(())
    });
}
