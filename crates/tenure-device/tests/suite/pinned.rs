//! Pinned host memory: reused once no copy needs it, limited, and given back whole.
#![expect(clippy::disallowed_methods, reason = "polls a condition that no event tells of")]

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use proptest::prelude::*;
use tenure_alloc::PoolId;
use tenure_core::StreamId;
use tenure_device::pinned::{PinnedAllocator, PinnedBuffer, PinnedConfig, PinnedError, PinnedPool, Use};
use tenure_device::sim::{Failure, SimConfig, SimDriver, SimPlatform};
use tenure_device::{Call, DeviceBacking, Platform, Priority, Properties, StreamCalls};

use crate::common::drivers;

const MIB: u64 = 1 << 20;

/// Returns settings of at most 64 MiB.
fn small() -> PinnedConfig {
    PinnedConfig::new(64 * MIB)
}

fn sim() -> Arc<SimDriver> {
    Arc::new(SimDriver::new(SimConfig::default()))
}

fn pool(driver: &Arc<SimDriver>, config: PinnedConfig) -> PinnedPool {
    PinnedPool::new(Arc::clone(driver) as _, config)
}

fn mib(pool: &PinnedPool, count: usize) -> Result<PinnedBuffer, PinnedError> {
    pool.allocate(count << 20)
}

/// Returns the number of registrations, and of their ends.
fn calls(driver: &SimDriver) -> (u64, u64) {
    (driver.calls(Some(Call::RegisterHost)), driver.calls(Some(Call::UnregisterHost)))
}

#[test]
fn bytes_go_to_the_device_and_back() {
    for device in drivers() {
        let pool = PinnedPool::new(device.shared(), small());
        let stream = device.create_stream(Priority::Default).unwrap();
        let target = device.malloc(MIB).unwrap();
        let mut source = mib(&pool, 1).unwrap();
        let mut copy = mib(&pool, 1).unwrap();
        source.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / 3) as u8);
        // SAFETY: neither buffer is touched before the stream is synchronised.
        unsafe {
            device.copy_to_device_async(target, source.as_ptr(), MIB, stream).unwrap();
            device.copy_from_device_async(copy.as_mut_ptr(), target, MIB, stream).unwrap();
        }
        device.synchronize_stream(stream).unwrap();
        assert!(source[..] == copy[..]);
        device.free(target).unwrap();
    }
}

/// Each buffer is dropped as soon as its copy is queued, and the next is filled while copies run.
#[test]
fn buffers_dropped_under_recorded_copies_keep_their_bytes() {
    const ROUNDS: u64 = 20;
    const BYTES: u64 = 256 << 10;
    for device in drivers() {
        let pool = PinnedPool::new(device.shared(), small());
        let streams = [0; 2].map(|_| device.create_stream(Priority::Default).unwrap());
        let target = device.malloc(ROUNDS * BYTES).unwrap();
        for round in 0..ROUNDS {
            let stream = streams[round as usize % 2];
            let mut buffer = pool.allocate(BYTES as usize).unwrap();
            buffer.fill(round as u8);
            // SAFETY: the buffer is dropped, not touched, and the record keeps its memory.
            unsafe { device.copy_to_device_async(target + round * BYTES, buffer.as_ptr(), BYTES, stream).unwrap() };
            buffer.record_stream(stream);
        }
        device.synchronize().unwrap();
        let mut bytes = vec![0; (ROUNDS * BYTES) as usize];
        device.copy_from_device(&mut bytes, target, StreamId::NULL).unwrap();
        for (round, bytes) in bytes.chunks(BYTES as usize).enumerate() {
            assert!(bytes == [round as u8; BYTES as usize], "round {round}");
        }
        device.free(target).unwrap();
    }
}

#[test]
fn a_dropped_buffer_is_reused_once_every_recorded_stream_has_passed() {
    let driver = sim();
    let pool = pool(&driver, small());
    let streams = [0; 2].map(|_| driver.create_stream(Priority::Default).unwrap());
    driver.busy_until(streams[0], 10).unwrap();
    driver.busy_until(streams[1], 20).unwrap();
    let buffer = mib(&pool, 1).unwrap();
    let address = buffer.as_ptr();
    streams.iter().for_each(|&stream| buffer.record_stream(stream));
    drop(buffer);
    for time_us in [0, 10] {
        driver.set_time(time_us);
        assert_ne!(mib(&pool, 1).unwrap().as_ptr(), address, "at {time_us} µs");
    }
    driver.set_time(20);
    let held: Vec<_> = (0..2).map(|_| mib(&pool, 1).unwrap()).collect();
    assert!(held.iter().any(|buffer| buffer.as_ptr() == address));
    assert_eq!(driver.counters().host_syncs, 0, "nothing waited");
}

#[test]
fn a_buffer_that_no_stream_used_is_reused_at_once_without_a_call() {
    let driver = sim();
    let pool = pool(&driver, small());
    let address = mib(&pool, 1).unwrap().as_ptr();
    let before = driver.calls(None);
    assert_eq!(mib(&pool, 1).unwrap().as_ptr(), address);
    assert_eq!(driver.calls(None), before);
}

#[test]
fn no_more_is_pinned_than_was_asked_for() {
    let odd: Vec<usize> = (0..60_u64).map(|i| (1 + i * i * 7_919_777 % (40 * MIB)) as usize).collect();
    for sizes in [vec![33 << 20], vec![9 << 20; 97], vec![4 << 20; 3], odd] {
        let driver = sim();
        let pool = pool(&driver, PinnedConfig::new(1 << 40));
        let held: Vec<_> = sizes.iter().map(|&bytes| pool.allocate(bytes).unwrap()).collect();
        let requested: usize = sizes.iter().sum();
        let statistics = pool.statistics();
        assert_eq!(statistics.requested_bytes.current, requested as u64);
        let pinned = statistics.pinned_bytes.current;
        assert!(pinned as f64 <= 1.01 * requested as f64, "{pinned} bytes for {requested}");
        drop(held);
        assert_eq!(pool.statistics().pinned_bytes.current, pinned, "kept for the next");
        pool.release_cached().unwrap();
        assert_eq!((pool.statistics().pinned_bytes.current, pool.statistics().chunks.current), (0, 0));
        assert_eq!(calls(&driver), (statistics.chunks.allocated, statistics.chunks.allocated));
    }
}

#[test]
fn small_buffers_share_chunks() {
    let driver = sim();
    let pool = pool(&driver, PinnedConfig::new(1 << 30));
    let _held: Vec<_> = (0..10_000).map(|_| pool.allocate(4096).unwrap()).collect();
    assert!(calls(&driver).0 < 700, "{} registrations", calls(&driver).0);
}

/// Each round frees everything before the next, as a training loop does.
#[test]
fn rounds_of_the_same_sizes_pin_nothing_after_the_first() {
    let driver = sim();
    let pool = pool(&driver, PinnedConfig::new(1 << 40));
    let sizes: Vec<usize> = (1..60).map(|i| i * 777_777).collect();
    for round in 0..5 {
        let held: Vec<_> = sizes.iter().map(|&bytes| pool.allocate(bytes).unwrap()).collect();
        assert_eq!(calls(&driver), (pool.statistics().chunks.current, 0), "round {round}");
        drop(held);
    }
}

#[test]
fn other_sizes_take_the_place_of_those_before() {
    let driver = sim();
    let pool = pool(&driver, PinnedConfig::new(1 << 40));
    for count in [9, 33, 5, 12] {
        let held: Vec<_> = (0..990 / count).map(|_| mib(&pool, count).unwrap()).collect();
        drop(held);
    }
    let peak = pool.statistics().pinned_bytes.peak;
    assert!(peak <= 990 * MIB * 9 / 8 + 64 * MIB, "{} MiB", peak / MIB);
}

#[test]
fn no_more_is_cached_than_the_limit_on_it() {
    let driver = sim();
    let pool = pool(&driver, PinnedConfig { cache_bytes: 16 * MIB, ..PinnedConfig::new(1 << 30) });
    let mut held: Vec<_> = (0..20).map(|_| mib(&pool, 6).unwrap()).collect();
    held.truncate(8);
    assert_eq!(pool.statistics().pinned_bytes.current, (8 * 6 + 12) * MIB);
    drop(held);
    assert_eq!(pool.statistics().pinned_bytes.current, 12 * MIB);
}

#[test]
fn a_limit_is_kept_and_the_error_says_by_how_much_it_was_missed() {
    let pool = pool(&sim(), small());
    let held: Vec<_> = (0..4).map(|_| mib(&pool, 12).unwrap()).collect();
    let error = mib(&pool, 20).err().unwrap();
    assert_eq!(error, PinnedError::LimitReached { requested: 20 * MIB, used: 48 * MIB, limit: 64 * MIB });
    assert!(error.to_string().contains("20971520 bytes were asked for with 50331648 of 67108864 in use"), "{error}");
    drop(held);
    mib(&pool, 20).expect("what is cached is given back for it");
    assert!(pool.statistics().pinned_bytes.peak <= 64 * MIB);
    assert!(matches!(mib(&pool, 65), Err(PinnedError::LimitReached { .. })));
}

#[test]
fn a_request_that_the_limit_allows_is_served_however_little_that_is() {
    for limit in [4, 8, 16, 19] {
        let pool = pool(&sim(), PinnedConfig::new(limit * MIB));
        for count in 1..=limit as usize {
            mib(&pool, count).unwrap_or_else(|error| panic!("{count} of {limit} MiB: {error}"));
            assert!(pool.statistics().pinned_bytes.current <= limit * MIB);
        }
        let error = mib(&pool, limit as usize + 1).err().unwrap();
        assert!(matches!(error, PinnedError::LimitReached { used: 0, .. }), "{error}");
    }
}

#[test]
fn the_last_bytes_of_a_limit_are_used() {
    let pool = pool(&sim(), PinnedConfig::new(64 * MIB));
    let _held = mib(&pool, 56).unwrap();
    let _last = [mib(&pool, 3).unwrap(), mib(&pool, 5).unwrap()];
    assert_eq!(pool.statistics().pinned_bytes.current, 64 * MIB);
    assert!(matches!(mib(&pool, 2), Err(PinnedError::LimitReached { .. })));
}

/// A host function must not call the driver: the next call of another thread frees the buffers that it drops.
#[test]
fn a_buffer_dropped_in_a_host_function_is_freed() {
    for device in drivers() {
        let pool = PinnedPool::new(device.shared(), small());
        let stream = device.create_stream(Priority::Default).unwrap();
        let buffer = mib(&pool, 1).unwrap();
        buffer.record_stream(stream);
        device.host_function(stream, Box::new(move || drop(buffer))).unwrap();
        device.synchronize_stream(stream).unwrap();
        assert_eq!(pool.statistics().live_bytes, 0);
        pool.release_cached().unwrap();
        assert_eq!(pool.statistics().pinned_bytes.current, 0);
    }
}

/// The failure stands for a callback that Tenure does not know of, in which the driver refuses calls.
#[test]
fn a_drop_that_fails_is_made_up_for_by_the_next_call() {
    let driver = sim();
    let pool = pool(&driver, small());
    let buffer = mib(&pool, 1).unwrap();
    buffer.record_stream(StreamId::NULL);
    driver.inject(Failure::of(Call::RecordEvent, 1));
    drop(buffer);
    assert_eq!(pool.statistics().live_bytes, 0);
    pool.release_cached().unwrap();
    assert_eq!(pool.statistics().pinned_bytes.current, 0);
}

#[test]
fn the_last_buffer_of_a_pool_dropped_in_a_host_function_gives_everything_back() {
    let driver = sim();
    let stream = driver.create_stream(Priority::Default).unwrap();
    let buffer = mib(&pool(&driver, small()), 1).unwrap();
    driver.host_function(stream, Box::new(move || drop(buffer))).unwrap();
    driver.synchronize_stream(stream).unwrap();
    let start = Instant::now();
    while calls(&driver) != (1, 1) {
        assert!(start.elapsed() < Duration::from_secs(300), "the chunk is still registered");
        thread::yield_now();
    }
}

#[test]
fn a_request_larger_than_a_driver_registers_is_refused_before_it_is_mapped() {
    let driver = sim();
    let pool = pool(&driver, PinnedConfig::new(u64::MAX));
    assert_eq!(pool.allocate(512 << 30).err().unwrap(), PinnedError::TooLarge { requested: 512 << 30 });
    assert_eq!(calls(&driver), (0, 0));
}

#[test]
fn no_bytes_need_no_memory() {
    let driver = sim();
    let mut buffer = pool(&driver, small()).allocate(0).unwrap();
    buffer.fill(1);
    buffer.record_stream(StreamId::NULL);
    assert!(buffer.is_empty());
    assert_eq!(calls(&driver), (0, 0));
}

#[test]
fn a_failed_registration_leaves_nothing_mapped() {
    const FAILURES: usize = 200;
    let driver = sim();
    let pool = pool(&driver, small());
    driver.inject(Failure::of(Call::RegisterHost, 1).lasting());
    let before = resident_bytes();
    for _ in 0..FAILURES {
        assert!(matches!(mib(&pool, 1), Err(PinnedError::NotPinned { .. })));
    }
    let statistics = pool.statistics();
    assert_eq!((statistics.pinned_bytes.current, statistics.chunks.current), (0, 0));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < FAILURES as u64 * MIB / 2, "{grown} bytes more are resident");
    driver.clear_failures();
    mib(&pool, 1).unwrap();
}

/// Returns the bytes of memory that this process holds; 0 where the system does not tell. Chunks are touched before
/// they are registered, so memory that stays mapped shows. Address space would not do: a real device's driver takes
/// much of it.
fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).map_or(0, |pages: u64| pages * 4096)
}

#[test]
fn a_failed_end_of_a_registration_keeps_the_chunk_until_it_works() {
    let driver = sim();
    let pool = pool(&driver, small());
    drop(mib(&pool, 1).unwrap());
    driver.inject(Failure::of(Call::UnregisterHost, 1));
    pool.release_cached().unwrap_err();
    assert_eq!(pool.statistics().pinned_bytes.current, MIB);
    mib(&pool, 1).unwrap();
    pool.release_cached().unwrap();
    assert_eq!(pool.statistics().pinned_bytes.current, 0);
}

#[test]
fn buffers_keep_their_pool_and_the_last_gives_everything_back() {
    let driver = sim();
    let pool = pool(&driver, small());
    let stream = driver.create_stream(Priority::Default).unwrap();
    let mut buffer = mib(&pool, 1).unwrap();
    drop(pool);
    buffer.fill(1);
    driver.busy_until(stream, 50).unwrap();
    buffer.record_stream(stream);
    assert_eq!(calls(&driver), (1, 0));
    drop(buffer);
    assert_eq!(calls(&driver), (1, 1));
    assert_eq!(driver.now_us(), 50, "the copy's stream was waited for");
}

#[test]
fn memory_comes_from_the_node_asked_for_or_not_at_all() {
    let driver = sim();
    let device = SimPlatform::new(vec![SimConfig::default()]).properties(0).unwrap();
    let device = Properties { numa_node: Some(0), ..device };
    let near = pool(&driver, small().near(&device));
    mib(&near, 1).unwrap();
    let nowhere = pool(&driver, PinnedConfig { numa_node: Some(5000), ..small() });
    let error = mib(&nowhere, 1).err().unwrap().to_string();
    assert!(error.contains("NUMA node 5000"), "{error}");
    assert_eq!(calls(&driver), (1, 0));
}

/// Steps of one pool, with a driver call that fails somewhere: nothing is lost, and the figures stay exact.
#[test]
fn a_failure_of_any_call_loses_nothing() {
    for call in [Call::RegisterHost, Call::UnregisterHost, Call::RecordEvent, Call::QueryEvent, Call::CreateEvent] {
        for nth in 1..12 {
            let driver = sim();
            let pool = pool(&driver, PinnedConfig { cache_bytes: 24 * MIB, ..small() });
            driver.inject(Failure::of(call, nth));
            let within_limits = || pool.statistics().pinned_bytes.peak <= 64 * MIB;
            let mut held = Vec::new();
            for step in 0..40_usize {
                let mut buffer = mib(&pool, 1 + step * 7 % 13).ok();
                if let Some(buffer) = &mut buffer {
                    buffer.iter_mut().step_by(4096).for_each(|byte| *byte = step as u8);
                    if step % 3 == 0 {
                        buffer.record_stream(StreamId::NULL);
                    }
                }
                held.extend(buffer.map(|buffer| (buffer, step as u8)));
                if held.len() > 4 {
                    held.remove(step % 4);
                }
                let kept = |(buffer, step): &(PinnedBuffer, u8)| buffer.iter().step_by(4096).all(|byte| byte == step);
                assert!(held.iter().all(kept) && within_limits(), "{call:?} {nth}");
            }
            let live: u64 = held.iter().map(|(buffer, _)| buffer.len() as u64).sum();
            let statistics = pool.statistics();
            assert_eq!((statistics.live_bytes, statistics.requested_bytes.current), (live, live), "{call:?} {nth}");
            driver.clear_failures();
            drop(held);
            pool.release_cached().unwrap();
            let statistics = pool.statistics();
            let left = (statistics.pinned_bytes.current, statistics.used_bytes.current, statistics.chunks.current);
            assert_eq!(left, (0, 0, 0), "{call:?} {nth}");
            let (pinned, unpinned) = (statistics.pinning.count, statistics.unpinning.count);
            assert_eq!(pinned, unpinned, "{call:?} {nth}");
        }
    }
}

/// A graph copies from its buffers at every launch.
#[test]
fn what_a_graph_uses_stays_until_its_pool_is_released() {
    let driver = sim();
    let device = Arc::new(DeviceBacking::new(Arc::clone(&driver) as _));
    let allocator = PinnedAllocator::new(Arc::clone(&driver) as _, PinnedConfig::new(1 << 30));
    let captured = Use { device: Arc::clone(&device), stream: driver.create_stream(Priority::Default).unwrap() };
    let other = Use { device, stream: StreamId::NULL };
    let before = allocator.allocate(4 * MIB, || Some(other.clone())).unwrap();
    let id = PoolId(0, 1);
    let filter = captured.clone();
    allocator.begin_pool(id, Box::new(move |stream| *stream == filter));
    let inside = allocator.allocate(4 * MIB, || Some(captured.clone())).unwrap();
    let unused = allocator.allocate(4 * MIB, || Some(captured.clone())).unwrap();
    for address in [before, inside] {
        assert!(allocator.record(address, &captured));
    }
    for address in [before, inside, unused] {
        allocator.free(address).unwrap();
    }
    // What no stream used is the pool's again; the rest is the graph's.
    assert_eq!(allocator.allocate(4 * MIB, || Some(captured.clone())).unwrap(), unused);
    allocator.free(unused).unwrap();
    allocator.end_pool(id);
    allocator.release_cached().unwrap();
    assert_eq!(allocator.statistics().pinned_bytes.current, 8 * MIB);
    let outside = allocator.allocate(4 * MIB, || Some(captured.clone())).unwrap();
    assert!(![before, inside].contains(&outside));
    allocator.free(outside).unwrap();
    assert_eq!(driver.counters().host_syncs, 0);
    allocator.release_pool(id);
    allocator.release_cached().unwrap();
    assert_eq!(allocator.statistics().pinned_bytes.current, 0);
    assert!(driver.counters().host_syncs > 0, "the device may have been running the graph");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Live buffers share no byte, and the limit holds, in any order of allocations and drops.
    #[test]
    fn live_buffers_are_apart(steps in prop::collection::vec((0..12_usize, 1..6_000_000_usize), 1..60)) {
        let pool = pool(&sim(), small());
        let mut live: Vec<Option<(PinnedBuffer, u8)>> = (0..12).map(|_| None).collect();
        for (number, (slot, bytes)) in steps.into_iter().enumerate() {
            live[slot] = None;
            if let Ok(mut buffer) = pool.allocate(bytes) {
                buffer.fill(number as u8);
                live[slot] = Some((buffer, number as u8));
            }
            prop_assert!(pool.statistics().pinned_bytes.current <= 64 * MIB);
        }
        for (buffer, content) in live.iter().flatten() {
            prop_assert!(buffer[..] == vec![*content; buffer.len()]);
        }
        live.clear();
        pool.release_cached().unwrap();
        prop_assert_eq!(pool.statistics().pinned_bytes.current, 0);
    }
}
