//! Tests that calls do not change a thread's context, from which PyTorch takes its current device.

use std::ptr;
use std::thread;

use cudarc::driver::sys::{self, CUcontext, CUresult};
use tenure_core::StreamId;
use tenure_device::cuda::CudaDriver;
use tenure_device::{CopyCalls, EventCalls, EventKind, MemoryCalls, Priority, StreamCalls};

use crate::common::{device, mapped_chunk, read};

fn current() -> CUcontext {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is writable, and there is a driver.
    assert_eq!(unsafe { sys::cuCtxGetCurrent(&mut context) }, CUresult::CUDA_SUCCESS);
    context
}

/// Makes some calls of each kind: with memory, with streams and events, and one that fails.
fn use_it(driver: &CudaDriver) {
    let bytes = driver.granularity();
    let (address, chunk) = mapped_chunk(driver, bytes);
    let stream = driver.create_stream(Priority::High).unwrap();
    let event = driver.create_event(EventKind::Order).unwrap();
    driver.memset(address, 1, 64, stream).unwrap();
    driver.record_event(event, stream).unwrap();
    driver.wait_event(StreamId::NULL, event).unwrap();
    assert_eq!(read(driver, address, 64), [1; 64]);
    driver.malloc(u64::MAX / 2).unwrap_err();
    driver.destroy_event(event).unwrap();
    driver.destroy_stream(stream).unwrap();
    driver.unmap(address, bytes).unwrap();
    driver.release(chunk).unwrap();
    driver.unreserve(address, bytes).unwrap();
}

#[test]
fn a_thread_without_a_context_stays_without_one() {
    let Some(driver) = device() else { return };
    assert!(thread::scope(|scope| scope
        .spawn(|| {
            assert!(current().is_null());
            use_it(&driver);
            current().is_null()
        })
        .join()
        .unwrap()));
}

#[test]
fn a_thread_with_another_context_keeps_it() {
    let Some(driver) = device() else { return };
    thread::scope(|scope| {
        let used = scope.spawn(|| {
            let mut other = ptr::null_mut();
            // SAFETY: `other` is writable, and device 0 exists.
            let created = unsafe { sys::cuCtxCreate_v4(&mut other, ptr::null_mut(), 0, 0) };
            assert_eq!(created, CUresult::CUDA_SUCCESS);
            assert_eq!(current(), other);
            use_it(&driver);
            assert_eq!(current(), other);
            // SAFETY: the context was created above, and nothing uses it.
            assert_eq!(unsafe { sys::cuCtxDestroy_v2(other) }, CUresult::CUDA_SUCCESS);
        });
        used.join().unwrap();
    });
}

#[test]
fn threads_share_a_device() {
    let Some(driver) = device() else { return };
    thread::scope(|scope| {
        (0..8).for_each(|_| {
            _ = scope.spawn(|| {
                let stream = driver.create_stream(Priority::Default).unwrap();
                let address = driver.malloc(4096).unwrap();
                for value in 0..100 {
                    driver.memset(address, value, 4096, stream).unwrap();
                    let mut bytes = [0; 4096];
                    driver.copy_from_device(&mut bytes, address, stream).unwrap();
                    assert_eq!(bytes, [value; 4096]);
                }
                driver.free(address).unwrap();
                driver.destroy_stream(stream).unwrap();
            })
        })
    });
}
