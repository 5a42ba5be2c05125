//! Events between simulated devices, each of which stands for the one device as a process sees it.

use std::sync::Arc;

use tenure_core::StreamId;
use tenure_device::sim::{SimDriver, SimKernel};
use tenure_device::{
    Call, CopyCalls, Driver, ErrorKind, EventCalls, EventHandle, EventId, EventKind, MemoryCalls, Priority,
    SharingCalls, StreamCalls,
};

use crate::common::{eventually, kind, read, sim};

/// Returns two processes: the event as the first created it, and as the second opened it.
fn processes() -> [(Arc<SimDriver>, EventId); 2] {
    let first = sim(0);
    let second = sim(1);
    let event = first.create_event(EventKind::Interprocess).unwrap();
    let opened = second.open_event(&first.export_event(event).unwrap()).unwrap();
    [(first, event), (second, opened)]
}

#[test]
fn an_opened_event_is_passed_when_the_process_that_recorded_it_has_passed_it() {
    let [(exporter, event), (importer, opened)] = processes();
    assert!(importer.query_event(opened).unwrap(), "it was not recorded");
    exporter.busy_until(StreamId::NULL, 100).unwrap();
    exporter.record_event(event, StreamId::NULL).unwrap();
    assert!(!importer.query_event(opened).unwrap());
    exporter.set_time(100);
    exporter.run().unwrap();
    assert!(importer.query_event(opened).unwrap());
    importer.synchronize_event(opened).unwrap();
}

#[test]
fn work_before_a_record_runs_when_the_record_is_made() {
    let [(exporter, event), (importer, opened)] = processes();
    let stream = exporter.create_stream(Priority::Default).unwrap();
    let address = exporter.malloc(16).unwrap();
    exporter.memset(address, 1, 16, stream).unwrap();
    exporter.record_event(event, stream).unwrap();
    importer.synchronize_event(opened).unwrap();
    assert!(exporter.query_event(event).unwrap());
}

#[test]
fn a_stream_runs_on_only_when_the_other_process_has_passed_the_event() {
    let [(exporter, event), (importer, opened)] = processes();
    let stream = importer.create_stream(Priority::Default).unwrap();
    let address = importer.malloc(4).unwrap();
    importer.copy_to_device(address, &[1; 4], stream).unwrap();
    exporter.busy_until(StreamId::NULL, 100).unwrap();
    exporter.record_event(event, StreamId::NULL).unwrap();
    importer.wait_event(stream, opened).unwrap();
    importer.memset(address, 2, 4, stream).unwrap();
    importer.run().unwrap();
    assert!(!importer.query_stream(stream).unwrap());
    exporter.set_time(100);
    exporter.run().unwrap();
    importer.run().unwrap();
    assert!(importer.query_stream(stream).unwrap());
    importer.synchronize_stream(stream).unwrap();
    assert_eq!(read(&*importer, address, 4), [2; 4]);
    assert_eq!(importer.counters().stream_waits, 1);
}

#[test]
fn a_wait_is_for_the_last_record_before_it() {
    let [(exporter, event), (importer, opened)] = processes();
    let slow = exporter.create_stream(Priority::Default).unwrap();
    exporter.busy_until(slow, 100).unwrap();
    exporter.record_event(event, slow).unwrap();
    importer.wait_event(StreamId::NULL, opened).unwrap();
    exporter.record_event(event, StreamId::NULL).unwrap();
    assert!(importer.query_event(opened).unwrap(), "the last record is passed");
    assert!(!importer.query_stream(StreamId::NULL).unwrap(), "the one before is not");
    exporter.set_time(100);
    exporter.run().unwrap();
    importer.synchronize_stream(StreamId::NULL).unwrap();
}

#[test]
fn the_opener_may_record_too() {
    let [(exporter, event), (importer, opened)] = processes();
    exporter.record_event(event, StreamId::NULL).unwrap();
    importer.busy_until(StreamId::NULL, 10).unwrap();
    importer.record_event(opened, StreamId::NULL).unwrap();
    assert!(!exporter.query_event(event).unwrap() && !importer.query_event(opened).unwrap());
    importer.synchronize_event(opened).unwrap();
    assert!(exporter.query_event(event).unwrap());
    exporter.record_event(event, StreamId::NULL).unwrap();
    assert!(importer.query_event(opened).unwrap());
}

#[test]
fn a_blocked_host_goes_on_when_the_other_process_has_passed_the_event_and_others_use_the_device_meanwhile() {
    let [(exporter, event), (importer, opened)] = processes();
    exporter.busy_until(StreamId::NULL, 10).unwrap();
    exporter.record_event(event, StreamId::NULL).unwrap();
    importer.wait_event(StreamId::NULL, opened).unwrap();
    std::thread::scope(|scope| {
        let waits = [
            scope.spawn(|| importer.synchronize_event(opened).unwrap()),
            scope.spawn(|| importer.synchronize().unwrap()),
            scope.spawn(|| importer.synchronize_stream(StreamId::NULL).unwrap()),
        ];
        // A call is counted once it has begun, and has found that the event is not passed.
        for call in [Call::SynchronizeEvent, Call::Synchronize, Call::SynchronizeStream] {
            eventually("the host is blocked", || importer.calls(Some(call)) == 1);
        }
        importer.memory_info().unwrap();
        exporter.synchronize().unwrap();
        waits.into_iter().for_each(|wait| wait.join().unwrap());
    });
    assert_eq!(importer.counters().host_syncs, 3);
}

#[test]
fn an_event_of_a_process_that_died_is_never_passed() {
    let [(exporter, event), (importer, opened)] = processes();
    exporter.busy_until(StreamId::NULL, 100).unwrap();
    exporter.record_event(event, StreamId::NULL).unwrap();
    let handle = exporter.export_event(event).unwrap();
    drop(exporter);
    assert!(!importer.query_event(opened).unwrap());
    assert!(matches!(kind(importer.open_event(&handle)), ErrorKind::UnknownHandle { .. }));
    importer.destroy_event(opened).unwrap();
}

#[test]
fn an_event_of_a_process_that_lost_its_context_is_never_passed() {
    let [(exporter, event), (importer, opened)] = processes();
    let address = exporter.malloc(4).unwrap();
    let stray = SimKernel::new("stray", StreamId::NULL).body(move |memory| memory.write(address, &[0]));
    exporter.launch(stray).unwrap();
    exporter.record_event(event, StreamId::NULL).unwrap_err();
    assert!(!importer.query_event(opened).unwrap());
}

#[test]
fn a_destroyed_event_keeps_the_waits_that_were_put_on_streams() {
    let [(exporter, event), (importer, opened)] = processes();
    exporter.busy_until(StreamId::NULL, 10).unwrap();
    exporter.record_event(event, StreamId::NULL).unwrap();
    importer.wait_event(StreamId::NULL, opened).unwrap();
    exporter.destroy_event(event).unwrap();
    importer.destroy_event(opened).unwrap();
    assert!(!importer.query_stream(StreamId::NULL).unwrap());
    exporter.synchronize().unwrap();
    importer.synchronize().unwrap();
}

#[test]
fn only_what_is_an_interprocess_event_of_another_process_is_opened() {
    let driver = sim(0);
    let event = driver.create_event(EventKind::Interprocess).unwrap();
    let handle = driver.export_event(event).unwrap();
    assert_eq!(kind(driver.open_event(&handle)), ErrorKind::OwnEvent);
    for (at, value) in [(0, 0), (16, 0xff), (24, 0xff), (40, 0xff)] {
        let mut other = handle;
        other.0[at] ^= value | 1;
        assert!(matches!(kind(sim(0).open_event(&other)), ErrorKind::UnknownHandle { .. }));
    }
    assert!(matches!(kind(driver.open_event(&EventHandle([0; 64]))), ErrorKind::UnknownHandle { .. }));
    driver.destroy_event(event).unwrap();
    assert!(matches!(kind(sim(0).open_event(&handle)), ErrorKind::UnknownHandle { .. }));
}

#[test]
fn an_event_has_the_rights_of_its_kind() {
    let driver = sim(0);
    let [order, timing, interprocess] =
        [EventKind::Order, EventKind::Timing, EventKind::Interprocess].map(|kind| driver.create_event(kind).unwrap());
    for event in [order, timing] {
        let needed = EventKind::Interprocess;
        assert!(matches!(kind(driver.export_event(event)), ErrorKind::WrongEventKind { needed: n, .. } if n == needed));
    }
    driver.export_event(interprocess).unwrap();
    for event in [order, interprocess] {
        driver.record_event(event, StreamId::NULL).unwrap();
        assert!(matches!(kind(driver.elapsed_us(event, event)), ErrorKind::WrongEventKind { .. }));
    }
}

#[test]
fn an_interprocess_event_orders_work_of_its_own_device_like_any_other() {
    for seed in 0..8 {
        let driver = sim(seed);
        let stream = driver.create_stream(Priority::Default).unwrap();
        let address = driver.malloc(4).unwrap();
        let event = driver.create_event(EventKind::Interprocess).unwrap();
        driver.memset(address, 1, 4, stream).unwrap();
        driver.record_event(event, stream).unwrap();
        driver.wait_event(StreamId::NULL, event).unwrap();
        driver.memset(address, 2, 4, StreamId::NULL).unwrap();
        assert_eq!(read(&*driver, address, 4), [2; 4]);
    }
}
