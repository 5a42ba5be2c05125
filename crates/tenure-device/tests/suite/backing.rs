//! Marks and errors of an allocator's backing on a driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tenure_alloc::{Backing, BackingError, Mark};
use tenure_core::StreamId;
use tenure_device::sim::{Failure, SimConfig, SimDriver};
use tenure_device::{
    Call, Clock, DeviceBacking, DeviceProcess, Driver, DriverError, MemoryCalls, Priority, StreamCalls,
};

use crate::common::{GRANULE, sim, this_process};

fn backing() -> (Arc<SimDriver>, DeviceBacking) {
    let driver = sim(0);
    (Arc::clone(&driver), DeviceBacking::new(driver))
}

#[test]
fn a_mark_is_completed_when_its_stream_has_passed_it() {
    let (driver, backing) = backing();
    driver.busy_until(StreamId::NULL, 10).unwrap();
    let first = backing.record(StreamId::NULL).unwrap();
    driver.busy_until(StreamId::NULL, 20).unwrap();
    let second = backing.record(StreamId::NULL).unwrap();
    assert!(first < second);
    assert!(!backing.completed(first).unwrap());
    driver.set_time(10);
    assert!(backing.completed(first).unwrap());
    assert!(!backing.completed(second).unwrap());
    driver.set_time(20);
    assert!(backing.completed(second).unwrap());
}

#[test]
fn a_completed_mark_stays_so_without_another_call() {
    let (driver, backing) = backing();
    let marks: Vec<_> = (0..5).map(|_| backing.record(StreamId::NULL).unwrap()).collect();
    assert!(backing.completed(marks[4]).unwrap());
    let calls = driver.calls(None);
    for &mark in &marks {
        assert!(backing.completed(mark).unwrap());
        backing.synchronize(mark).unwrap();
        backing.wait(StreamId::NULL, mark).unwrap();
    }
    assert_eq!(driver.calls(None), calls);
    assert_eq!(driver.counters().host_syncs, 0);
}

#[test]
fn events_are_reused() {
    let (driver, backing) = backing();
    for _ in 0..1000 {
        let mark = backing.record(StreamId::NULL).unwrap();
        assert!(backing.completed(mark).unwrap());
    }
    assert_eq!(driver.calls(Some(Call::CreateEvent)), 1);
}

#[test]
fn marks_that_are_not_queried_do_not_pile_up() {
    let (driver, backing) = backing();
    let first = backing.record(StreamId::NULL).unwrap();
    for _ in 0..10_000 {
        backing.record(StreamId::NULL).unwrap();
    }
    assert!(driver.calls(Some(Call::CreateEvent)) < 100);
    assert!(backing.completed(first).unwrap());
}

#[test]
fn a_stream_waits_for_a_mark_of_another() {
    let (driver, backing) = backing();
    let other = driver.create_stream(Priority::Default).unwrap();
    driver.busy_until(StreamId::NULL, 10).unwrap();
    let mark = backing.record(StreamId::NULL).unwrap();
    backing.wait(other, mark).unwrap();
    let after = backing.record(other).unwrap();
    assert!(!backing.completed(after).unwrap());
    assert_eq!((driver.counters().stream_waits, driver.counters().host_syncs), (1, 0));
    backing.synchronize(after).unwrap();
    assert_eq!((driver.now_us(), driver.counters().host_syncs), (10, 1));
    assert!(backing.completed(mark).unwrap());
}

#[test]
fn a_mark_of_elsewhere_is_refused() {
    let (_, backing) = backing();
    let unknown = Mark { stream: StreamId::NULL, sequence: 3 };
    assert!(backing.completed(unknown).is_err());
    backing.record(StreamId::NULL).unwrap();
    assert!(backing.synchronize(unknown).is_err());
}

#[test]
fn a_failed_record_leaves_no_trace() {
    let (driver, backing) = backing();
    for call in [Call::CreateEvent, Call::RecordEvent] {
        driver.inject(Failure::of(call, 1));
        backing.record(StreamId::NULL).unwrap_err();
    }
    assert_eq!(backing.record(StreamId::NULL).unwrap().sequence, 1);
    assert_eq!(driver.calls(Some(Call::CreateEvent)), 2);
}

#[test]
fn a_dropped_backing_gives_its_events_back() {
    let (driver, backing) = backing();
    for _ in 0..3 {
        backing.record(StreamId::NULL).unwrap();
    }
    drop(backing);
    assert_eq!(driver.calls(Some(Call::DestroyEvent)), 3);
}

#[test]
fn out_of_memory_says_what_was_asked_for() {
    let (_, backing) = backing();
    let expected = BackingError::OutOfMemory { call: "cuMemCreate", requested: 65 * GRANULE, free: 64 * GRANULE };
    assert_eq!(backing.create(65 * GRANULE).unwrap_err(), expected);
}

#[test]
fn an_error_names_the_call_its_code_and_the_place_it_was_made_from() {
    fn release_twice(driver: &dyn Driver) -> Result<(), DriverError> {
        let chunk = driver.create(GRANULE)?;
        driver.release(chunk)?;
        Ok(driver.release(chunk)?)
    }
    let error = release_twice(&*sim(0)).unwrap_err();
    assert_eq!(error.at.file(), file!());
    let text = error.to_string();
    assert!(text.starts_with("cuMemRelease: error 400: chunk 0x1 does not exist"), "{text}");
    assert!(text.contains(&format!("{}:", file!())), "{text}");
}

#[test]
fn a_failed_call_of_the_backing_says_where_too() {
    let (_, backing) = backing();
    let BackingError::Failed { call, reason } = backing.free(7).unwrap_err() else { panic!("not a failed call") };
    assert_eq!(call, "cuMemFree");
    assert!(reason.contains("backing.rs:"), "{reason}");
}

#[test]
fn held_bytes_count_memory_that_came_and_not_memory_that_went() {
    let (driver, backing) = backing();
    let chunk = backing.create(2 * GRANULE).unwrap();
    let segment = backing.malloc(GRANULE).unwrap();
    backing.create(65 * GRANULE).unwrap_err();
    driver.create(GRANULE).unwrap();
    assert_eq!(backing.held_bytes(), 3 * GRANULE);
    driver.inject(Failure::of(Call::Release, 1));
    backing.release(chunk).unwrap_err();
    assert_eq!(backing.held_bytes(), 3 * GRANULE);
    backing.release(chunk).unwrap();
    backing.free(segment).unwrap();
    assert_eq!(backing.held_bytes(), 0);
}

#[test]
fn overhead_is_what_the_process_holds_beside_the_backing() {
    let driver = Arc::new(SimDriver::new(SimConfig { context_bytes: 500 << 20, ..SimConfig::default() }));
    let backing = || DeviceBacking::new(Arc::clone(&driver) as _);
    let one = backing();
    let other = backing();
    one.create(64 << 20).unwrap();
    assert_eq!(one.known_overhead_bytes(), Some(500 << 20));
    assert_eq!(other.overhead_bytes(), 564 << 20);
}

#[test]
fn overhead_is_asked_for_rarely() {
    let driver = Arc::new(SimDriver::new(SimConfig { context_bytes: 500 << 20, ..SimConfig::default() }));
    let clock = Clock::manual();
    let backing = DeviceBacking::new(Arc::clone(&driver) as _).with_clock(clock.clone());
    assert_eq!(backing.overhead_bytes(), 500 << 20);
    driver.set_processes(Some(vec![DeviceProcess { pid: std::process::id(), bytes: Some(600 << 20) }]));
    clock.advance(Duration::from_millis(99));
    assert_eq!(backing.overhead_bytes(), 500 << 20, "known a moment ago");
    clock.advance(Duration::from_millis(1));
    assert_eq!(backing.overhead_bytes(), 600 << 20);
}

#[test]
fn overhead_that_the_system_does_not_tell_counts_as_none() {
    let other = vec![DeviceProcess { pid: 1, bytes: Some(1 << 30) }];
    for processes in [None, this_process(None), Some(other)] {
        let (driver, backing) = backing();
        driver.set_processes(processes);
        assert_eq!((backing.known_overhead_bytes(), backing.overhead_bytes()), (None, 0));
    }
    let (driver, backing) = backing();
    driver.set_processes(this_process(Some(0)));
    backing.create(GRANULE).unwrap();
    assert_eq!(backing.known_overhead_bytes(), Some(0), "an old figure does not underflow");
}

/// A thread allocates and frees 1 GiB all the time, and none of it is overhead.
#[test]
fn memory_on_its_way_is_no_overhead() {
    let driver = Arc::new(SimDriver::new(SimConfig { context_bytes: 0, ..SimConfig::default() }));
    let clock = Clock::manual();
    let backing = DeviceBacking::new(Arc::clone(&driver) as _).with_clock(clock.clone());
    let stop = AtomicBool::new(false);
    let comes_and_goes = || {
        while !stop.load(Ordering::Relaxed) {
            let chunk = backing.create(1 << 30).unwrap();
            backing.release(chunk).unwrap();
        }
    };
    thread::scope(|scope| {
        let threads = [scope.spawn(comes_and_goes), scope.spawn(comes_and_goes)];
        let (mut looks, mut most) = (0, 0);
        while looks < 10 || driver.calls(Some(Call::Create)) < 1000 {
            // The last measurement is too old each time.
            clock.advance(Duration::from_millis(100));
            most = most.max(backing.overhead_bytes());
            looks += 1;
            if threads.iter().any(|thread| thread.is_finished()) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(most, 0);
    });
}
