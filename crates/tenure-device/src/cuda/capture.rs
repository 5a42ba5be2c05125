//! Calls that a capture of a stream into a graph forbids.

use cudarc::driver::sys::{self, CUstreamCaptureMode};

use super::error::check;
use crate::ErrorKind;

/// While it lives, this thread may make calls that are no part of any stream's work, such as `cuMemAlloc`, although a
/// stream is being captured: in the default mode they fail, and end the capture. PyTorch's
/// `CUDAStreamCaptureModeGuard`.
pub(super) struct RelaxedCapture {
    previous: CUstreamCaptureMode,
}

impl RelaxedCapture {
    pub(super) fn enter() -> Result<Self, ErrorKind> {
        exchange(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).map(|previous| Self { previous })
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // It worked a moment ago. Should it fail, the thread stays relaxed.
        let _ = exchange(self.previous);
    }
}

/// Sets how this thread takes captures; returns how it did before.
fn exchange(mut mode: CUstreamCaptureMode) -> Result<CUstreamCaptureMode, ErrorKind> {
    // SAFETY: `mode` is readable and writable, and the driver writes a mode to it.
    check(unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) })?;
    Ok(mode)
}
