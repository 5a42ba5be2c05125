//! Events: their creation at the first use, their end, and the abilities of each kind.

use std::sync::Arc;

use tenure_core::Device;
use tenure_device::sim::{Failure, SimConfig, SimPlatform};
use tenure_device::{Call, DriverError, ErrorKind, Event, EventCalls, EventKind, Platform, Priority, Stream, Streams};

use crate::common::{Tested, drivers, kind, sim};

fn stream(tested: &Tested) -> Stream {
    Streams::new(tested.shared()).pooled(Priority::Default).unwrap()
}

fn event(stream: &Stream, kind: EventKind) -> Event {
    Event::new(Arc::clone(stream.driver()), kind)
}

fn why<T: std::fmt::Debug>(result: Result<T, DriverError>) -> ErrorKind {
    let error = result.unwrap_err();
    assert_eq!(error.at.file(), file!(), "an error names the place of the call");
    error.error.kind
}

#[test]
fn an_event_that_was_not_recorded_counts_as_passed() {
    for tested in drivers() {
        let stream = stream(&tested);
        let event = event(&stream, EventKind::Order);
        assert!(event.query().unwrap());
        event.synchronize().unwrap();
        stream.wait(&event).unwrap();
        assert_eq!(event.id(), None, "nothing of this needs the driver's event");
    }
}

#[test]
fn an_event_is_created_once_at_its_first_record() {
    let driver = sim(0);
    let created = || driver.calls(Some(Call::CreateEvent));
    let stream = Streams::new(driver.clone()).null();
    let mut event = event(&stream, EventKind::Order);
    assert_eq!(created(), 0);
    for _ in 0..3 {
        event.record(&stream).unwrap();
        assert_eq!(created(), 1);
    }
}

#[test]
fn a_failed_creation_is_tried_again() {
    let driver = sim(0);
    let stream = Streams::new(driver.clone()).null();
    let mut event = event(&stream, EventKind::Order);
    driver.inject(Failure::of(Call::CreateEvent, 1));
    assert_eq!(why(event.record(&stream)), ErrorKind::Injected);
    assert_eq!(event.id(), None);
    event.record(&stream).unwrap();
}

#[test]
fn a_recorded_event_is_passed_after_its_work() {
    for tested in drivers() {
        let stream = stream(&tested);
        let address = stream.driver().malloc(1 << 20).unwrap();
        for kind in [EventKind::Order, EventKind::Timing, EventKind::Interprocess] {
            let mut event = event(&stream, kind);
            stream.driver().memset(address, 1, 1 << 20, stream.id()).unwrap();
            event.record(&stream).unwrap();
            event.synchronize().unwrap();
            assert!(event.query().unwrap());
        }
        stream.driver().free(address).unwrap();
    }
}

#[test]
fn an_event_ends_when_it_is_dropped() {
    let driver = sim(0);
    let stream = Streams::new(driver.clone()).null();
    let mut event = event(&stream, EventKind::Order);
    event.record(&stream).unwrap();
    let id = event.id().unwrap();
    drop(event);
    assert!(matches!(kind(driver.query_event(id)), ErrorKind::UnknownHandle { what: "event", .. }));
}

#[test]
fn an_event_that_is_dropped_in_a_host_function_ends_with_the_next_creation() {
    let driver = sim(0);
    let stream = Streams::new(driver.clone()).null();
    let [mut dropped, mut next] = [(); 2].map(|()| event(&stream, EventKind::Order));
    dropped.record(&stream).unwrap();
    let id = dropped.id().unwrap();
    stream.host_function(move || drop(dropped)).unwrap();
    stream.synchronize().unwrap();
    next.record(&stream).unwrap();
    assert!(matches!(kind(driver.query_event(id)), ErrorKind::UnknownHandle { what: "event", .. }));
}

#[test]
fn a_wait_holds_when_its_event_is_dropped() {
    for tested in drivers() {
        let stream = stream(&tested);
        let driver = stream.driver();
        let other = Streams::new(Arc::clone(driver)).pooled(Priority::High).unwrap();
        let address = driver.malloc(4).unwrap();
        driver.memset(address, 9, 4, stream.id()).unwrap();
        let mut event = event(&stream, EventKind::Order);
        event.record(&stream).unwrap();
        event.wait(&other).unwrap();
        drop(event);
        let mut bytes = [0; 4];
        driver.copy_from_device(&mut bytes, address, other.id()).unwrap();
        assert_eq!(bytes, [9; 4]);
        driver.free(address).unwrap();
    }
}

#[test]
fn time_passes_between_two_timing_events() {
    for tested in drivers() {
        let stream = stream(&tested);
        let [mut start, mut end] = [(); 2].map(|()| event(&stream, EventKind::Timing));
        start.record(&stream).unwrap();
        end.record(&stream).unwrap();
        end.synchronize().unwrap();
        assert!(start.elapsed_us(&end).unwrap() >= 0.0);
    }
}

#[test]
fn time_is_not_kept_by_events_of_other_kinds() {
    for tested in drivers() {
        let stream = stream(&tested);
        let mut timing = event(&stream, EventKind::Timing);
        timing.record(&stream).unwrap();
        timing.synchronize().unwrap();
        for actual in [EventKind::Order, EventKind::Interprocess] {
            let mut other = event(&stream, actual);
            other.record(&stream).unwrap();
            other.synchronize().unwrap();
            let wrong = ErrorKind::WrongEventKind { event: other.id().unwrap().0, actual, needed: EventKind::Timing };
            assert_eq!(why(timing.elapsed_us(&other)), wrong);
            assert_eq!(why(other.elapsed_us(&timing)), wrong);
        }
    }
}

#[test]
fn time_is_not_known_of_events_that_were_not_recorded() {
    for tested in drivers() {
        let stream = stream(&tested);
        let [mut start, end] = [(); 2].map(|()| event(&stream, EventKind::Timing));
        start.record(&stream).unwrap();
        start.synchronize().unwrap();
        assert!(matches!(why(start.elapsed_us(&end)), ErrorKind::NotPassed(_)));
    }
}

#[test]
fn an_interprocess_event_has_a_name_before_it_is_recorded() {
    for tested in drivers() {
        let stream = stream(&tested);
        let mut event = event(&stream, EventKind::Interprocess);
        event.export().unwrap();
        event.record(&stream).unwrap();
        event.export().unwrap();
    }
}

#[test]
fn an_event_of_another_kind_has_no_name_for_other_processes() {
    for tested in drivers() {
        let stream = stream(&tested);
        for actual in [EventKind::Order, EventKind::Timing] {
            let needed = EventKind::Interprocess;
            let wrong = ErrorKind::WrongEventKind { event: 0, actual, needed };
            assert_eq!(why(event(&stream, actual).export()), wrong);
        }
    }
}

#[test]
fn an_event_is_not_opened_by_the_process_that_made_it() {
    for tested in drivers() {
        let stream = stream(&tested);
        let handle = event(&stream, EventKind::Interprocess).export().unwrap();
        why(Event::open(Arc::clone(stream.driver()), &handle));
    }
}

#[test]
fn an_opened_event_is_passed_when_the_process_that_made_it_has_passed_it() {
    // Two simulated drivers stand for one device, as two processes see it.
    let [stream, there] = [0, 1].map(|seed| Streams::new(sim(seed)).null());
    let mut event = event(&stream, EventKind::Interprocess);
    let opened = Event::open(Arc::clone(there.driver()), &event.export().unwrap()).unwrap();
    assert_eq!(opened.kind(), EventKind::Interprocess);
    event.record(&stream).unwrap();
    there.wait(&opened).unwrap();
    there.synchronize().unwrap();
    assert!(opened.query().unwrap() && event.query().unwrap());
}

#[test]
fn an_event_is_recorded_on_streams_of_its_own_device() {
    let platform = SimPlatform::new(vec![SimConfig::default(); 2]);
    let [stream, other] = [0, 1].map(|device| Streams::new(platform.driver(device).unwrap()).null());
    let error = why(event(&stream, EventKind::Order).record(&other));
    assert_eq!(error, ErrorKind::OtherDevice { event: Device::cuda(0), stream: Device::cuda(1) });
}

#[test]
fn a_simulated_stream_does_not_wait_for_an_event_of_another_device() {
    let platform = SimPlatform::new(vec![SimConfig::default(); 2]);
    let [stream, other] = [0, 1].map(|device| Streams::new(platform.driver(device).unwrap()).null());
    let [mut event, mut theirs] = [&stream, &other].map(|stream| event(stream, EventKind::Order));
    event.record(&stream).unwrap();
    theirs.record(&other).unwrap();
    assert_ne!(event.id(), theirs.id(), "a driver can tell events of another device from its own");
    assert_eq!(
        why(other.wait(&event)),
        ErrorKind::OtherDevice { event: Device::cuda(0), stream: Device::cuda(1) },
        "the error names both devices"
    );
    other.wait(&theirs).unwrap();
}
