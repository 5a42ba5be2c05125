//! Tests of memory, addresses and the order of work on them.

use std::sync::{Arc, Mutex};

use tenure_device::cuda::LaunchConfig;
use tenure_device::{
    AccessMode, Call, CopyCalls, ErrorKind, EventCalls, EventKind, MemoryCalls, Priority, StreamCalls,
};

use crate::common::{argument, device, kernel, map, mapped_chunk, read, spin, unmap};

#[test]
fn two_addresses_of_a_chunk_are_coherent_in_stream_order() {
    const ROUNDS: i32 = 1000;
    let Some(driver) = device() else { return };
    let compare = kernel(&driver, "compare");
    let bytes = driver.granularity();
    let stream = driver.create_stream(Priority::Default).unwrap();
    let (first, chunk) = mapped_chunk(&*driver, bytes);
    let second = map(&*driver, chunk, bytes, AccessMode::Read);
    let wrong = driver.malloc(4).unwrap();
    driver.memset(wrong, 0, 4, stream).unwrap();
    for round in 0..ROUNDS {
        let mut through = second;
        let mut expected = round % 251;
        let mut count = bytes as i32;
        let mut target = wrong;
        driver.memset(first, expected as u8, bytes, stream).unwrap();
        let mut arguments =
            [argument(&mut through), argument(&mut expected), argument(&mut count), argument(&mut target)];
        // SAFETY: the kernel takes an address, two ints and an address, and accesses only the chunk and the counter.
        unsafe { driver.launch(compare, LaunchConfig::linear(count as u32), stream, &mut arguments).unwrap() };
    }
    driver.synchronize_stream(stream).unwrap();
    assert_eq!(read(&*driver, wrong, 4), [0; 4]);
    unmap(&*driver, first, bytes);
    unmap(&*driver, second, bytes);
    driver.release(chunk).unwrap();
    driver.free(wrong).unwrap();
    driver.destroy_stream(stream).unwrap();
}

#[test]
fn mapping_calls_wait_for_no_kernel() {
    let Some(driver) = device() else { return };
    let stream = driver.create_stream(Priority::Default).unwrap();
    let bytes = driver.granularity();
    spin(&driver, stream, 200);
    let (address, chunk) = mapped_chunk(&*driver, bytes);
    unmap(&*driver, address, bytes);
    driver.release(chunk).unwrap();
    assert!(!driver.query_stream(stream).unwrap(), "the kernel should still run");
    driver.synchronize_stream(stream).unwrap();
    driver.destroy_stream(stream).unwrap();
}

#[test]
fn host_functions_run_in_stream_order_and_call_no_driver() {
    let Some(driver) = device() else { return };
    let stream = driver.create_stream(Priority::Low).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    for i in 0..100 {
        let order = Arc::clone(&order);
        let inner = tenure_device::cuda::platform().cuda_driver(0).unwrap();
        driver
            .host_function(
                stream,
                Box::new(move || order.lock().unwrap().push((i, inner.query_stream(stream).unwrap_err().kind))),
            )
            .unwrap();
    }
    driver.synchronize_stream(stream).unwrap();
    let expected: Vec<_> = (0..100).map(|i| (i, ErrorKind::CalledFromWork)).collect();
    assert_eq!(*order.lock().unwrap(), expected);
    driver.destroy_stream(stream).unwrap();
}

#[test]
fn two_timing_events_measure_the_kernel_between_them() {
    let Some(driver) = device() else { return };
    let stream = driver.create_stream(Priority::Default).unwrap();
    let [start, end, unrecorded] = [0; 3].map(|_| driver.create_event(EventKind::Timing).unwrap());
    spin(&driver, stream, 0);
    driver.record_event(start, stream).unwrap();
    spin(&driver, stream, 50);
    driver.record_event(end, stream).unwrap();
    assert_eq!(driver.elapsed_us(start, end).unwrap_err().kind, ErrorKind::NotPassed(end.0));
    driver.synchronize_event(end).unwrap();
    let elapsed_us = driver.elapsed_us(start, end).unwrap();
    println!("a kernel of about 50 ms took {elapsed_us} µs");
    assert!((10_000.0..500_000.0).contains(&elapsed_us), "{elapsed_us} µs");
    assert_eq!(driver.elapsed_us(start, unrecorded).unwrap_err().kind, ErrorKind::NotPassed(unrecorded.0));
    assert_eq!(driver.elapsed_us(unrecorded, end).unwrap_err().kind, ErrorKind::NotPassed(unrecorded.0));
    for event in [start, end, unrecorded] {
        driver.destroy_event(event).unwrap();
    }
    driver.destroy_stream(stream).unwrap();
}

#[test]
fn a_foreign_stream_is_known_once_it_is_adopted() {
    let Some(driver) = device() else { return };
    let stream = foreign::create();
    let error = driver.query_stream(stream).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::UnknownHandle { what: "stream", .. }), "{error}");
    // SAFETY: the stream stays alive until it is destroyed below, after the driver has forgotten it.
    unsafe { driver.adopt_stream(stream) };
    let address = driver.malloc(16).unwrap();
    driver.memset(address, 9, 16, stream).unwrap();
    driver.synchronize_stream(stream).unwrap();
    assert_eq!(read(&*driver, address, 16), [9; 16]);
    driver.free(address).unwrap();
    driver.destroy_stream(stream).unwrap();
    driver.query_stream(stream).unwrap_err();
    foreign::destroy(stream);
}

/// Streams that the driver under test did not make.
mod foreign {
    use std::ptr;

    use cudarc::driver::sys::{self, CUresult, CUstream};
    use tenure_core::StreamId;

    /// Binds the device's primary context to this thread, as PyTorch does, and creates a stream.
    pub(super) fn create() -> StreamId {
        let mut context = ptr::null_mut();
        let mut stream = ptr::null_mut();
        // SAFETY: the device exists, and everything written to is writable.
        unsafe {
            assert_eq!(sys::cuDevicePrimaryCtxRetain(&mut context, 0), CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuCtxSetCurrent(context), CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuStreamCreateWithPriority(&mut stream, 1, 0), CUresult::CUDA_SUCCESS);
        }
        StreamId(stream as u64)
    }

    pub(super) fn destroy(stream: StreamId) {
        // SAFETY: `create` made the stream, and nothing uses it any more.
        assert_eq!(unsafe { sys::cuStreamDestroy_v2(stream.0 as CUstream) }, CUresult::CUDA_SUCCESS);
    }
}

#[test]
fn timings_count_chunks_and_bytes() {
    let Some(driver) = device() else { return };
    let of =
        |call| driver.timings().into_iter().find(|timing| timing.call == call).map_or((0, 0), |t| (t.count, t.bytes));
    let granule = driver.granularity();
    let before = [Call::Map, Call::SetAccess, Call::Unmap].map(of);
    let address = driver.reserve(4 * granule).unwrap();
    let chunks = [0; 4].map(|_| driver.create(granule).unwrap());
    for (i, &chunk) in (0..).zip(&chunks) {
        driver.map(address + i * granule, chunk).unwrap();
    }
    driver.set_access(address, 4 * granule, AccessMode::ReadWrite).unwrap();
    driver.unmap(address, 4 * granule).unwrap();
    for chunk in chunks {
        driver.release(chunk).unwrap();
    }
    driver.unreserve(address, 4 * granule).unwrap();
    for ((count, bytes), call) in before.into_iter().zip([Call::Map, Call::SetAccess, Call::Unmap]) {
        assert_eq!(of(call), (count + 4, bytes + 4 * granule), "{call}");
    }
}
