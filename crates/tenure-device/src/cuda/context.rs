//! The primary context of a device, and which context a thread has.

use std::ptr;

use cudarc::driver::sys::{self, CUcontext, CUdevice};

use super::error::check;
use crate::ErrorKind;

/// The primary context of a device, retained for good.
pub(super) struct PrimaryContext(CUcontext);

// SAFETY: a context is a name, which any thread may bind; the driver guards what is behind it.
unsafe impl Send for PrimaryContext {}
// SAFETY: as above.
unsafe impl Sync for PrimaryContext {}

impl PrimaryContext {
    /// Retains the primary context of `device`; starts it, if nobody in the process did before.
    pub(super) fn retain(device: CUdevice) -> Result<Self, ErrorKind> {
        let mut context = ptr::null_mut();
        // SAFETY: `context` is writable; the driver is started, since there is a device.
        check(unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        Ok(Self(context))
    }

    /// The driver's name for it.
    pub(super) fn raw(&self) -> CUcontext {
        self.0
    }

    /// Makes this the context of the calling thread for as long as the value lives.
    pub(super) fn bind(&self) -> Result<Bound, ErrorKind> {
        let mut current = ptr::null_mut();
        // SAFETY: `current` is writable.
        check(unsafe { sys::cuCtxGetCurrent(&mut current) })?;
        if current == self.0 {
            return Ok(Bound { previous: None });
        }
        // SAFETY: the context is retained, so it is alive.
        check(unsafe { sys::cuCtxSetCurrent(self.0) })?;
        Ok(Bound { previous: Some(current) })
    }
}

/// While it lives, the thread has the primary context; then what it had before.
pub(super) struct Bound {
    /// What to go back to, null for no context; `None` if the thread had the primary context already.
    previous: Option<CUcontext>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(previous) = self.previous {
            // SAFETY: the thread had this context, or none, a moment ago. Should another thread have destroyed it since,
            // the driver says so, and the thread is left with the primary context.
            let _ = unsafe { sys::cuCtxSetCurrent(previous) };
        }
    }
}
