//! What every driver does. The suite knows only `dyn Driver`, and runs once for each kind of device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use tenure_alloc::ChunkId;
use tenure_core::StreamId;
use tenure_device::{Access, Driver, ErrorKind, EventId, EventKind, Priority};

use crate::common::{drivers, kind, mapped_chunk, read};

/// More than the device has left, in whole granules.
fn too_much(driver: &dyn Driver) -> u64 {
    driver.memory_info().unwrap().free.next_multiple_of(driver.granularity()) + driver.granularity()
}

#[test]
fn bytes_come_back_as_they_went() {
    for driver in drivers() {
        let address = driver.malloc(1000).unwrap();
        let bytes: Vec<u8> = (0..1000).map(|i| i as u8).collect();
        driver.copy_to_device(address, &bytes, StreamId::NULL).unwrap();
        assert_eq!(read(&*driver, address, 1000), bytes);
        driver.free(address).unwrap();
    }
}

#[test]
fn work_of_one_stream_runs_in_order() {
    for driver in drivers() {
        let (stream, address) = (driver.create_stream(Priority::Default).unwrap(), driver.malloc(64).unwrap());
        driver.memset(address, 1, 64, stream).unwrap();
        driver.memset(address, 2, 32, stream).unwrap();
        driver.copy_on_device(address + 32, address, 16, stream).unwrap();
        let mut bytes = [0; 64];
        driver.copy_from_device(&mut bytes, address, stream).unwrap();
        assert_eq!(bytes, std::array::from_fn(|i| if i < 48 { 2 } else { 1 }));
    }
}

#[test]
fn an_asynchronous_copy_is_done_once_its_stream_is_synchronised() {
    for driver in drivers() {
        let (stream, address) = (driver.create_stream(Priority::Default).unwrap(), driver.malloc(8).unwrap());
        let source = [7u8; 8];
        let mut target = [0u8; 8];
        // SAFETY: both arrays outlive the synchronisation, and nothing touches them before.
        unsafe {
            driver.copy_to_device_async(address, source.as_ptr(), 8, stream).unwrap();
            driver.copy_from_device_async(target.as_mut_ptr(), address, 8, stream).unwrap();
        }
        driver.synchronize_stream(stream).unwrap();
        assert_eq!(target, source);
    }
}

#[test]
fn a_stream_that_waits_for_an_event_sees_what_came_before_it() {
    for driver in drivers() {
        let (a, b) =
            (driver.create_stream(Priority::Default).unwrap(), driver.create_stream(Priority::Default).unwrap());
        let (address, event) = (driver.malloc(4).unwrap(), driver.create_event(EventKind::Timing).unwrap());
        driver.memset(address, 5, 4, a).unwrap();
        driver.record_event(event, a).unwrap();
        driver.wait_event(b, event).unwrap();
        driver.destroy_event(event).unwrap();
        let mut bytes = [0; 4];
        driver.copy_from_device(&mut bytes, address, b).unwrap();
        assert_eq!(bytes, [5; 4]);
    }
}

#[test]
fn a_host_function_has_run_when_its_event_is_passed() {
    for driver in drivers() {
        let (stream, event) =
            (driver.create_stream(Priority::Default).unwrap(), driver.create_event(EventKind::Timing).unwrap());
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        driver.host_function(stream, Box::new(move || _ = counted.fetch_add(1, Ordering::SeqCst))).unwrap();
        driver.record_event(event, stream).unwrap();
        while !driver.query_event(event).unwrap() {}
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn a_query_of_a_stream_comes_true() {
    for driver in drivers() {
        let (stream, address) = (driver.create_stream(Priority::Default).unwrap(), driver.malloc(4).unwrap());
        driver.memset(address, 5, 4, stream).unwrap();
        while !driver.query_stream(stream).unwrap() {}
        driver.synchronize_stream(stream).unwrap();
    }
}

#[test]
fn an_event_that_was_not_recorded_counts_as_passed() {
    for driver in drivers() {
        let event = driver.create_event(EventKind::Timing).unwrap();
        assert!(driver.query_event(event).unwrap());
        driver.wait_event(StreamId::NULL, event).unwrap();
        driver.synchronize_event(event).unwrap();
    }
}

#[test]
fn time_between_two_events_is_not_negative() {
    for driver in drivers() {
        let (start, end) =
            (driver.create_event(EventKind::Timing).unwrap(), driver.create_event(EventKind::Timing).unwrap());
        let address = driver.malloc(1 << 20).unwrap();
        driver.record_event(start, StreamId::NULL).unwrap();
        driver.memset(address, 0, 1 << 20, StreamId::NULL).unwrap();
        driver.record_event(end, StreamId::NULL).unwrap();
        driver.synchronize().unwrap();
        assert!(driver.elapsed_us(start, end).unwrap() >= 0.0);
    }
}

#[test]
fn free_memory_goes_down_with_malloc_and_create_and_comes_back() {
    for driver in drivers() {
        let (before, bytes) = (driver.memory_info().unwrap(), driver.granularity() * 4);
        let (segment, chunk) = (driver.malloc(bytes).unwrap(), driver.create(bytes).unwrap());
        assert!(driver.memory_info().unwrap().free + 2 * bytes <= before.free);
        driver.free(segment).unwrap();
        driver.release(chunk).unwrap();
        assert_eq!(driver.memory_info().unwrap(), before);
    }
}

#[test]
fn asking_for_more_than_there_is_fails_and_changes_nothing() {
    for driver in drivers() {
        let (before, requested) = (driver.memory_info().unwrap(), too_much(&*driver));
        for error in [kind(driver.malloc(requested)), kind(driver.create(requested))] {
            assert!(matches!(error, ErrorKind::OutOfMemory { requested: asked, .. } if asked == requested), "{error}");
        }
        assert_eq!(driver.memory_info().unwrap(), before);
    }
}

#[test]
fn a_chunk_keeps_its_bytes_when_it_moves() {
    for driver in drivers() {
        let bytes = driver.granularity();
        let (address, chunk) = mapped_chunk(&*driver, bytes);
        driver.copy_to_device(address, &[3; 100], StreamId::NULL).unwrap();
        driver.unmap(address, bytes).unwrap();
        let other = driver.reserve(bytes).unwrap();
        driver.map(other, chunk).unwrap();
        driver.set_access(other, bytes, Access::ReadWrite).unwrap();
        assert_eq!(read(&*driver, other, 100), [3; 100]);
    }
}

#[test]
fn a_write_through_one_address_is_read_through_another_of_the_same_chunk() {
    for driver in drivers() {
        let bytes = driver.granularity();
        let (first, chunk) = mapped_chunk(&*driver, bytes);
        let second = driver.reserve(bytes).unwrap();
        driver.map(second, chunk).unwrap();
        driver.set_access(second, bytes, Access::ReadWrite).unwrap();
        for value in 0..20 {
            driver.memset(first, value, 64, StreamId::NULL).unwrap();
            assert_eq!(read(&*driver, second, 64), [value; 64]);
        }
    }
}

#[test]
fn work_may_cross_from_chunk_to_chunk() {
    for driver in drivers() {
        let bytes = driver.granularity();
        let address = driver.reserve(2 * bytes).unwrap();
        for at in [address, address + bytes] {
            driver.map(at, driver.create(bytes).unwrap()).unwrap();
        }
        driver.set_access(address, 2 * bytes, Access::ReadWrite).unwrap();
        driver.memset(address + bytes - 10, 9, 20, StreamId::NULL).unwrap();
        assert_eq!(read(&*driver, address + bytes - 10, 20), [9; 20]);
        driver.unmap(address, 2 * bytes).unwrap();
    }
}

#[test]
fn a_part_of_a_chunk_cannot_be_made_accessible_or_unmapped() {
    for driver in drivers() {
        let (address, _) = mapped_chunk(&*driver, 4 * driver.granularity());
        driver.set_access(address, driver.granularity(), Access::ReadWrite).unwrap_err();
        driver.unmap(address, driver.granularity()).unwrap_err();
        driver.memset(address, 1, 4 * driver.granularity(), StreamId::NULL).unwrap();
        driver.synchronize().unwrap();
    }
}

#[test]
fn two_chunks_cannot_be_mapped_at_one_address() {
    for driver in drivers() {
        let (address, _) = mapped_chunk(&*driver, driver.granularity());
        let chunk = driver.create(driver.granularity()).unwrap();
        driver.map(address, chunk).unwrap_err();
        driver.release(chunk).unwrap();
    }
}

#[test]
fn what_was_given_back_is_not_known_any_more() {
    for driver in drivers() {
        let bytes = driver.granularity();
        let segment = driver.malloc(bytes).unwrap();
        driver.free(segment).unwrap();
        driver.free(segment).unwrap_err();
        let chunk = driver.create(bytes).unwrap();
        driver.release(chunk).unwrap();
        driver.release(chunk).unwrap_err();
        let range = driver.reserve(bytes).unwrap();
        driver.unreserve(range, bytes).unwrap();
        driver.unreserve(range, bytes).unwrap_err();
    }
}

#[test]
fn handles_from_elsewhere_are_refused_and_harm_nothing() {
    for driver in drivers() {
        assert!(matches!(kind(driver.release(ChunkId(u64::MAX))), ErrorKind::UnknownHandle { what: "chunk", .. }));
        assert!(matches!(kind(driver.query_event(EventId(u64::MAX))), ErrorKind::UnknownHandle { what: "event", .. }));
        let stream = StreamId(u64::MAX);
        assert!(matches!(kind(driver.query_stream(stream)), ErrorKind::UnknownHandle { what: "stream", .. }));
        driver.synchronize().unwrap();
    }
}

#[test]
fn a_destroyed_stream_still_does_its_work() {
    for driver in drivers() {
        let (stream, address) = (driver.create_stream(Priority::Default).unwrap(), driver.malloc(16).unwrap());
        driver.memset(address, 4, 16, stream).unwrap();
        driver.destroy_stream(stream).unwrap();
        driver.synchronize().unwrap();
        assert_eq!(read(&*driver, address, 16), [4; 16]);
    }
}

/// A change of some of the bytes that the test below looks at.
#[derive(Clone, Debug)]
enum Change {
    Copy { at: usize, bytes: Vec<u8> },
    Fill { at: usize, value: u8, len: usize },
    Move { to: usize, from: usize, len: usize },
}

/// How many bytes lie on each side of a border between chunks.
const SIDE: usize = 300;

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0..SIDE, prop::collection::vec(any::<u8>(), 0..SIDE)).prop_map(|(at, bytes)| Change::Copy { at, bytes }),
        (0..SIDE, any::<u8>(), 0..SIDE).prop_map(|(at, value, len)| Change::Fill { at, value, len }),
        (0..SIDE, SIDE..2 * SIDE).prop_map(|(to, from)| Change::Move {
            to,
            from,
            len: (2 * SIDE - from).min(from - to)
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn mapped_chunks_are_one_array_of_bytes(changes in prop::collection::vec(change(), 1..20)) {
        for driver in drivers() {
            let granule = driver.granularity();
            let address = driver.reserve(2 * granule).unwrap();
            for at in [address, address + granule] {
                driver.map(at, driver.create(granule).unwrap()).unwrap();
            }
            driver.set_access(address, 2 * granule, Access::ReadWrite).unwrap();
            let first = address + granule - SIDE as u64;
            let at = |offset: usize| first + offset as u64;
            let mut expected = vec![0; 2 * SIDE];
            driver.memset(first, 0, expected.len() as u64, StreamId::NULL).unwrap();
            for change in &changes {
                match *change {
                    Change::Copy { at: offset, ref bytes } => {
                        driver.copy_to_device(at(offset), bytes, StreamId::NULL).unwrap();
                        expected[offset..offset + bytes.len()].copy_from_slice(bytes);
                    }
                    Change::Fill { at: offset, value, len } => {
                        driver.memset(at(offset), value, len as u64, StreamId::NULL).unwrap();
                        expected[offset..offset + len].fill(value);
                    }
                    Change::Move { to, from, len } => {
                        driver.copy_on_device(at(to), at(from), len as u64, StreamId::NULL).unwrap();
                        expected.copy_within(from..from + len, to);
                    }
                }
            }
            prop_assert_eq!(read(&*driver, first, 2 * SIDE), expected);
        }
    }
}
