//! Tests of allocations while a stream is captured into a graph, which forbids most driver calls.

use std::ptr;

use cudarc::driver::sys::{self, CUcontext, CUresult, CUstream, CUstreamCaptureMode};
use tenure_alloc::{PoolId, PoolUse, Request};
use tenure_core::StreamId;
use tenure_device::memory::{DeviceMemory, MemoryConfig};
use tenure_device::pinned::{PinnedConfig, PinnedPool};
use tenure_device::{CopyCalls, Priority, StreamCalls};

use crate::common::device;

const MIB: u64 = 1 << 20;
const POOL: PoolId = PoolId(0, 1);

fn checked(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

/// Binds the primary context of device 0 to this thread, for calls that bypass the driver under test.
fn bind_primary_context() {
    let mut context: CUcontext = ptr::null_mut();
    // SAFETY: `context` is writable, and the driver under test has started the device.
    checked(unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, 0) });
    // SAFETY: the context is retained, and never released.
    checked(unsafe { sys::cuCtxSetCurrent(context) });
}

/// Captures the work that `body` submits to `stream`, in the mode that forbids the most calls.
fn capture(stream: StreamId, body: impl FnOnce()) {
    let raw = stream.0 as CUstream;
    // SAFETY: the stream is the driver's, and alive.
    checked(unsafe { sys::cuStreamBeginCapture_v2(raw, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL) });
    body();
    let mut graph = ptr::null_mut();
    // SAFETY: the stream is being captured, and `graph` is writable. The call fails if a forbidden call ended the
    // capture.
    checked(unsafe { sys::cuStreamEndCapture(raw, &mut graph) });
    assert!(!graph.is_null());
    // SAFETY: the capture just made the graph, and nothing uses it.
    checked(unsafe { sys::cuGraphDestroy(graph) });
}

#[test]
fn memory_allocated_during_a_capture_leaves_it_valid() {
    let Some(device) = device() else { return };
    bind_primary_context();
    for policy in ["paged", "native", "expandable"] {
        let config = MemoryConfig { policy: policy.parse().unwrap(), ..MemoryConfig::default() };
        let memory = DeviceMemory::new(device.shared(), config).unwrap();
        let stream = device.create_stream(Priority::Default).unwrap();
        memory.allocator().begin_pool(POOL, PoolUse::Capture, Box::new(move |asked| asked == stream)).unwrap();
        let mut blocks = Vec::new();
        capture(stream, || {
            for bytes in [512, 3 * MIB, 40 * MIB] {
                let block = memory.allocate(Request::new(bytes, stream)).unwrap();
                device.memset(block.address, 1, bytes, stream).unwrap();
                blocks.push(block.address);
            }
        });
        memory.allocator().end_pool(POOL).unwrap();
        blocks.into_iter().for_each(|address| memory.free(address).unwrap());
        memory.allocator().release_pool(POOL).unwrap();
        memory.allocator().release_cached().unwrap();
        assert_eq!(memory.backing().held_bytes(), 0, "{policy}");
        drop(memory);
        device.destroy_stream(stream).unwrap();
    }
}

#[test]
fn memory_pinned_during_a_capture_leaves_it_valid() {
    let Some(device) = device() else { return };
    bind_primary_context();
    let pool = PinnedPool::new(device.shared(), PinnedConfig::new(64 * MIB));
    let stream = device.create_stream(Priority::Default).unwrap();
    capture(stream, || drop(pool.allocate(4 << 20).unwrap()));
    device.destroy_stream(stream).unwrap();
}
