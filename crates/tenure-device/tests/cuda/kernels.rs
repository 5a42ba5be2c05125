//! Tests of kernels, from source to the device, and of recordings of them through CUPTI.

use std::ptr;

use cudarc::driver::sys::{self, CUresult, CUstream, CUstreamCaptureMode};
use tenure_core::StreamId;
use tenure_device::activity::{self, ActivityKind, ActivityRecording, CudaTimes};
use tenure_device::cuda::{CompileError, LaunchConfig};
use tenure_device::{CopyCalls, Driver, ErrorKind, MemoryCalls, Priority, StreamCalls, check_launch};

use crate::common::{argument, device, kernel, read};

#[test]
fn a_kernel_runs_where_it_is_put() {
    const COUNT: i32 = 1000;
    let Some(driver) = device() else { return };
    let fill = kernel(&driver, "fill");
    let stream = driver.create_stream(Priority::Default).unwrap();
    let address = driver.malloc(4000).unwrap();
    let mut target = address;
    let mut value = 2.5f32;
    let mut count = COUNT;
    let mut arguments = [argument(&mut target), argument(&mut value), argument(&mut count)];
    // SAFETY: the kernel takes an address, a float and an int, and fills only the allocated memory.
    let noted = unsafe { driver.launch(fill, LaunchConfig::linear(COUNT as u32), stream, &mut arguments).unwrap() };
    let line = line!() - 1;
    check_launch(&*driver, &noted).unwrap();
    driver.synchronize_stream(stream).unwrap();
    assert_eq!(read(&*driver, address, 4000), 2.5f32.to_ne_bytes().repeat(1000));
    let [launch] = driver.launches().recent(1)[..] else { panic!("nothing was noted") };
    assert_eq!(launch, noted);
    assert_eq!(
        (launch.name, launch.stream, launch.grid, launch.block),
        ("fill", stream, Some([4, 1, 1]), Some([256, 1, 1]))
    );
    assert_eq!((launch.at.unwrap().file(), launch.at.unwrap().line()), (file!(), line));
    driver.free(address).unwrap();
    driver.destroy_stream(stream).unwrap();
}

#[test]
fn a_launch_that_the_device_cannot_do_is_refused_and_harms_nothing() {
    let Some(driver) = device() else { return };
    let spin = kernel(&driver, "spin");
    let mut cycles = 1i64;
    let mut launch = |block, stream| {
        let config = LaunchConfig { grid: [1; 3], block, shared_bytes: 0 };
        // SAFETY: the kernel takes a 64-bit number, and touches no memory.
        unsafe { driver.launch(spin, config, stream, &mut [argument(&mut cycles)]) }
    };
    let before = launch([1; 3], StreamId::NULL).unwrap();
    let error = launch([2048, 1, 1], StreamId::NULL).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Device { code: 1, .. }), "{error}");
    assert_eq!(driver.launches().recent(1), [before], "what was refused is not noted");
    let error = launch([1; 3], StreamId(0xdead_beef)).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::UnknownHandle { what: "stream", .. }), "{error}");
    launch([1; 3], StreamId::NULL).unwrap();
    driver.synchronize().unwrap();
}

#[test]
fn the_launch_check_leaves_a_capture_of_launches_whole() {
    let Some(driver) = device() else { return };
    // Load the kernel before the capture, because loading would end it.
    let spin = kernel(&driver, "spin");
    let streams = [(); 2].map(|()| driver.create_stream(Priority::Default).unwrap());
    let raw = streams[0].0 as CUstream;
    let mut cycles = 1i64;
    // SAFETY: the stream is alive.
    let begun = unsafe { sys::cuStreamBeginCapture_v2(raw, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
    assert_eq!(begun, CUresult::CUDA_SUCCESS);
    for stream in streams {
        // SAFETY: the kernel takes a 64-bit number, and touches no memory.
        let launch = unsafe { driver.launch(spin, LaunchConfig::linear(1), stream, &mut [argument(&mut cycles)]) };
        check_launch(&*driver, &launch.unwrap()).unwrap();
    }
    let mut graph = ptr::null_mut();
    // SAFETY: the capture began above, and `graph` is writable.
    assert_eq!(unsafe { sys::cuStreamEndCapture(raw, &mut graph) }, CUresult::CUDA_SUCCESS);
    // SAFETY: the capture made the graph, and nothing else uses it.
    assert_eq!(unsafe { sys::cuGraphDestroy(graph) }, CUresult::CUDA_SUCCESS);
    driver.synchronize().unwrap();
    streams.into_iter().for_each(|stream| driver.destroy_stream(stream).unwrap());
}

#[test]
fn a_kernel_that_is_not_there_is_not_found() {
    let Some(driver) = device() else { return };
    let image = driver.compile("__global__ void present() {}", &[]).unwrap_or_else(|error| panic!("{error}"));
    let error = driver.function(driver.load_module(&image).unwrap(), "absent").unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Device { code: 500, .. }), "{error}");
}

#[test]
fn a_mistake_in_a_kernel_is_shown_by_the_compiler() {
    let Some(driver) = device() else { return };
    let Err(error) = driver.compile("__global__ void wrong() { x; }", &[]) else { panic!("compiled") };
    assert!(matches!(&error, CompileError::Failed { log, .. } if log.contains("\"x\" is undefined")), "{error}");
}

#[test]
fn cupti_records_kernels_and_copies_with_their_causes() {
    let Some(driver) = device() else { return };
    let spin = kernel(&driver, "spin");
    let stream = driver.create_stream(Priority::Default).unwrap();
    let address = driver.malloc(4096).unwrap();
    let recording = ActivityRecording::start(Some(1000), None).unwrap();
    activity::begin_cause(7);
    driver.copy_to_device(address, &[1; 4096], stream).unwrap();
    activity::begin_cause(8);
    let mut cycles = 1_000_000i64;
    // SAFETY: the kernel takes a 64-bit number, and touches no memory.
    unsafe { driver.launch(spin, LaunchConfig::linear(1), stream, &mut [argument(&mut cycles)]).unwrap() };
    activity::end_cause();
    driver.memset(address, 0, 1024, stream).unwrap();
    activity::end_cause();
    driver.synchronize().unwrap();
    let found = recording.stop();
    driver.free(address).unwrap();
    driver.destroy_stream(stream).unwrap();
    if let CudaTimes::Launches { reason } = &found.cuda {
        eprintln!("without CUPTI: {reason}");
    }
    let facts: Vec<_> = found.activities.iter().map(|it| (it.kind, it.bytes, it.cause)).collect();
    assert_eq!(
        facts,
        [
            (ActivityKind::CopyToDevice, 4096, Some(7)),
            (ActivityKind::Kernel, 0, Some(8)),
            (ActivityKind::Fill, 1024, Some(7)),
        ]
    );
    assert!(found.activities.iter().all(|it| it.device == driver.device()));
    assert!(found.activities[1].name.contains("spin"));
    if found.cuda == CudaTimes::Cupti {
        // A million cycles take more than 0.1 ms on any device.
        assert!((found.activities[1].end - found.activities[1].begin).as_micros() > 100);
        assert!(found.activities[0].end <= found.activities[1].begin);
    }
}
