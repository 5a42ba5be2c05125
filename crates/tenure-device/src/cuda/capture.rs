//! What driver calls must know of stream capture, by which other code records its launches into a graph.

use cudarc::driver::sys::{self, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus};

use super::error::check;
use crate::ErrorKind;

/// Whether what is put on a known stream is captured and does not run. Also of the null stream while a stream that
/// waits for it is captured.
pub(super) fn is_captured(stream: CUstream) -> Result<bool, ErrorKind> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: `status` is writable, and the caller knows the stream.
    match unsafe { sys::cuStreamIsCapturing(stream, &mut status) } {
        CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
        code => check(code).map(|()| status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
    }
}

/// While it lives, this thread may make calls that would end a capture by another thread, or by itself. c10's
/// `CUDAStreamCaptureModeGuard`.
pub(super) struct RelaxedCapture {
    before: CUstreamCaptureMode,
}

impl RelaxedCapture {
    pub(super) fn enter() -> Result<Self, ErrorKind> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` is writable.
        check(unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) })?;
        Ok(Self { before: mode })
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: the field is writable, and holds a mode that the driver gave.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.before) };
    }
}
