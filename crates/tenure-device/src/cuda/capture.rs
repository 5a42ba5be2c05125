//! Stream capture, by which other code records its launches into a graph, and how it affects driver calls.

use std::ptr;

use cudarc::driver::sys::{
    self, CUgraph, CUgraphNodeType, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::error::check;
use crate::ErrorKind;

/// Returns whether work submitted to a known stream is captured and does not run. This includes the null stream while a
/// stream that waits for it is captured.
pub(super) fn is_captured(stream: CUstream) -> Result<bool, ErrorKind> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: `status` is writable, and the caller knows the stream.
    match unsafe { sys::cuStreamIsCapturing(stream, &mut status) } {
        CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
        code => check(code).map(|()| status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
    }
}

/// Returns the number of kernels in a newly captured graph.
pub(super) fn kernels(graph: CUgraph) -> Result<usize, ErrorKind> {
    let mut count = 0;
    // SAFETY: the caller knows the graph; with a null pointer, the call only counts the nodes.
    check(unsafe { sys::cuGraphGetNodes(graph, ptr::null_mut(), &mut count) })?;
    if count == 0 {
        return Ok(0);
    }
    let mut nodes = vec![ptr::null_mut(); count];
    // SAFETY: there is room for as many nodes as the graph has.
    check(unsafe { sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) })?;
    let mut kernels = 0;
    for node in nodes {
        let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        // SAFETY: the node is the graph's, and `kind` is writable.
        check(unsafe { sys::cuGraphNodeGetType(node, &mut kind) })?;
        kernels += usize::from(kind == CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL);
    }
    Ok(kernels)
}

/// A guard that lets this thread make calls that would otherwise end a capture by this or another thread. The same as
/// c10's `CUDAStreamCaptureModeGuard`.
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
        // SAFETY: the field is writable, and holds a mode that the driver returned.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.before) };
    }
}
