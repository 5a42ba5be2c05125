//! The primary context of a device, and binding it to a thread.

use std::ptr;

use cudarc::driver::sys::{self, CUcontext, CUdevice};

use super::error::check;
use crate::ErrorKind;

/// The primary context of a device, retained until the process ends.
pub(super) struct PrimaryContext(CUcontext);

// SAFETY: a context is a handle that any thread may bind; the driver synchronises access to what it refers to.
unsafe impl Send for PrimaryContext {}
// SAFETY: see `Send`.
unsafe impl Sync for PrimaryContext {}

impl PrimaryContext {
    /// Retains the primary context of `device`, and creates it if it does not exist yet.
    pub(super) fn retain(device: CUdevice) -> Result<Self, ErrorKind> {
        let mut context = ptr::null_mut();
        // SAFETY: `context` is writable; the driver is started, because there is a device.
        check(unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        Ok(Self(context))
    }

    /// Returns the driver's handle of the context.
    pub(super) fn raw(&self) -> CUcontext {
        self.0
    }

    /// Makes this the calling thread's context for as long as the returned value lives.
    pub(super) fn bind(&self) -> Result<BoundContext, ErrorKind> {
        let mut current = ptr::null_mut();
        // SAFETY: `current` is writable.
        check(unsafe { sys::cuCtxGetCurrent(&mut current) })?;
        if current == self.0 {
            return Ok(BoundContext { previous: None });
        }
        // SAFETY: the context is retained, so it is alive.
        check(unsafe { sys::cuCtxSetCurrent(self.0) })?;
        Ok(BoundContext { previous: Some(current) })
    }
}

/// A guard for a context that is bound to a thread: on drop, on the same thread, it restores the one before.
pub struct BoundContext {
    /// The context to restore, null for none; `None` if the thread had the primary context already.
    previous: Option<CUcontext>,
}

impl Drop for BoundContext {
    fn drop(&mut self) {
        if let Some(previous) = self.previous {
            // SAFETY: the thread had this context, or none, a moment ago. If another thread has destroyed it since, the
            // driver returns an error, and the thread keeps the primary context.
            let _ = unsafe { sys::cuCtxSetCurrent(previous) };
        }
    }
}
