//! Other devices and processes.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;
use std::{ptr, slice};

use tenure_alloc::Address;
use tenure_core::Device as DeviceId;
use tenure_device::memory::ImportedBlock;
use tenure_device::share::ShareError;

use super::devices::device;
use crate::device::Device;
use crate::failure::{Failure, Status, guarded};

pub(super) type Tell = unsafe extern "C" fn(*mut c_void, *const c_char, usize);
pub(super) type Imported = ImportedBlock<'static>;

/// Runs a wait for another process.
type AroundWait = fn(&mut (dyn FnMut() + Send));

static AROUND_WAIT: OnceLock<AroundWait> = OnceLock::new();

/// Has waits for other processes run by `around`, which must call what it is given: PyTorch holds Python's lock when it
/// opens a block, and who embeds this in Python can let go of it meanwhile. The first call counts.
pub fn run_waits_in(around: AroundWait) {
    AROUND_WAIT.get_or_init(|| around);
}

/// The value of `wait`, which is run around if that was asked for.
fn waited<T: Send>(mut wait: impl FnMut() -> T + Send) -> T {
    let mut value = None;
    if let Some(around) = AROUND_WAIT.get() {
        around(&mut || value = Some(wait()));
    }
    value.unwrap_or_else(wait)
}

pub(super) extern "C" fn enable_peer(number: c_int, peer: c_int) -> Status {
    guarded(|| {
        let peer = u8::try_from(peer).map_err(|_| Failure::NotOpen { device: peer })?;
        Ok(device(number)?.memory.enable_peer(DeviceId::cuda(peer))?)
    })
}

pub(super) unsafe extern "C" fn share(
    address: *mut c_void,
    offset: *mut usize,
    tell: Tell,
    user: *mut c_void,
) -> Status {
    guarded(|| {
        let address = address.addr() as Address;
        // Those that do not have the block say so.
        let shared = Device::all().map(|(_, device)| device.memory.share(address));
        let answer =
            shared.reduce(
                |earlier, next| if matches!(earlier, Err(ShareError::NotShareable { .. })) { next } else { earlier },
            );
        let shared = answer.unwrap_or(Err(ShareError::NotShareable { address }))?;
        // SAFETY: by the header, a place to write to, and a function with its object.
        unsafe {
            offset.write(shared.offset as usize);
            tell(user, shared.handle.as_ptr().cast(), shared.handle.len());
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
        // SAFETY: by the header, so many bytes.
        let handle = unsafe { slice::from_raw_parts(handle.cast::<u8>(), bytes) };
        let memory = device(number)?.memory;
        let block = waited(|| memory.open(handle))?;
        // SAFETY: by the header, places to write to.
        unsafe {
            address.write(ptr::without_provenance_mut(block.address() as usize));
            imported.write(Box::into_raw(Box::new(block)));
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn close_shared(imported: *mut Imported) {
    // A defect is told with the next failure; there is nobody to tell of it here.
    let _ = guarded(|| {
        // SAFETY: by the header, one that `open_shared` made of a box, and that is not used again.
        drop(unsafe { Box::from_raw(imported) });
        Ok(())
    });
}
