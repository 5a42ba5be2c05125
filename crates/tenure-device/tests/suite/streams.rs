//! Streams: pools, the current stream of a thread, guards.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use tenure_core::StreamId;
use tenure_device::functions::{DeviceGuard, current_device, set_device};
use tenure_device::sim::{Failure, SimConfig, SimPlatform};
use tenure_device::{
    Call, ErrorKind, Event, EventKind, Platform, Priority, STREAMS_PER_POOL, Stream, StreamCalls, StreamGuard,
    StreamKind, Streams,
};

use crate::common::{drivers, kind, read, sim};

/// Returns a stream of each of two devices, and the devices' streams.
fn two_devices() -> [(Streams, Stream); 2] {
    let platform = SimPlatform::new(vec![SimConfig::default(); 2]);
    [0, 1].map(|device| {
        let streams = Streams::new(platform.driver(device).unwrap());
        let stream = streams.pooled(Priority::High).unwrap();
        (streams, stream)
    })
}

#[test]
fn a_pool_hands_out_its_streams_in_turn() {
    for driver in drivers() {
        let streams = Streams::new(driver.shared());
        for priority in Priority::ALL {
            let round = || (0..STREAMS_PER_POOL).map(|_| streams.pooled(priority).unwrap().id());
            let first: Vec<_> = round().collect();
            assert!(round().eq(first.iter().copied()));
            assert!(round().eq(first));
        }
    }
}

#[test]
fn no_two_streams_of_the_pools_are_one() {
    for driver in drivers() {
        let streams = Streams::new(driver.shared());
        let mut ids = Vec::new();
        for priority in Priority::ALL {
            ids.extend((0..STREAMS_PER_POOL).map(|_| streams.pooled(priority).unwrap().id()));
        }
        ids.push(streams.null().id());
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 3 * STREAMS_PER_POOL + 1);
    }
}

#[test]
fn a_stream_is_created_when_its_turn_comes_and_never_again() {
    let driver = sim(0);
    let streams = Streams::new(driver.clone());
    let created = || driver.calls(Some(Call::CreateStream));
    assert_eq!(created(), 0);
    for asked in 1..=3 * STREAMS_PER_POOL {
        assert_eq!(streams.pooled(Priority::Low).unwrap().kind(), StreamKind::Pooled(Priority::Low));
        assert_eq!(created(), asked.min(STREAMS_PER_POOL) as u64);
    }
}

#[test]
fn a_creation_that_fails_leaves_the_pool_as_it_was() {
    let driver = sim(0);
    let streams = Streams::new(driver.clone());
    let mut ids = vec![streams.pooled(Priority::Default).unwrap().id()];
    driver.inject(Failure::of(Call::CreateStream, 1));
    let error = streams.pooled(Priority::Default).unwrap_err();
    assert_eq!((error.error.kind, error.at.file()), (ErrorKind::Injected, file!()));
    ids.extend((1..STREAMS_PER_POOL).map(|_| streams.pooled(Priority::Default).unwrap().id()));
    ids.iter().for_each(|&id| assert_eq!(streams.pooled(Priority::Default).unwrap().id(), id));
}

#[test]
fn threads_that_ask_at_once_share_the_pool_evenly() {
    for driver in drivers() {
        let streams = Streams::new(driver.shared());
        let ask = || (0..STREAMS_PER_POOL).map(|_| streams.pooled(Priority::Default).unwrap().id()).collect::<Vec<_>>();
        let asked: Vec<StreamId> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let mut times = BTreeMap::new();
        asked.iter().for_each(|id| *times.entry(id).or_insert(0) += 1);
        assert_eq!(times.into_values().collect::<Vec<_>>(), [8; STREAMS_PER_POOL]);
    }
}

#[test]
fn the_streams_of_the_pools_end_with_their_last_handle_and_no_others() {
    let driver = sim(0);
    let streams = Streams::new(driver.clone());
    let external = driver.create_stream(Priority::Default).unwrap();
    let stream = streams.external(external);
    let pooled = streams.pooled(Priority::Default).unwrap().id();
    drop(streams);
    assert!(driver.query_stream(pooled).unwrap(), "a handle is left");
    drop(stream);
    assert!(matches!(kind(driver.query_stream(pooled)), ErrorKind::UnknownHandle { what: "stream", .. }));
    driver.destroy_stream(external).unwrap();
}

#[test]
fn work_of_a_stream_can_be_queried_and_waited_for() {
    for driver in drivers() {
        let streams = Streams::new(driver.shared());
        let address = driver.malloc(64).unwrap();
        let external = driver.create_stream(Priority::Default).unwrap();
        for stream in [streams.null(), streams.pooled(Priority::High).unwrap(), streams.external(external)] {
            assert_eq!(stream.device(), driver.device());
            driver.memset(address, 3, 64, stream.id()).unwrap();
            stream.synchronize().unwrap();
            assert!(stream.query().unwrap());
            assert_eq!(read(&*driver, address, 64), [3; 64]);
        }
        driver.destroy_stream(external).unwrap();
        driver.free(address).unwrap();
    }
}

#[test]
fn a_stream_from_outside_is_known_once_it_is_adopted() {
    let driver = sim(0);
    let stream = Streams::new(driver.clone()).external(StreamId(0x7f00_0000_1000));
    assert_eq!(stream.kind(), StreamKind::External);
    assert!(matches!(stream.query().unwrap_err().error.kind, ErrorKind::UnknownHandle { what: "stream", .. }));
    driver.adopt_stream(stream.id());
    assert!(stream.query().unwrap());
}

#[test]
fn a_host_function_runs_in_the_order_of_its_stream() {
    for driver in drivers() {
        let stream = Streams::new(driver.shared()).pooled(Priority::Default).unwrap();
        let turn = Arc::new(AtomicU32::new(0));
        for expected in 0..10 {
            let turn = Arc::clone(&turn);
            stream.host_function(move || assert_eq!(turn.fetch_add(1, Ordering::SeqCst), expected)).unwrap();
        }
        stream.synchronize().unwrap();
        assert_eq!(turn.load(Ordering::SeqCst), 10);
    }
}

#[test]
fn a_stream_that_waits_sees_what_came_before_the_event() {
    for driver in drivers() {
        let streams = Streams::new(driver.shared());
        let [first, second] = [(); 2].map(|()| streams.pooled(Priority::Default).unwrap());
        let address = driver.malloc(4).unwrap();
        let mut event = Event::new(driver.shared(), EventKind::Order);
        driver.memset(address, 7, 4, first.id()).unwrap();
        event.record(&first).unwrap();
        second.wait(&event).unwrap();
        let mut bytes = [0; 4];
        driver.copy_from_device(&mut bytes, address, second.id()).unwrap();
        assert_eq!(bytes, [7; 4]);
        driver.free(address).unwrap();
    }
}

#[test]
fn the_null_stream_is_current_until_another_is() {
    for driver in drivers() {
        let streams = Streams::new(driver.shared());
        assert_eq!(streams.current(), streams.null());
        assert_eq!(streams.current().kind(), StreamKind::Null);
        let stream = streams.pooled(Priority::Default).unwrap();
        stream.make_current();
        assert_eq!(streams.current(), stream);
        assert_eq!(streams.current().kind(), stream.kind());
        streams.null().make_current();
        assert_eq!(streams.current(), streams.null());
    }
}

#[test]
fn a_current_stream_is_of_one_thread() {
    let streams = Streams::new(sim(0));
    streams.pooled(Priority::Default).unwrap().make_current();
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(streams.current(), streams.null()));
    });
    assert_ne!(streams.current(), streams.null());
}

#[test]
fn each_device_has_a_current_stream_of_its_own() {
    let [(streams, stream), (other_streams, other)] = two_devices();
    stream.make_current();
    assert_eq!((streams.current(), other_streams.current()), (stream.clone(), other_streams.null()));
    other.make_current();
    assert_eq!((streams.current(), other_streams.current()), (stream, other));
}

#[test]
fn the_current_stream_of_devices_opened_again_is_the_null_stream() {
    for _ in 0..100 {
        let streams = Streams::new(sim(0));
        assert_eq!(streams.current(), streams.null());
        streams.pooled(Priority::Default).unwrap().make_current();
    }
}

#[test]
fn a_guard_restores_stream_and_device() {
    let [(streams, stream), (other_streams, other)] = two_devices();
    let second = streams.pooled(Priority::Low).unwrap();
    set_device(0);
    {
        let _guard = StreamGuard::new(&stream);
        {
            let _guard = StreamGuard::new(&other);
            assert_eq!((current_device(), streams.current(), other_streams.current()), (1, stream.clone(), other));
            let _guard = StreamGuard::new(&second);
            assert_eq!((current_device(), streams.current()), (0, second));
        }
        assert_eq!((current_device(), streams.current(), other_streams.current()), (0, stream, other_streams.null()));
    }
    assert_eq!((current_device(), streams.current()), (0, streams.null()));
}

#[test]
fn a_guard_restores_through_a_panic() {
    let [(streams, stream), _] = two_devices();
    set_device(5);
    catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guard = StreamGuard::new(&stream);
        let _device = DeviceGuard::new(3);
        panic!("on purpose");
    }))
    .unwrap_err();
    assert_eq!((current_device(), streams.current()), (5, streams.null()));
}
