//! Lazy streams, seeds, and the virtual clock of the simulated device.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use tenure_core::StreamId;
use tenure_device::{CopyCalls, Driver, ErrorKind, EventCalls, EventKind, MemoryCalls, Priority, StreamCalls};

use crate::common::{kind, read, sim};

/// Puts functions on three streams, the third of which waits for the first. Returns the order in which they ran.
fn order_of_work(seed: u64) -> Vec<&'static str> {
    let driver = sim(seed);
    let streams: Vec<_> = (0..3).map(|_| driver.create_stream(Priority::Default).unwrap()).collect();
    let order = Arc::new(Mutex::new(Vec::new()));
    let put = |stream: usize, name| {
        let order = Arc::clone(&order);
        driver.host_function(streams[stream], Box::new(move || order.lock().unwrap().push(name))).unwrap();
    };
    let event = driver.create_event(EventKind::Timing).unwrap();
    put(0, "a1");
    put(0, "a2");
    driver.record_event(event, streams[0]).unwrap();
    driver.wait_event(streams[2], event).unwrap();
    put(2, "c1");
    put(1, "b1");
    put(1, "b2");
    driver.synchronize().unwrap();
    Arc::try_unwrap(order).unwrap().into_inner().unwrap()
}

#[test]
fn a_seed_gives_the_same_order_every_time() {
    for seed in 0..20 {
        assert_eq!(order_of_work(seed), order_of_work(seed));
    }
}

#[test]
fn seeds_reach_every_order_that_streams_and_events_allow() {
    let orders: HashSet<_> = (0..1000).map(order_of_work).collect();
    for order in &orders {
        let at = |name| order.iter().position(|&other| other == name).unwrap();
        assert!(at("a1") < at("a2") && at("a2") < at("c1") && at("b1") < at("b2"), "{order:?}");
    }
    assert_eq!(orders.len(), 10, "five things in two chains of three and two");
}

#[test]
fn nothing_runs_before_something_needs_it() {
    let driver = sim(0);
    let stream = driver.create_stream(Priority::Default).unwrap();
    let address = driver.malloc(4).unwrap();
    driver.copy_to_device(address, &[1; 4], StreamId::NULL).unwrap();
    let mut target = [0; 4];
    // SAFETY: the array outlives the device, and is read only between steps.
    unsafe { driver.copy_from_device_async(target.as_mut_ptr(), address, 4, stream).unwrap() };
    assert_eq!(target, [0; 4]);
    assert!(driver.step().unwrap());
    assert_eq!(target, [1; 4]);
    assert!(!driver.step().unwrap());
}

#[test]
fn a_query_may_answer_late_and_may_answer_at_once() {
    let answers: HashSet<bool> = (0..100)
        .map(|seed| {
            let driver = sim(seed);
            driver.host_function(StreamId::NULL, Box::new(|| {})).unwrap();
            driver.query_stream(StreamId::NULL).unwrap()
        })
        .collect();
    assert_eq!(answers.len(), 2);
}

#[test]
fn an_event_after_busy_time_is_passed_when_the_clock_gets_there() {
    let driver = sim(0);
    let stream = driver.create_stream(Priority::Default).unwrap();
    let event = driver.create_event(EventKind::Timing).unwrap();
    driver.busy_until(stream, 100).unwrap();
    driver.record_event(event, stream).unwrap();
    driver.busy_until(stream, 200).unwrap();
    driver.set_time(99);
    assert!(!driver.query_event(event).unwrap());
    driver.advance(1);
    assert!(driver.query_event(event).unwrap());
    assert!(!driver.query_stream(stream).unwrap());
    driver.set_time(200);
    assert!(driver.query_stream(stream).unwrap());
}

#[test]
fn busy_time_passes_on_to_streams_that_wait() {
    let driver = sim(0);
    let a = driver.create_stream(Priority::Default).unwrap();
    let b = driver.create_stream(Priority::Default).unwrap();
    let event = driver.create_event(EventKind::Timing).unwrap();
    driver.busy_until(a, 100).unwrap();
    driver.record_event(event, a).unwrap();
    driver.wait_event(b, event).unwrap();
    driver.record_event(event, b).unwrap();
    assert!(!driver.query_event(event).unwrap());
    driver.set_time(100);
    assert!(driver.query_event(event).unwrap());
}

#[test]
fn real_work_waits_for_busy_time_before_it_and_delays_busy_time_after_it() {
    for seed in 0..20 {
        let driver = sim(seed);
        let a = driver.create_stream(Priority::Default).unwrap();
        let address = driver.malloc(4).unwrap();
        let events: Vec<_> = (0..2).map(|_| driver.create_event(EventKind::Timing).unwrap()).collect();
        driver.busy_until(a, 100).unwrap();
        driver.memset(address, 1, 4, a).unwrap();
        driver.record_event(events[0], a).unwrap();
        driver.busy_until(a, 300).unwrap();
        driver.record_event(events[1], a).unwrap();
        driver.run().unwrap();
        assert!(!driver.query_event(events[0]).unwrap());
        driver.set_time(100);
        driver.run().unwrap();
        assert!(driver.query_event(events[0]).unwrap() && !driver.query_event(events[1]).unwrap());
        driver.synchronize_event(events[1]).unwrap();
        assert_eq!(driver.now_us(), 300);
        assert_eq!(driver.elapsed_us(events[0], events[1]).unwrap(), 200.0);
        assert_eq!(read(&*driver, address, 4), [1; 4]);
    }
}

#[test]
fn synchronising_moves_the_clock_no_further_than_it_must() {
    let driver = sim(0);
    let a = driver.create_stream(Priority::Default).unwrap();
    let b = driver.create_stream(Priority::Default).unwrap();
    driver.busy_until(a, 50).unwrap();
    driver.busy_until(b, 70).unwrap();
    driver.synchronize_stream(a).unwrap();
    assert_eq!(driver.now_us(), 50);
    driver.synchronize().unwrap();
    assert_eq!(driver.now_us(), 70);
}

#[test]
fn the_clock_does_not_go_back() {
    let driver = sim(0);
    driver.set_time(10);
    driver.set_time(5);
    assert_eq!(driver.now_us(), 10);
}

#[test]
fn time_is_not_known_of_events_that_are_not_passed() {
    let driver = sim(0);
    let start = driver.create_event(EventKind::Timing).unwrap();
    let end = driver.create_event(EventKind::Timing).unwrap();
    driver.record_event(start, StreamId::NULL).unwrap();
    assert_eq!(kind(driver.elapsed_us(start, end)), ErrorKind::NotPassed(end.0));
    driver.busy_until(StreamId::NULL, 10).unwrap();
    driver.record_event(end, StreamId::NULL).unwrap();
    assert_eq!(kind(driver.elapsed_us(start, end)), ErrorKind::NotPassed(end.0));
    driver.synchronize().unwrap();
    assert_eq!(driver.elapsed_us(start, end).unwrap(), 10.0);
}

#[test]
fn an_event_has_the_time_of_its_last_record() {
    let driver = sim(0);
    let stream = driver.create_stream(Priority::Default).unwrap();
    let event = driver.create_event(EventKind::Timing).unwrap();
    let start = driver.create_event(EventKind::Timing).unwrap();
    driver.record_event(start, stream).unwrap();
    driver.host_function(stream, Box::new(|| {})).unwrap();
    driver.record_event(event, stream).unwrap();
    driver.busy_until(StreamId::NULL, 30).unwrap();
    driver.record_event(event, StreamId::NULL).unwrap();
    driver.run().unwrap();
    driver.synchronize().unwrap();
    assert_eq!(driver.elapsed_us(start, event).unwrap(), 30.0);
}

#[test]
fn streams_of_elsewhere_keep_their_names() {
    let driver = sim(0);
    let stream = StreamId(0x7f00_1234);
    assert!(matches!(kind(driver.busy_until(stream, 1)), ErrorKind::UnknownHandle { .. }));
    driver.adopt_stream(stream);
    driver.busy_until(stream, 1).unwrap();
    driver.adopt_stream(stream);
    assert!(!driver.query_stream(stream).unwrap());
}

#[test]
fn threads_may_share_a_device() {
    let driver = sim(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let stream = driver.create_stream(Priority::Default).unwrap();
                let address = driver.malloc(64).unwrap();
                for value in 0..100 {
                    driver.memset(address, value, 64, stream).unwrap();
                    let mut bytes = [0; 64];
                    driver.copy_from_device(&mut bytes, address, stream).unwrap();
                    assert_eq!(bytes, [value; 64]);
                }
                driver.free(address).unwrap();
            });
        }
    });
}
