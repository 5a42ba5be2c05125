//! The simulated device's counters, costs, scripted addresses, and failures on demand.

use tenure_core::StreamId;
use tenure_device::sim::{Failure, SimConfig, SimDriver};
use tenure_device::{
    AccessMode, Call, CallError, CopyCalls, Counters, ErrorKind, EventCalls, EventKind, MemoryCalls, Priority,
    StreamCalls, cost,
};

use crate::common::{GRANULE, kind, mapped_chunk, sim};

const GIB: u64 = 1 << 30;

#[track_caller]
fn assert_cost(counters: Counters, us: f64) {
    assert!((counters.driver_us - us).abs() < 1e-6, "{counters:?}, expected {us} µs");
}

#[test]
fn a_segment_costs_by_its_size() {
    let driver = SimDriver::new(SimConfig::default());
    let address = driver.malloc(2 * GIB).unwrap();
    assert_cost(driver.counters(), 38.0 + 2.0 * 20.0);
    let before = driver.counters();
    driver.free(address).unwrap();
    let freed = driver.counters() - before;
    assert_cost(freed, 34.0 + 2.0 * 190.0);
    assert_eq!((freed.malloc, freed.free, before.created_bytes), (0, 1, 2 * GIB));
}

#[test]
fn mapping_calls_cost_by_the_chunk() {
    let driver = SimDriver::new(SimConfig::default());
    let address = driver.reserve(4 * GIB).unwrap();
    let chunks = [0, 1, 2, 3].map(|_| driver.create(GIB).unwrap());
    let created = driver.counters();
    assert_cost(created, 4.0 * (7.0 + 20.0));
    for (at, chunk) in (address..).step_by(GIB as usize).zip(chunks) {
        driver.map(at, chunk).unwrap();
    }
    driver.set_access(address, 4 * GIB, AccessMode::ReadWrite).unwrap();
    driver.unmap(address, 4 * GIB).unwrap();
    let mapped = driver.counters() - created;
    assert_cost(mapped, 4.0 * 1.0 + 4.0 * (22.0 + 28.0) + 4.0 * (15.0 + 11.0));
    assert_eq!((mapped.map, mapped.set_access, mapped.unmap), (4, 4, 4));
    driver.release(chunks[0]).unwrap();
    assert_cost(driver.counters() - created - mapped, 10.0 + 185.0);
    assert_eq!(driver.counters().memory_calls(), 4 + 12 + 1);
    assert_eq!(driver.counters().created_bytes, 4 * GIB);
}

#[test]
fn registering_host_memory_costs_by_its_size() {
    let driver = sim(0);
    let mut memory = vec![0; 1 << 20];
    // SAFETY: the memory outlives the driver's record of it.
    unsafe { driver.register_host(memory.as_mut_ptr(), 1 << 20, AccessMode::ReadWrite).unwrap() };
    assert_cost(driver.counters(), 113_000.0 / 1024.0);
    assert_eq!((driver.counters().register_host, driver.counters().memory_calls()), (1, 0));
}

#[test]
fn a_synchronisation_costs_the_time_it_waits_and_a_constant() {
    let driver = sim(0);
    let stream = driver.create_stream(Priority::Default).unwrap();
    let event = driver.create_event(EventKind::Timing).unwrap();
    driver.set_time(20);
    driver.busy_until(stream, 100).unwrap();
    driver.record_event(event, stream).unwrap();
    driver.synchronize_event(event).unwrap();
    assert_cost(driver.counters(), cost::HOST_SYNC_US + 80.0);
    driver.synchronize_stream(stream).unwrap();
    assert_cost(driver.counters(), 2.0 * cost::HOST_SYNC_US + 80.0);
    assert_eq!(driver.counters().host_syncs, 2);
}

#[test]
fn an_event_that_was_not_recorded_costs_no_wait() {
    let driver = sim(0);
    driver.synchronize_event(driver.create_event(EventKind::Order).unwrap()).unwrap();
    assert_eq!(driver.counters(), Counters::default());
}

#[test]
fn the_wait_of_a_free_is_not_counted() {
    let driver = sim(0);
    let address = driver.malloc(GRANULE).unwrap();
    driver.busy_until(StreamId::NULL, 1000).unwrap();
    let before = driver.counters();
    driver.free(address).unwrap();
    assert_eq!(driver.now_us(), 1000);
    let freed = driver.counters() - before;
    assert_cost(freed, cost::FREE.us(GRANULE));
    assert_eq!(freed.host_syncs, 0);
}

#[test]
fn waits_between_streams_are_counted_and_waits_for_oneself_are_not() {
    let driver = sim(0);
    let stream = driver.create_stream(Priority::Default).unwrap();
    let event = driver.create_event(EventKind::Timing).unwrap();
    driver.record_event(event, stream).unwrap();
    driver.wait_event(stream, event).unwrap();
    assert_eq!(driver.counters().stream_waits, 0);
    driver.wait_event(StreamId::NULL, event).unwrap();
    assert_eq!(driver.counters().stream_waits, 1);
    assert_eq!(driver.counters() - driver.counters(), Counters::default());
}

#[test]
fn refused_calls_are_not_counted() {
    let driver = sim(0);
    driver.malloc(1000 * GRANULE).unwrap_err();
    driver.create(1).unwrap_err();
    assert_eq!(driver.counters(), Counters::default());
}

#[test]
fn segments_get_the_scripted_addresses_in_order_then_others() {
    let driver = sim(0);
    let script = [0x7f00_0000_0000, 0x10_0000_0000, 0x7e00_0000_0200];
    driver.script_addresses(script);
    let addresses: Vec<_> = (0..6).map(|_| driver.malloc(GRANULE).unwrap()).collect();
    assert_eq!(addresses[..3], script);
    for (index, &address) in addresses.iter().enumerate() {
        driver.memset(address, index as u8, GRANULE, StreamId::NULL).unwrap();
    }
    for (index, &address) in addresses.iter().enumerate() {
        assert_eq!(crate::common::read(&*driver, address, GRANULE as usize), vec![index as u8; GRANULE as usize]);
    }
}

#[test]
fn a_scripted_address_is_kept_for_the_next_call_when_this_one_fails() {
    let driver = sim(0);
    driver.script_addresses([0x7f00_0000_0000, 0x7f00_0000_0000, 0x7f00_0010_0000]);
    let address = driver.malloc(GRANULE).unwrap();
    assert!(matches!(kind(driver.malloc(GRANULE)), ErrorKind::Overlap { .. }));
    driver.free(address).unwrap();
    assert!(matches!(kind(driver.malloc(1000 * GRANULE)), ErrorKind::OutOfMemory { .. }));
    assert_eq!(driver.malloc(GRANULE).unwrap(), address);
    assert_eq!(driver.malloc(GRANULE).unwrap(), 0x7f00_0010_0000);
}

/// Makes every kind of call of the mapping interface, and some work.
fn workload(driver: &SimDriver) -> Result<(), CallError> {
    let stream = driver.create_stream(Priority::Default)?;
    let event = driver.create_event(EventKind::Timing)?;
    let address = driver.reserve(GRANULE)?;
    let chunk = driver.create(GRANULE)?;
    driver.map(address, chunk)?;
    driver.set_access(address, GRANULE, AccessMode::ReadWrite)?;
    driver.memset(address, 1, GRANULE, stream)?;
    driver.record_event(event, stream)?;
    driver.synchronize_event(event)?;
    driver.unmap(address, GRANULE)?;
    driver.release(chunk)?;
    driver.unreserve(address, GRANULE)?;
    let segment = driver.malloc(GRANULE)?;
    driver.free(segment)?;
    driver.destroy_event(event)?;
    driver.destroy_stream(stream)
}

#[test]
fn every_call_of_a_workload_can_be_made_to_fail() {
    let whole = sim(0);
    workload(&whole).unwrap();
    let calls = whole.calls(None);
    assert_eq!(calls, 16);
    let failed = (1..=calls).map(|n| {
        let driver = sim(0);
        driver.inject(Failure::of_any(n));
        let error = workload(&driver).unwrap_err();
        assert_eq!(driver.calls(None), n);
        let expected = match error.call {
            Call::Malloc | Call::Create => ErrorKind::OutOfMemory { requested: GRANULE, free: 0 },
            _ => ErrorKind::Injected,
        };
        assert_eq!(error.kind, expected);
        error.call
    });
    assert_eq!(failed.collect::<std::collections::BTreeSet<_>>().len(), 16);
}

#[test]
fn the_failing_call_changes_nothing_and_the_next_one_works() {
    let driver = sim(0);
    let (address, chunk) = mapped_chunk(&*driver, GRANULE);
    let before = driver.counters();
    let info = driver.memory_info().unwrap();
    driver.inject(Failure::of(Call::Unmap, 1));
    driver.inject(Failure::of(Call::Malloc, 1));
    assert_eq!(kind(driver.unmap(address, GRANULE)), ErrorKind::Injected);
    assert!(matches!(kind(driver.malloc(1)), ErrorKind::OutOfMemory { .. }));
    assert_eq!((driver.counters(), driver.memory_info().unwrap()), (before, info));
    driver.unmap(address, GRANULE).unwrap();
    driver.release(chunk).unwrap();
}

#[test]
fn a_lasting_failure_lasts_until_it_is_cleared() {
    let driver = sim(0);
    driver.inject(Failure::of(Call::Create, 2).lasting());
    driver.create(GRANULE).unwrap();
    for _ in 0..3 {
        driver.create(GRANULE).unwrap_err();
        driver.malloc(1).unwrap();
    }
    driver.clear_failures();
    driver.create(GRANULE).unwrap();
    assert_eq!(driver.calls(Some(Call::Create)), 5);
}
