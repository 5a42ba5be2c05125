//! Faults of addressing, of chunks and of handles that the simulated device finds and a real one may let pass.

use std::sync::Arc;

use tenure_alloc::MemoryInfo;
use tenure_core::StreamId;
use tenure_device::sim::{KernelMemory, SimConfig, SimDriver, SimKernel};
use tenure_device::{
    AccessMode, CallError, CopyCalls, DeviceProcess, Driver, ErrorKind, EventCalls, EventKind, MemoryCalls, Priority,
    StreamCalls,
};

use crate::common::{GRANULE, kind, mapped_chunk, read, sim, this_process};

#[test]
fn memory_that_was_not_written_reads_as_junk_always_the_same() {
    let driver = sim(0);
    let address = driver.malloc(256).unwrap();
    driver.memset(address, 0, 128, StreamId::NULL).unwrap();
    let bytes = read(&*driver, address, 256);
    assert_eq!(bytes[..128], [0; 128]);
    assert!(bytes[128..].windows(8).all(|eight| eight.iter().any(|&byte| byte != 0)));
    assert_eq!(read(&*driver, address, 256), bytes);
}

#[test]
fn free_memory_is_exact() {
    let driver = sim(0);
    let segment = driver.malloc(100).unwrap();
    let chunk = driver.create(3 * GRANULE).unwrap();
    driver.malloc(driver.memory_info().unwrap().free + 1).unwrap_err();
    driver.create(driver.memory_info().unwrap().total + GRANULE).unwrap_err();
    assert_eq!(driver.memory_info().unwrap(), MemoryInfo { free: 61 * GRANULE - 100, total: 64 * GRANULE });
    driver.free(segment).unwrap();
    driver.release(chunk).unwrap();
    assert_eq!(driver.memory_info().unwrap(), MemoryInfo { free: 64 * GRANULE, total: 64 * GRANULE });
}

#[test]
fn memory_of_others_counts_as_used() {
    let config = SimConfig { capacity_bytes: 10 * GRANULE, other_bytes: 4 * GRANULE, ..SimConfig::default() };
    let driver = SimDriver::new(config);
    assert_eq!(driver.memory_info().unwrap().free, 6 * GRANULE);
    driver.malloc(6 * GRANULE).unwrap();
    assert_eq!(kind(driver.malloc(1)), ErrorKind::OutOfMemory { requested: 1, free: 0 });
    assert_eq!(driver.peak_bytes(), 10 * GRANULE);
}

#[test]
fn a_huge_device_costs_only_what_is_written() {
    let driver = SimDriver::new(SimConfig { capacity_bytes: 1 << 44, ..SimConfig::default() });
    let address = driver.malloc(1 << 43).unwrap();
    driver.memset(address + (1 << 42), 1, 1, StreamId::NULL).unwrap();
    assert_eq!(read(&driver, address + (1 << 42), 1), [1]);
}

#[test]
fn work_on_an_address_without_memory_loses_the_context() {
    let driver = sim(0);
    let address = driver.malloc(100).unwrap();
    let error = driver.memset(address + 90, 0, 20, StreamId::NULL).unwrap_err();
    let ErrorKind::IllegalAddress { launch, range } = &error.kind else { panic!("{error}") };
    assert_eq!((launch.name, range.start), ("cuMemsetD8Async", address + 100));
    assert_eq!(kind(driver.memory_info()), ErrorKind::ContextLost(Arc::new(error.clone())));
    assert_eq!(driver.fault().as_deref(), Some(&error));
}

#[test]
fn freed_memory_is_not_there_any_more() {
    let driver = sim(0);
    let address = driver.malloc(100).unwrap();
    driver.free(address).unwrap();
    assert!(matches!(kind(driver.memset(address, 0, 1, StreamId::NULL)), ErrorKind::IllegalAddress { .. }));
}

#[test]
fn nothing_lies_right_behind_a_segment() {
    let driver = sim(0);
    let [end, _] = [0, 1].map(|_| driver.malloc(GRANULE).unwrap() + GRANULE);
    assert!(matches!(kind(driver.memset(end, 0, 1, StreamId::NULL)), ErrorKind::IllegalAddress { .. }));
}

#[test]
fn a_mapped_chunk_is_not_accessible_before_it_is_made_so() {
    let driver = sim(0);
    let address = driver.reserve(GRANULE).unwrap();
    driver.map(address, driver.create(GRANULE).unwrap()).unwrap();
    let error = kind(driver.memset(address, 0, 1, StreamId::NULL));
    assert!(matches!(error, ErrorKind::NoAccess { .. }), "{error}");
}

#[test]
fn nothing_writes_through_a_mapping_for_reading() {
    type Write = fn(&SimDriver, u64) -> Result<(), CallError>;
    let writes: [(&str, Write); 5] = [
        ("memset", |driver, address| driver.memset(address, 0, 1, StreamId::NULL)),
        ("copy from the host", |driver, address| driver.copy_to_device(address, &[0], StreamId::NULL)),
        ("asynchronous copy from the host", |driver, address| {
            // SAFETY: the byte is a constant.
            unsafe { driver.copy_to_device_async(address, [0].as_ptr(), 1, StreamId::NULL) }
        }),
        ("copy on the device", |driver, address| driver.copy_on_device(address, address + 8, 1, StreamId::NULL)),
        ("kernel", |driver, address| {
            driver.launch(SimKernel::new("write", StreamId::NULL).writes(address, 1)).map(drop)
        }),
    ];
    for (name, write) in writes {
        let driver = sim(0);
        let (address, _) = mapped_chunk(&*driver, GRANULE);
        driver.set_access(address, GRANULE, AccessMode::Read).unwrap();
        let error = kind(write(&driver, address));
        let whole = address..address + GRANULE;
        assert!(matches!(&error, ErrorKind::ReadOnly { range, .. } if *range == whole), "{name}: {error}");
        assert_eq!((error.code(), driver.fault().is_some()), (700, true));
    }
}

#[test]
fn a_write_that_crosses_into_a_mapping_for_reading_writes_nothing() {
    let driver = sim(0);
    let address = driver.reserve(2 * GRANULE).unwrap();
    for (at, access) in [(address, AccessMode::ReadWrite), (address + GRANULE, AccessMode::Read)] {
        driver.map(at, driver.create(GRANULE).unwrap()).unwrap();
        driver.set_access(at, GRANULE, access).unwrap();
    }
    let error = kind(driver.memset(address + GRANULE - 8, 0, 16, StreamId::NULL));
    assert!(matches!(&error, ErrorKind::ReadOnly { range, .. } if range.start == address + GRANULE), "{error}");
}

#[test]
fn a_write_that_has_not_run_when_its_mapping_is_made_for_reading_is_caught_when_it_runs() {
    let driver = sim(0);
    let (address, _) = mapped_chunk(&*driver, GRANULE);
    driver.memset(address, 0, 1, StreamId::NULL).unwrap();
    driver.set_access(address, GRANULE, AccessMode::Read).unwrap();
    assert!(matches!(kind(driver.synchronize()), ErrorKind::ReadOnly { .. }));
}

#[test]
fn free_waits_for_work_that_uses_the_memory() {
    let driver = sim(0);
    let stream = driver.create_stream(Priority::Default).unwrap();
    let address = driver.malloc(100).unwrap();
    driver.memset(address, 0, 100, stream).unwrap();
    driver.free(address).unwrap();
    driver.synchronize().unwrap();
}

#[test]
fn unmapping_what_unfinished_work_uses_names_the_work_with_every_seed() {
    for seed in 0..16 {
        let driver = sim(seed);
        let (address, _) = mapped_chunk(&*driver, GRANULE);
        let stream = driver.create_stream(Priority::Default).unwrap();
        driver.launch(SimKernel::new("late", stream).reads(address, 8)).unwrap();
        driver.run().unwrap();
        let error = driver.unmap(address, GRANULE).unwrap_err();
        let ErrorKind::UnmappedInUse { range, launch } = &error.kind else { panic!("{error}") };
        assert_eq!((range.clone(), launch.name, launch.stream), (address..address + GRANULE, "late", stream));
        assert!(error.to_string().contains(file!()), "{error}");
        assert!(matches!(kind(driver.synchronize()), ErrorKind::ContextLost(_)));
    }
}

#[test]
fn unmapping_is_fine_once_the_host_has_seen_the_work_pass() {
    let driver = sim(0);
    let (address, chunk) = mapped_chunk(&*driver, GRANULE);
    let stream = driver.create_stream(Priority::Default).unwrap();
    let event = driver.create_event(EventKind::Timing).unwrap();
    driver.launch(SimKernel::new("early", stream).writes(address, 8)).unwrap();
    driver.record_event(event, stream).unwrap();
    while !driver.query_event(event).unwrap() {}
    driver.unmap(address, GRANULE).unwrap();
    driver.release(chunk).unwrap();
    driver.unreserve(address, GRANULE).unwrap();
}

#[test]
fn one_address_of_a_chunk_can_go_while_work_uses_another() {
    let driver = sim(0);
    let (old, chunk) = mapped_chunk(&*driver, GRANULE);
    let new = driver.reserve(GRANULE).unwrap();
    driver.map(new, chunk).unwrap();
    driver.set_access(new, GRANULE, AccessMode::ReadWrite).unwrap();
    driver.launch(SimKernel::new("through the new address", StreamId::NULL).writes(new, GRANULE)).unwrap();
    driver.unmap(old, GRANULE).unwrap();
}

fn is_misaligned(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::Misaligned { granularity: GRANULE, .. })
}

#[test]
fn chunks_and_addresses_obey_the_granularity() {
    let driver = sim(0);
    assert!(is_misaligned(kind(driver.create(GRANULE + 1))));
    assert!(is_misaligned(kind(driver.create(0))));
    assert!(is_misaligned(kind(driver.reserve(1))));
    let address = driver.reserve(2 * GRANULE).unwrap();
    let chunk = driver.create(GRANULE).unwrap();
    assert!(is_misaligned(kind(driver.map(address + 1, chunk))));
    driver.map(address, chunk).unwrap();
    assert!(is_misaligned(kind(driver.set_access(address, 1, AccessMode::ReadWrite))));
    assert!(is_misaligned(kind(driver.unmap(address + 1, GRANULE))));
}

#[test]
fn chunks_are_mapped_in_reserved_space_only() {
    let driver = sim(0);
    let address = driver.reserve(2 * GRANULE).unwrap();
    let chunk = driver.create(2 * GRANULE).unwrap();
    let outside = address + GRANULE..address + 3 * GRANULE;
    assert_eq!(kind(driver.map(outside.start, chunk)), ErrorKind::NotReserved(outside));
}

#[test]
fn mappings_do_not_overlap() {
    let driver = sim(0);
    let address = driver.reserve(3 * GRANULE).unwrap();
    driver.map(address + GRANULE, driver.create(GRANULE).unwrap()).unwrap();
    let chunk = driver.create(2 * GRANULE).unwrap();
    let existing = address + GRANULE..address + 2 * GRANULE;
    for at in [address, address + GRANULE] {
        let range = at..at + 2 * GRANULE;
        assert_eq!(kind(driver.map(at, chunk)), ErrorKind::Overlap { range, existing: existing.clone() });
    }
}

#[test]
fn a_range_with_a_gap_is_neither_made_accessible_nor_unmapped() {
    let driver = sim(0);
    let address = driver.reserve(3 * GRANULE).unwrap();
    for at in [address, address + 2 * GRANULE] {
        driver.map(at, driver.create(GRANULE).unwrap()).unwrap();
    }
    let gap = address + GRANULE..address + 2 * GRANULE;
    assert_eq!(kind(driver.set_access(address, 3 * GRANULE, AccessMode::ReadWrite)), ErrorKind::NotMapped(gap.clone()));
    assert_eq!(kind(driver.unmap(address, 3 * GRANULE)), ErrorKind::NotMapped(gap));
    let first = driver.memset(address, 0, 1, StreamId::NULL);
    assert!(matches!(kind(first), ErrorKind::NoAccess { .. }), "a refused call made a part accessible");
}

#[test]
fn a_range_that_cuts_a_chunk_at_either_end_is_refused() {
    let driver = sim(0);
    let (address, _) = mapped_chunk(&*driver, 2 * GRANULE);
    for start in [address, address + GRANULE] {
        let range = start..start + GRANULE;
        let mapping = address..address + 2 * GRANULE;
        assert_eq!(kind(driver.unmap(start, GRANULE)), ErrorKind::PartialChunk { range, mapping });
    }
}

#[test]
fn mapped_chunks_and_ranges_with_mappings_are_not_given_back() {
    let driver = sim(0);
    let (address, chunk) = mapped_chunk(&*driver, GRANULE);
    assert_eq!(kind(driver.release(chunk)), ErrorKind::ChunkMapped { chunk, count: 1 });
    assert_eq!(kind(driver.unreserve(address, GRANULE)), ErrorKind::RangeMapped(address..address + GRANULE));
    let other = driver.reserve(GRANULE).unwrap();
    driver.map(other, chunk).unwrap();
    driver.unmap(address, GRANULE).unwrap();
    assert_eq!(kind(driver.release(chunk)), ErrorKind::ChunkMapped { chunk, count: 1 });
    driver.unmap(other, GRANULE).unwrap();
    driver.release(chunk).unwrap();
}

#[test]
fn more_than_all_addresses_are_not_reserved() {
    let driver = sim(1);
    let bytes = 1 << 63;
    driver.reserve(bytes).unwrap();
    assert!(matches!(kind(driver.reserve(bytes)), ErrorKind::OutOfMemory { requested, .. } if requested == bytes));
}

#[test]
fn a_reservation_is_given_back_whole() {
    let driver = sim(0);
    let address = driver.reserve(2 * GRANULE).unwrap();
    assert!(matches!(kind(driver.unreserve(address, GRANULE)), ErrorKind::UnknownHandle { .. }));
}

#[test]
fn segments_are_not_chunks() {
    let driver = sim(0);
    let segment = driver.malloc(GRANULE).unwrap();
    assert!(matches!(kind(driver.unmap(segment, GRANULE)), ErrorKind::NotMapped(_)));
    let (address, _) = mapped_chunk(&*driver, GRANULE);
    assert!(matches!(kind(driver.free(address)), ErrorKind::UnknownHandle { what: "segment", .. }));
}

#[test]
fn destroyed_streams_and_events_are_not_used() {
    let driver = sim(0);
    let stream = driver.create_stream(Priority::Default).unwrap();
    let event = driver.create_event(EventKind::Timing).unwrap();
    driver.destroy_stream(stream).unwrap();
    driver.destroy_event(event).unwrap();
    let next = driver.create_event(EventKind::Timing).unwrap();
    assert_ne!(event, next);
    for error in [
        kind(driver.record_event(next, stream)),
        kind(driver.record_event(event, StreamId::NULL)),
        kind(driver.wait_event(stream, next)),
        kind(driver.destroy_event(event)),
        kind(driver.destroy_stream(stream)),
        kind(driver.destroy_stream(StreamId::NULL)),
        kind(driver.launch(SimKernel::new("nowhere", stream))),
    ] {
        assert!(matches!(error, ErrorKind::UnknownHandle { .. }), "{error}");
    }
    driver.synchronize().unwrap();
}

#[test]
fn streams_keep_their_priority() {
    let driver = sim(0);
    for priority in Priority::ALL {
        assert_eq!(driver.priority(driver.create_stream(priority).unwrap()), Some(priority));
    }
    assert_eq!(driver.priority(StreamId::NULL), Some(Priority::Default));
    assert_eq!(driver.priority(StreamId(99)), None);
}

#[test]
fn this_process_holds_what_its_context_and_its_driver_hold() {
    let config = SimConfig { other_bytes: 5 << 30, context_bytes: 500 << 20, ..SimConfig::default() };
    let driver = SimDriver::new(config);
    assert_eq!(driver.processes(), this_process(Some(500 << 20)));
    assert_eq!(driver.memory_info().unwrap().free, config.capacity_bytes - (5 << 30) - (500 << 20));
    driver.malloc(1 << 20).unwrap();
    driver.create(2 << 20).unwrap();
    assert_eq!(driver.processes(), this_process(Some(503 << 20)));
}

#[test]
fn the_memory_of_processes_can_be_scripted() {
    let driver = sim(0);
    let others = vec![DeviceProcess { pid: 1, bytes: Some(GRANULE) }, DeviceProcess { pid: 2, bytes: None }];
    driver.set_processes(Some(others.clone()));
    assert_eq!(driver.processes(), Some(others));
    driver.set_processes(None);
    assert_eq!(driver.processes(), None);
}

#[test]
fn a_kernel_that_touches_what_it_did_not_declare_is_caught_when_it_runs() {
    let driver = sim(0);
    let address = driver.malloc(64).unwrap();
    let kernel = SimKernel::new("stray", StreamId::NULL).reads(address, 64).writes(address, 32);
    driver.launch(kernel.body(move |memory| memory.write(address + 30, &[0; 4]))).unwrap();
    let error = driver.synchronize().unwrap_err();
    assert!(
        matches!(&error.kind, ErrorKind::Undeclared { range, .. } if *range == (address + 30..address + 34)),
        "{error}"
    );
}

#[test]
fn a_kernel_that_accesses_no_bytes_touches_nothing() {
    let driver = sim(0);
    let address = driver.malloc(64).unwrap();
    let kernel = SimKernel::new("empty", StreamId::NULL).reads(address, 0).writes(address, 64);
    driver
        .launch(kernel.body(move |memory: &mut KernelMemory<'_>| {
            memory.read(address + 128, &mut []);
            memory.write(address + 128, &[]);
        }))
        .unwrap();
    driver.synchronize().unwrap();
}

#[test]
fn kernels_compute_on_device_memory() {
    let driver = sim(0);
    let address = driver.malloc(8).unwrap();
    driver.copy_to_device(address, &[1, 2, 3, 4], StreamId::NULL).unwrap();
    let kernel = SimKernel::new("double", StreamId::NULL).reads(address, 4).writes(address + 4, 4);
    let body = kernel.body(move |memory| {
        let mut bytes = [0; 4];
        memory.read(address, &mut bytes);
        memory.write(address + 4, &bytes.map(|byte| byte * 2));
    });
    driver.launch(body).unwrap();
    assert_eq!(read(&*driver, address, 8), [1, 2, 3, 4, 2, 4, 6, 8]);
}

#[test]
fn work_must_not_call_the_driver() {
    let driver = sim(0);
    let inner = Arc::clone(&driver);
    let seen = Arc::new(std::sync::Mutex::new(None));
    let result = Arc::clone(&seen);
    driver.host_function(StreamId::NULL, Box::new(move || *result.lock().unwrap() = Some(inner.malloc(1)))).unwrap();
    driver.synchronize().unwrap();
    assert_eq!(kind(seen.lock().unwrap().clone().unwrap()), ErrorKind::CalledFromWork);
}

#[test]
fn a_device_survives_work_that_panics() {
    let driver = sim(0);
    let address = driver.malloc(4).unwrap();
    driver.host_function(StreamId::NULL, Box::new(|| panic!("on purpose"))).unwrap();
    let run = std::panic::AssertUnwindSafe(|| driver.copy_to_device(address, &[1; 4], StreamId::NULL));
    std::panic::catch_unwind(run).unwrap_err();
    assert_eq!(read(&*driver, address, 4), [1; 4]);
}
