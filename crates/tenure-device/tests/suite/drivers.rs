//! The behaviour that all drivers share. The tests know only `dyn Driver`, and run once for each kind of device.
//!
//! A real device has other users, other tests among them. So every test gives back the memory it took, allocates none
//! that others might miss, and compares free memory by large amounts only.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use tenure_alloc::ChunkId;
use tenure_core::StreamId;
use tenure_device::{AccessMode, Driver, ErrorKind, EventId, EventKind, Priority};

use crate::common::{drivers, kind, map_anywhere, mapped_chunk, read, unmap_again};

/// The most, in bytes, by which other users may change the free memory while a test runs.
const OTHERS_BYTES: u64 = 1 << 30;

fn stream(driver: &dyn Driver) -> StreamId {
    driver.create_stream(Priority::Default).unwrap()
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
        let stream = stream(&*driver);
        let address = driver.malloc(64).unwrap();
        driver.memset(address, 1, 64, stream).unwrap();
        driver.memset(address, 2, 32, stream).unwrap();
        driver.copy_on_device(address + 32, address, 16, stream).unwrap();
        let mut bytes = [0; 64];
        driver.copy_from_device(&mut bytes, address, stream).unwrap();
        assert_eq!(bytes, std::array::from_fn(|i| if i < 48 { 2 } else { 1 }));
        driver.free(address).unwrap();
        driver.destroy_stream(stream).unwrap();
    }
}

#[test]
fn an_asynchronous_copy_is_done_once_its_stream_is_synchronised() {
    for driver in drivers() {
        let stream = stream(&*driver);
        let address = driver.malloc(8).unwrap();
        let source = [7u8; 8];
        let mut target = [0u8; 8];
        // SAFETY: both arrays outlive the synchronisation, and nothing touches them before.
        unsafe {
            driver.copy_to_device_async(address, source.as_ptr(), 8, stream).unwrap();
            driver.copy_from_device_async(target.as_mut_ptr(), address, 8, stream).unwrap();
        }
        driver.synchronize_stream(stream).unwrap();
        assert_eq!(target, source);
        driver.free(address).unwrap();
        driver.destroy_stream(stream).unwrap();
    }
}

#[test]
fn streams_of_every_priority_do_their_work() {
    for driver in drivers() {
        let address = driver.malloc(3).unwrap();
        let streams = Priority::ALL.map(|priority| driver.create_stream(priority).unwrap());
        for (at, &stream) in (address..).zip(&streams) {
            driver.memset(at, 6, 1, stream).unwrap();
        }
        for stream in streams {
            driver.synchronize_stream(stream).unwrap();
        }
        assert_eq!(read(&*driver, address, 3), [6; 3]);
        for stream in streams {
            driver.destroy_stream(stream).unwrap();
        }
        driver.free(address).unwrap();
    }
}

#[test]
fn a_stream_that_waits_for_an_event_of_any_kind_sees_what_came_before_it() {
    for driver in drivers() {
        let a = stream(&*driver);
        let b = stream(&*driver);
        let address = driver.malloc(4).unwrap();
        for (value, kind) in [(5, EventKind::Order), (6, EventKind::Timing), (7, EventKind::Interprocess)] {
            let event = driver.create_event(kind).unwrap();
            driver.memset(address, value, 4, a).unwrap();
            driver.record_event(event, a).unwrap();
            driver.wait_event(b, event).unwrap();
            driver.destroy_event(event).unwrap();
            let mut bytes = [0; 4];
            driver.copy_from_device(&mut bytes, address, b).unwrap();
            assert_eq!(bytes, [value; 4], "{kind:?}");
        }
        driver.free(address).unwrap();
        for stream in [a, b] {
            driver.destroy_stream(stream).unwrap();
        }
    }
}

#[test]
fn a_host_function_has_run_when_its_event_is_passed() {
    for driver in drivers() {
        let stream = stream(&*driver);
        let event = driver.create_event(EventKind::Order).unwrap();
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        driver.host_function(stream, Box::new(move || _ = counted.fetch_add(1, Ordering::SeqCst))).unwrap();
        driver.record_event(event, stream).unwrap();
        while !driver.query_event(event).unwrap() {}
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        driver.destroy_event(event).unwrap();
        driver.destroy_stream(stream).unwrap();
    }
}

#[test]
fn a_query_of_a_stream_comes_true() {
    for driver in drivers() {
        let stream = stream(&*driver);
        let address = driver.malloc(4).unwrap();
        driver.memset(address, 5, 4, stream).unwrap();
        while !driver.query_stream(stream).unwrap() {}
        driver.synchronize_stream(stream).unwrap();
        driver.free(address).unwrap();
        driver.destroy_stream(stream).unwrap();
    }
}

#[test]
fn an_event_that_was_not_recorded_counts_as_passed() {
    for driver in drivers() {
        for kind in [EventKind::Order, EventKind::Timing, EventKind::Interprocess] {
            let event = driver.create_event(kind).unwrap();
            assert!(driver.query_event(event).unwrap());
            driver.wait_event(StreamId::NULL, event).unwrap();
            driver.synchronize_event(event).unwrap();
            driver.destroy_event(event).unwrap();
        }
    }
}

#[test]
fn time_between_two_events_is_not_negative() {
    for driver in drivers() {
        let [start, end] = [0, 1].map(|_| driver.create_event(EventKind::Timing).unwrap());
        let address = driver.malloc(1 << 20).unwrap();
        driver.record_event(start, StreamId::NULL).unwrap();
        driver.memset(address, 0, 1 << 20, StreamId::NULL).unwrap();
        driver.record_event(end, StreamId::NULL).unwrap();
        driver.synchronize_event(end).unwrap();
        assert!(driver.elapsed_us(start, end).unwrap() >= 0.0);
        driver.free(address).unwrap();
        for event in [start, end] {
            driver.destroy_event(event).unwrap();
        }
    }
}

#[test]
fn only_events_for_timing_tell_the_time() {
    for driver in drivers() {
        for kind in [EventKind::Order, EventKind::Interprocess] {
            let event = driver.create_event(kind).unwrap();
            driver.record_event(event, StreamId::NULL).unwrap();
            driver.synchronize_event(event).unwrap();
            driver.elapsed_us(event, event).unwrap_err();
            driver.destroy_event(event).unwrap();
        }
    }
}

#[test]
fn only_interprocess_events_are_exported_and_only_other_processes_open_them() {
    for driver in drivers() {
        let [order, interprocess] =
            [EventKind::Order, EventKind::Interprocess].map(|kind| driver.create_event(kind).unwrap());
        driver.export_event(order).unwrap_err();
        let handle = driver.export_event(interprocess).unwrap();
        driver.open_event(&handle).unwrap_err();
        for event in [order, interprocess] {
            driver.destroy_event(event).unwrap();
        }
    }
}

#[test]
fn free_memory_goes_down_with_malloc_and_create_and_comes_back() {
    for driver in drivers() {
        let before = driver.memory_info().unwrap();
        let bytes = 2 * OTHERS_BYTES;
        let segment = driver.malloc(bytes).unwrap();
        let chunk = driver.create(bytes).unwrap();
        assert!(driver.memory_info().unwrap().free < before.free - 2 * bytes + OTHERS_BYTES);
        driver.free(segment).unwrap();
        driver.release(chunk).unwrap();
        let after = driver.memory_info().unwrap();
        assert!(after.free > before.free - OTHERS_BYTES && after.total == before.total);
    }
}

#[test]
fn asking_for_more_than_there_is_fails_and_changes_nothing() {
    for driver in drivers() {
        let before = driver.memory_info().unwrap();
        let requested = before.total.next_multiple_of(driver.granularity()) + driver.granularity();
        for error in [kind(driver.malloc(requested)), kind(driver.create(requested))] {
            assert!(matches!(error, ErrorKind::OutOfMemory { requested: asked, .. } if asked == requested), "{error}");
        }
        assert!(driver.memory_info().unwrap().free > before.free - OTHERS_BYTES);
    }
}

#[test]
fn no_process_holds_more_than_there_is() {
    for driver in drivers() {
        let total = driver.memory_info().unwrap().total;
        for process in driver.processes().unwrap_or_default() {
            assert!(process.bytes.is_none_or(|bytes| bytes <= total), "{process:?}");
        }
    }
}

#[test]
fn a_chunk_keeps_its_bytes_when_it_moves() {
    for driver in drivers() {
        let bytes = driver.granularity();
        let (address, chunk) = mapped_chunk(&*driver, bytes);
        driver.copy_to_device(address, &[3; 100], StreamId::NULL).unwrap();
        unmap_again(&*driver, address, bytes);
        let other = map_anywhere(&*driver, chunk, bytes);
        assert_eq!(read(&*driver, other, 100), [3; 100]);
        unmap_again(&*driver, other, bytes);
        driver.release(chunk).unwrap();
    }
}

#[test]
fn a_write_through_one_address_is_read_through_another_of_the_same_chunk() {
    for driver in drivers() {
        let bytes = driver.granularity();
        let (first, chunk) = mapped_chunk(&*driver, bytes);
        let second = map_anywhere(&*driver, chunk, bytes);
        for value in 0..20 {
            driver.memset(first, value, 64, StreamId::NULL).unwrap();
            assert_eq!(read(&*driver, second, 64), [value; 64]);
        }
        for address in [first, second] {
            unmap_again(&*driver, address, bytes);
        }
        driver.release(chunk).unwrap();
    }
}

#[test]
fn a_mapping_for_reading_shows_what_is_written_through_another() {
    for driver in drivers() {
        let bytes = driver.granularity();
        let (write, chunk) = mapped_chunk(&*driver, bytes);
        let read_only = map_anywhere(&*driver, chunk, bytes);
        driver.set_access(read_only, bytes, AccessMode::Read).unwrap();
        let copy = driver.malloc(64).unwrap();
        for value in 0..10 {
            driver.memset(write, value, 64, StreamId::NULL).unwrap();
            driver.copy_on_device(copy, read_only, 64, StreamId::NULL).unwrap();
            assert_eq!(read(&*driver, read_only, 64), [value; 64]);
            assert_eq!(read(&*driver, copy, 64), [value; 64]);
        }
        driver.free(copy).unwrap();
        for address in [write, read_only] {
            unmap_again(&*driver, address, bytes);
        }
        driver.release(chunk).unwrap();
    }
}

#[test]
fn a_mapping_for_reading_can_be_made_writable_again() {
    for driver in drivers() {
        let bytes = driver.granularity();
        let (address, chunk) = mapped_chunk(&*driver, bytes);
        driver.memset(address, 1, 64, StreamId::NULL).unwrap();
        driver.synchronize_stream(StreamId::NULL).unwrap();
        driver.set_access(address, bytes, AccessMode::Read).unwrap();
        assert_eq!(read(&*driver, address, 64), [1; 64]);
        driver.set_access(address, bytes, AccessMode::ReadWrite).unwrap();
        driver.memset(address, 2, 64, StreamId::NULL).unwrap();
        assert_eq!(read(&*driver, address, 64), [2; 64]);
        unmap_again(&*driver, address, bytes);
        driver.release(chunk).unwrap();
    }
}

#[test]
fn work_may_cross_from_chunk_to_chunk() {
    for driver in drivers() {
        let bytes = driver.granularity();
        let address = driver.reserve(2 * bytes).unwrap();
        let chunks = [address, address + bytes].map(|at| {
            let chunk = driver.create(bytes).unwrap();
            driver.map(at, chunk).unwrap();
            chunk
        });
        driver.set_access(address, 2 * bytes, AccessMode::ReadWrite).unwrap();
        driver.memset(address + bytes - 10, 9, 20, StreamId::NULL).unwrap();
        assert_eq!(read(&*driver, address + bytes - 10, 20), [9; 20]);
        unmap_again(&*driver, address, 2 * bytes);
        for chunk in chunks {
            driver.release(chunk).unwrap();
        }
    }
}

#[test]
fn a_part_of_a_chunk_cannot_be_made_accessible_or_unmapped() {
    for driver in drivers() {
        let bytes = 4 * driver.granularity();
        let (address, chunk) = mapped_chunk(&*driver, bytes);
        driver.set_access(address, driver.granularity(), AccessMode::ReadWrite).unwrap_err();
        driver.unmap(address, driver.granularity()).unwrap_err();
        driver.memset(address, 1, bytes, StreamId::NULL).unwrap();
        driver.synchronize_stream(StreamId::NULL).unwrap();
        unmap_again(&*driver, address, bytes);
        driver.release(chunk).unwrap();
    }
}

#[test]
fn two_chunks_cannot_be_mapped_at_one_address() {
    for driver in drivers() {
        let bytes = driver.granularity();
        let (address, first) = mapped_chunk(&*driver, bytes);
        let second = driver.create(bytes).unwrap();
        driver.map(address, second).unwrap_err();
        unmap_again(&*driver, address, bytes);
        for chunk in [first, second] {
            driver.release(chunk).unwrap();
        }
    }
}

#[test]
fn a_chunk_comes_back_through_its_descriptor_with_its_bytes() {
    for driver in drivers() {
        let bytes = 2 * driver.granularity();
        let (mine, chunk) = mapped_chunk(&*driver, bytes);
        driver.copy_to_device(mine + bytes - 8, &[1; 8], StreamId::NULL).unwrap();
        let descriptor = driver.export(chunk).unwrap();
        let import = driver.import(descriptor.as_fd(), bytes).unwrap();
        let theirs = map_anywhere(&*driver, import, bytes);
        assert_eq!(read(&*driver, theirs + bytes - 8, 8), [1; 8]);
        for value in 2..20 {
            driver.copy_to_device(theirs, &[value; 64], StreamId::NULL).unwrap();
            assert_eq!(read(&*driver, mine, 64), [value; 64]);
            driver.copy_to_device(mine, &[!value; 64], StreamId::NULL).unwrap();
            assert_eq!(read(&*driver, theirs, 64), [!value; 64]);
        }
        for address in [mine, theirs] {
            unmap_again(&*driver, address, bytes);
        }
        for chunk in [chunk, import] {
            driver.release(chunk).unwrap();
        }
    }
}

#[test]
fn an_import_keeps_its_memory_when_the_exported_chunk_is_released() {
    for driver in drivers() {
        let bytes = driver.granularity();
        let (mine, chunk) = mapped_chunk(&*driver, bytes);
        driver.copy_to_device(mine, &[7; 64], StreamId::NULL).unwrap();
        let descriptor = driver.export(chunk).unwrap();
        unmap_again(&*driver, mine, bytes);
        driver.release(chunk).unwrap();
        let import = driver.import(descriptor.as_fd(), bytes).unwrap();
        drop(descriptor);
        let theirs = map_anywhere(&*driver, import, bytes);
        assert_eq!(read(&*driver, theirs, 64), [7; 64]);
        unmap_again(&*driver, theirs, bytes);
        driver.release(import).unwrap();
    }
}

#[test]
fn an_import_can_be_mapped_for_reading() {
    for driver in drivers() {
        let bytes = driver.granularity();
        let (mine, chunk) = mapped_chunk(&*driver, bytes);
        let import = driver.import(driver.export(chunk).unwrap().as_fd(), bytes).unwrap();
        let theirs = map_anywhere(&*driver, import, bytes);
        driver.set_access(theirs, bytes, AccessMode::Read).unwrap();
        driver.copy_to_device(mine, &[9; 64], StreamId::NULL).unwrap();
        assert_eq!(read(&*driver, theirs, 64), [9; 64]);
        for address in [mine, theirs] {
            unmap_again(&*driver, address, bytes);
        }
        for chunk in [chunk, import] {
            driver.release(chunk).unwrap();
        }
    }
}

#[test]
fn a_descriptor_of_something_else_is_not_imported() {
    for driver in drivers() {
        let other = File::open("/dev/null").unwrap();
        driver.import(other.as_fd(), driver.granularity()).unwrap_err();
    }
}

/// Host memory that shares no page with anything else.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

#[test]
fn copies_from_and_to_host_memory_are_the_same_whether_it_is_registered_or_not() {
    for driver in drivers() {
        let stream = stream(&*driver);
        let address = driver.malloc(64).unwrap();
        let mut page = Box::new(Page([0; 4096]));
        let source = page.0.as_mut_ptr();
        let target = page.0[64..].as_mut_ptr();
        for value in 0..4 {
            let registered = value % 2 == 0;
            page.0[..64].fill(value);
            // SAFETY: the page outlives the synchronisation, and nothing else touches it before.
            unsafe {
                if registered {
                    driver.register_host(source, 4096, AccessMode::ReadWrite).unwrap();
                }
                driver.copy_to_device_async(address, source, 64, stream).unwrap();
                driver.copy_from_device_async(target, address, 64, stream).unwrap();
            }
            driver.synchronize_stream(stream).unwrap();
            if registered {
                driver.unregister_host(source).unwrap();
            }
            assert_eq!(page.0[64..128], [value; 64]);
        }
        driver.free(address).unwrap();
        driver.destroy_stream(stream).unwrap();
    }
}

#[test]
fn host_memory_that_was_registered_for_reading_is_copied_from() {
    for driver in drivers() {
        let stream = stream(&*driver);
        let address = driver.malloc(64).unwrap();
        let mut page = Box::new(Page([5; 4096]));
        let source = page.0.as_mut_ptr();
        // SAFETY: the page outlives the synchronisation, and nothing writes it before.
        unsafe {
            driver.register_host(source, 4096, AccessMode::Read).unwrap();
            driver.copy_to_device_async(address, source, 64, stream).unwrap();
        }
        driver.synchronize_stream(stream).unwrap();
        driver.unregister_host(source).unwrap();
        assert_eq!(read(&*driver, address, 64), [5; 64]);
        driver.free(address).unwrap();
        driver.destroy_stream(stream).unwrap();
    }
}

#[test]
fn registered_host_memory_is_read_in_place_by_the_device() {
    for driver in drivers() {
        let stream = stream(&*driver);
        let address = driver.malloc(64).unwrap();
        let mut page = Box::new(Page([5; 4096]));
        let source = page.0.as_mut_ptr();
        assert!(driver.host_on_device(source).is_err());
        // SAFETY: the page outlives the synchronisation.
        unsafe { driver.register_host(source, 4096, AccessMode::Read).unwrap() };
        let there = driver.host_on_device(source).unwrap();
        assert_eq!(driver.host_on_device(source.wrapping_add(100)).unwrap(), there + 100);
        // The device reads the bytes that are there at the time of the read.
        page.0[100..164].fill(7);
        driver.copy_on_device(address, there + 100, 64, stream).unwrap();
        driver.synchronize_stream(stream).unwrap();
        assert_eq!(read(&*driver, address, 64), [7; 64]);
        driver.unregister_host(source).unwrap();
        assert!(driver.host_on_device(source).is_err());
        driver.free(address).unwrap();
        driver.destroy_stream(stream).unwrap();
    }
}

#[test]
fn host_memory_is_registered_and_unregistered_once() {
    for driver in drivers() {
        let mut pages = vec![Page([0; 4096]); 2];
        let address = pages.as_mut_ptr().cast();
        // SAFETY: the pages stay until they are unregistered.
        let register = |bytes| unsafe { driver.register_host(address, bytes, AccessMode::ReadWrite) };
        register(0).unwrap_err();
        register(4096).unwrap();
        assert_eq!(kind(register(8192)).code(), 712);
        assert_eq!(kind(register(4096)).code(), 712);
        driver.unregister_host(address).unwrap();
        assert_eq!(kind(driver.unregister_host(address)).code(), 713);
        register(8192).unwrap();
        driver.unregister_host(address).unwrap();
    }
}

#[test]
fn memory_given_back_is_unknown() {
    for driver in drivers() {
        let bytes = driver.granularity();
        let segment = driver.malloc(bytes).unwrap();
        driver.free(segment).unwrap();
        driver.free(segment).unwrap_err();
        let chunk = driver.create(bytes).unwrap();
        driver.release(chunk).unwrap();
        driver.release(chunk).unwrap_err();
        driver.export(chunk).unwrap_err();
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
        let stream = stream(&*driver);
        let address = driver.malloc(16).unwrap();
        driver.memset(address, 4, 16, stream).unwrap();
        driver.destroy_stream(stream).unwrap();
        driver.synchronize().unwrap();
        assert_eq!(read(&*driver, address, 16), [4; 16]);
        driver.free(address).unwrap();
    }
}

/// A change of some of the bytes in the test below.
#[derive(Clone, Debug)]
enum Change {
    Copy { at: usize, bytes: Vec<u8> },
    Fill { at: usize, value: u8, len: usize },
    Move { to: usize, from: usize, len: usize },
}

/// The number of bytes on each side of a border between chunks.
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
            let chunks = [address, address + granule].map(|at| {
                let chunk = driver.create(granule).unwrap();
                driver.map(at, chunk).unwrap();
                chunk
            });
            driver.set_access(address, 2 * granule, AccessMode::ReadWrite).unwrap();
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
            let actual = read(&*driver, first, 2 * SIDE);
            unmap_again(&*driver, address, 2 * granule);
            for chunk in chunks {
                driver.release(chunk).unwrap();
            }
            prop_assert_eq!(actual, expected);
        }
    }
}
