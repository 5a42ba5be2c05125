//! Recordings of activities, on the simulated device. A process has one at a time, so the tests take turns.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::{Allocator, Device, StreamId};
use tenure_device::activity::{self, Activity, ActivityKind, ActivityRecording};
use tenure_device::host::HostMemory;
use tenure_device::sim::{SimConfig, SimDriver, SimKernel};
use tenure_device::{CopyCalls, Driver, GraphCalls, MemoryCalls, StreamCalls};

fn in_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the activities of `run` on a new device. Other tests of the process may use devices at the same time, so
/// only activities with a cause of this test are returned.
fn activities_of(cause: u64, run: impl FnOnce(&SimDriver)) -> Vec<Activity> {
    let driver = SimDriver::new(SimConfig::default());
    let recording = ActivityRecording::start(Some(100_000), None).unwrap();
    activity::begin_cause(cause);
    run(&driver);
    activity::end_cause();
    driver.synchronize().unwrap();
    let activities = recording.stop().activities;
    activities.into_iter().filter(|it| it.cause.is_some_and(|it| it / 10 == cause / 10)).collect()
}

#[test]
fn kernels_copies_and_fills_have_their_kinds_streams_and_bytes() {
    let _turn = in_turn();
    let mut stream = StreamId::NULL;
    let found = activities_of(10, |driver| {
        stream = driver.create_stream(Default::default()).unwrap();
        let address = driver.malloc(4096).unwrap();
        driver.memset(address, 7, 256, stream).unwrap();
        driver.launch(SimKernel::new("mine", stream).writes(address, 8)).unwrap();
        driver.copy_on_device(address + 1024, address, 64, stream).unwrap();
        driver.copy_to_device(address, &[1; 32], stream).unwrap();
        driver.copy_from_device(&mut [0; 16], address, stream).unwrap();
    });
    let facts: Vec<_> = found.iter().map(|it| (it.kind, it.bytes, it.stream, it.device)).collect();
    let device = Device::cuda(0);
    assert_eq!(
        facts,
        [
            (ActivityKind::Fill, 256, stream, device),
            (ActivityKind::Kernel, 0, stream, device),
            (ActivityKind::CopyOnDevice, 64, stream, device),
            (ActivityKind::CopyToDevice, 32, stream, device),
            (ActivityKind::CopyFromDevice, 16, stream, device),
        ]
    );
    assert_eq!(found[1].name, "mine");
}

#[test]
fn times_are_those_of_the_devices_clock() {
    let _turn = in_turn();
    let found = activities_of(20, |driver| {
        driver.advance(5);
        driver.busy_until(StreamId::NULL, 25).unwrap();
        driver.launch(SimKernel::new("after", StreamId::NULL)).unwrap();
    });
    let us = Duration::from_micros;
    let times: Vec<_> = found.iter().map(|it| (&*it.name, it.begin, it.end)).collect();
    assert_eq!(times, [("busy", us(5), us(25)), ("after", us(25), us(25))]);
}

#[test]
fn work_has_the_innermost_cause_of_the_thread_that_put_it_on_its_stream() {
    let _turn = in_turn();
    let found = activities_of(30, |driver| {
        let launch = |name| driver.launch(SimKernel::new(name, StreamId::NULL)).unwrap();
        launch("outer");
        activity::begin_cause(31);
        launch("inner");
        activity::end_cause();
        launch("outer again");
    });
    let causes: Vec<_> = found.iter().map(|it| (&*it.name, it.cause)).collect();
    assert_eq!(causes, [("outer", Some(30)), ("inner", Some(31)), ("outer again", Some(30))]);
}

#[test]
fn each_launch_of_a_graph_is_recorded() {
    let _turn = in_turn();
    let found = activities_of(40, |driver| {
        let stream = driver.create_stream(Default::default()).unwrap();
        driver.begin_capture(stream).unwrap();
        driver.launch(SimKernel::new("captured", stream)).unwrap();
        let graph = driver.end_capture(stream).unwrap();
        driver.launch_graph(graph, stream).unwrap();
        driver.launch_graph(graph, stream).unwrap();
    });
    assert_eq!(found.iter().filter(|it| it.name == "captured").count(), 2);
}

#[test]
fn activities_beyond_the_limit_are_counted_and_there_is_one_recording() {
    let _turn = in_turn();
    let driver = SimDriver::new(SimConfig::default());
    let recording = ActivityRecording::start(Some(0), None).unwrap();
    assert!(ActivityRecording::start(Some(0), None).is_none());
    driver.launch(SimKernel::new("mine", StreamId::NULL)).unwrap();
    driver.run().unwrap();
    let found = recording.stop();
    assert!(found.activities.is_empty() && found.dropped >= 1);
    drop(ActivityRecording::start(Some(0), None).unwrap());
    drop(ActivityRecording::start(Some(0), None).unwrap());
}

#[test]
fn changes_of_host_memory_are_told_and_end_at_0() {
    let _turn = in_turn();
    let memory = HostMemory::installed().unwrap();
    let thread = std::thread::current().id();
    let changes: Arc<Mutex<Vec<i64>>> = Arc::default();
    let told = Arc::clone(&changes);
    let on_memory = move |device: Device, bytes: i64| {
        if std::thread::current().id() == thread {
            assert!(device.is_cpu());
            told.lock().unwrap().push(bytes);
        }
    };
    let recording = ActivityRecording::start(Some(0), Some(Box::new(on_memory))).unwrap();
    for bytes in [100, 64 << 10, (64 << 10) + 1] {
        drop(memory.allocate(bytes).unwrap());
    }
    recording.stop();
    drop(memory.allocate(100).unwrap());
    let page = 4096;
    let large = 64 << 10;
    assert_eq!(*changes.lock().unwrap(), [100, -100, large, -large, large + page, -large - page]);
}
