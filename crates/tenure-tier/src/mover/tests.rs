//! Tests of movers on simulated devices with several seeds, on the first NVIDIA device with `TENURE_TEST_DRIVER=cuda`,
//! and without a device.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, iter, thread};

use proptest::prelude::*;
use tempfile::TempDir;
use tenure_core::{Storage, StreamId};
use tenure_device::memory::{self, MemoryConfig};
use tenure_device::sim::{Failure, SimConfig, SimDriver};
use tenure_device::{Call, Driver, Executor, GraphCalls};

use super::*;
use crate::DiskOptions;
use crate::disk::Direction;
use crate::disk::tests::{faulty, folders, gated, some_bytes};

type Memory = &'static DeviceMemory;

const MIB: usize = 1 << 20;
/// The memory of a mover whose pieces have 256 KiB.
const SMALL: usize = 8 * MIB;

fn simulated(seed: u64) -> (Arc<SimDriver>, Memory) {
    let driver = Arc::new(SimDriver::new(SimConfig { seed, ..SimConfig::default() }));
    let memory = DeviceMemory::new(Arc::clone(&driver) as _, MemoryConfig::default()).unwrap();
    (driver, Box::leak(Box::new(memory)))
}

fn memories() -> Vec<Memory> {
    if env::var("TENURE_TEST_DRIVER").is_ok_and(|driver| driver == "cuda") {
        return vec![memory::device(0).unwrap()];
    }
    (0..6).map(|seed| simulated(seed).1).collect()
}

fn allocated(memory: Memory) -> u64 {
    memory.allocator().statistics().all.allocated_bytes.current
}

fn disk() -> (Vec<TempDir>, Disk) {
    let (folders, paths) = folders(1);
    let disk = Disk::open(&paths, DiskOptions { staging_bytes: 3 * MIB, ..DiskOptions::new(64 << 20) }).unwrap();
    (folders, disk)
}

fn mover(memory: Option<Memory>, disk: Option<&Disk>) -> Mover {
    Mover::new(memory, MoverOptions { disk: disk.cloned(), ..MoverOptions::new(SMALL) }).unwrap()
}

/// Returns a storage on the current stream, filled by [`fill`].
fn filled(memory: Memory, bytes: usize, seed: u8) -> Storage {
    let storage = Storage::new(bytes, Arc::new(memory)).unwrap();
    fill(memory, &storage, seed);
    storage
}

/// Fills a storage with bytes that depend on the seed and the position, on the current stream and without waiting.
fn fill(memory: Memory, storage: &Storage, seed: u8) {
    let start = storage.lock().as_ptr().addr() as u64;
    let bytes = storage.bytes();
    for (value, begin) in values(bytes, seed) {
        let count = step(bytes).min(bytes - begin);
        memory.driver().memset(start + begin as u64, value, count as u64, memory.streams().current_id()).unwrap();
    }
}

fn step(bytes: usize) -> usize {
    bytes.div_ceil(13).max(1)
}

fn values(bytes: usize, seed: u8) -> impl Iterator<Item = (u8, usize)> {
    (0..bytes).step_by(step(bytes)).enumerate().map(move |(number, begin)| (seed.wrapping_add(number as u8), begin))
}

fn expected(bytes: usize, seed: u8) -> Vec<u8> {
    values(bytes, seed).flat_map(|(value, _)| iter::repeat_n(value, step(bytes))).take(bytes).collect()
}

/// Returns a storage's bytes as the current stream sees them.
fn read(memory: Memory, storage: &Storage) -> Vec<u8> {
    let mut bytes = vec![0; storage.bytes()];
    let start = storage.lock().as_ptr().addr() as u64;
    memory.driver().copy_from_device(&mut bytes, start, memory.streams().current_id()).unwrap();
    bytes
}

fn on_device(memory: Memory, storage: &Storage) -> MovableBytes {
    // SAFETY: tests write stored bytes and touch fetched ones only in the order of the stream.
    unsafe { MovableBytes::of(storage, Some(&memory.streams().current())) }
}

fn store(mover: &Mover, memory: Memory, bytes: usize, seed: u8, to: Destination) -> Result<Stored, MoverError> {
    mover.store(format!("layer.{seed}/out#0"), on_device(memory, &filled(memory, bytes, seed)), to)
}

/// Fetches stored bytes and reads them on the current stream.
fn fetch(mover: &Mover, memory: Memory, stored: &Stored, urgency: Urgency) -> Result<Vec<u8>, MoverError> {
    let target = filled(memory, stored.bytes() as usize, 0x55);
    mover.fetch(stored, on_device(memory, &target), urgency)?.lead_to(&memory.streams().current())?;
    Ok(read(memory, &target))
}

/// Returns bytes in host memory.
fn vector(mut bytes: Vec<u8>) -> MovableBytes {
    // SAFETY: nothing else uses the vector.
    unsafe { MovableBytes::new(bytes.as_mut_ptr(), bytes.len(), None, bytes) }
}

fn fetch_host(mover: &Mover, stored: &Stored, urgency: Urgency) -> Result<Vec<u8>, MoverError> {
    let target = Arc::new(Mutex::new(vec![0; stored.bytes() as usize]));
    let start = target.lock().as_mut_ptr();
    // SAFETY: the target is read only after the bytes have arrived.
    let bytes = unsafe { MovableBytes::new(start, stored.bytes() as usize, None, Arc::clone(&target)) };
    mover.fetch(stored, bytes, urgency)?.wait()?;
    Ok(std::mem::take(&mut *target.lock()))
}

/// Waits until a condition holds that other threads bring about. The limit only keeps a failing test from hanging.
fn eventually(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(300));
        thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that nothing raced and that all memory was given back except what movers keep.
fn expect_peace(memory: Memory) {
    memory.driver().synchronize().unwrap();
    if let Executor::Sim(sim) = memory.driver().executor() {
        // Fetches that no thread waited for still arrive.
        eventually(|| memory.allocator().statistics().all.allocated_bytes.current == 0);
        assert_eq!(sim.fault(), None);
    }
}

#[test]
fn a_source_is_freed_in_the_order_of_its_stream_once_that_waits_for_the_copy() {
    for memory in memories() {
        let mover = mover(Some(memory), None);
        let stream = memory.streams().current();
        let before = allocated(memory);
        let stored = store(&mover, memory, MIB + 3, 7, Destination::Host).unwrap();
        stored.lead_to(&stream).unwrap();
        // The host has waited for nothing, and the room is free.
        assert!(!stored.keeps_source() && allocated(memory) == before);
        let other = filled(memory, MIB + 3, 99);
        assert!(fetch(&mover, memory, &stored, Urgency::Now).unwrap() == expected(MIB + 3, 7));
        assert!(read(memory, &other) == expected(MIB + 3, 99));
        drop((stored, other, mover));
        expect_peace(memory);
    }
}

#[test]
fn a_source_is_freed_by_the_program_whatever_the_timing() {
    for memory in memories() {
        let mover = mover(Some(memory), None);
        let before = allocated(memory);
        let stored = store(&mover, memory, MIB, 7, Destination::Host).unwrap();
        let (sender, receiver) = mpsc::channel();
        let event = stored.inner.progress.event().unwrap();
        // The watcher handles one event after the other. When it gets here, it has passed the one that could free the
        // source.
        let watcher = &mover.shared.side.as_ref().unwrap().outward_watcher;
        watcher.when_passed(event, move |passed| sender.send(passed).unwrap());
        receiver.recv().unwrap().unwrap();
        assert!(stored.is_settled() && stored.keeps_source() && allocated(memory) > before);
        drop(stored);
        eventually(|| allocated(memory) == before);
        drop(mover);
        expect_peace(memory);
    }
}

#[test]
fn a_moved_tensor_comes_back_after_its_memory_was_reused() {
    for memory in memories() {
        let (_folders, disk) = disk();
        for (mover, to) in
            [(mover(Some(memory), None), Destination::Host), (mover(Some(memory), Some(&disk)), Destination::Disk)]
        {
            for length in [0, 1, MIB / 4 - 1, MIB / 4, MIB / 4 + 1, MIB + 77] {
                let stored = store(&mover, memory, length, 7, to).unwrap();
                // This uses the same stream and the same address.
                stored.lead_to(&memory.streams().current()).unwrap();
                drop(filled(memory, length, 99));
                assert_eq!((stored.name(), stored.bytes()), ("layer.7/out#0", length as u64));
                for urgency in [Urgency::Ahead, Urgency::Now] {
                    assert!(
                        fetch(&mover, memory, &stored, urgency).unwrap() == expected(length, 7),
                        "{length}, {to:?}"
                    );
                }
                stored.wait().unwrap();
                assert_eq!(stored.host_bytes(), if to == Destination::Host { length as u64 } else { 0 });
                assert!(
                    fetch(&mover, memory, &stored, Urgency::Ahead).unwrap() == expected(length, 7),
                    "{length}, {to:?}"
                );
            }
        }
        expect_peace(memory);
    }
}

/// Only the end waits. Fetched bytes are used and freed on the stream at once.
#[test]
fn a_pass_forward_and_back_is_ordered_by_the_device_alone() {
    for memory in memories() {
        let mover = mover(Some(memory), None);
        let stored: Vec<_> =
            (0..6).map(|seed| store(&mover, memory, MIB / 2 + 3, seed, Destination::Host).unwrap()).collect();
        let side = memory.streams().pooled(Priority::Default).unwrap();
        let fetched = stored.iter().rev().map(|stored| {
            let target = filled(memory, stored.bytes() as usize, 0x55);
            let arrival = mover.fetch(stored, on_device(memory, &target), Urgency::Ahead).unwrap();
            (arrival, target)
        });
        let fetched: Vec<_> = fetched.collect();
        drop(stored);
        for (number, (arrival, target)) in fetched.into_iter().enumerate() {
            arrival.lead_to(&side).unwrap();
            let mut bytes = vec![0; target.bytes()];
            let start = target.lock().as_ptr().addr() as u64;
            memory.record_stream(start, side.id()).unwrap();
            if number % 2 == 0 {
                memory.driver().copy_from_device(&mut bytes, start, side.id()).unwrap();
                assert!(bytes == expected(target.bytes(), 5 - number as u8));
            } else {
                memory.driver().memset(start, 1, 100, side.id()).unwrap();
            }
        }
        expect_peace(memory);
    }
}

#[test]
fn a_source_is_written_to_after_its_store_and_a_target_that_no_thread_waits_for_is_kept() {
    for memory in memories() {
        let (_folders, disk) = disk();
        for to in [Destination::Host, Destination::Disk] {
            let mover = mover(Some(memory), Some(&disk));
            let source = filled(memory, MIB / 2 + 1, 1);
            let stored = mover.store("a", on_device(memory, &source), to).unwrap();
            stored.lead_to(&memory.streams().current()).unwrap();
            fill(memory, &source, 2);
            for is_settled in [false, true] {
                if is_settled {
                    stored.wait().unwrap();
                }
                let target = filled(memory, MIB / 2 + 1, 3);
                drop(mover.fetch(&stored, on_device(memory, &target), Urgency::Ahead).unwrap());
                drop(target);
                // This has the same address, unless the target is still to be written to.
                let next = filled(memory, MIB / 2 + 1, 4);
                assert!(fetch(&mover, memory, &stored, Urgency::Now).unwrap() == expected(MIB / 2 + 1, 1));
                assert!(read(memory, &next) == expected(MIB / 2 + 1, 4));
            }
            assert!(read(memory, &source) == expected(MIB / 2 + 1, 2));
        }
        expect_peace(memory);
    }
}

#[test]
fn prefetches_hold_back_no_memory() {
    let (driver, memory) = simulated(2);
    let mover = mover(Some(memory), None);
    let stored = store(&mover, memory, MIB / 2, 1, Destination::Host).unwrap();
    let target = || Storage::new(MIB / 2, Arc::new(memory)).unwrap();
    let fetch = |target: &Storage| mover.fetch(&stored, on_device(memory, target), Urgency::Ahead).unwrap();
    let first = target();
    let second = target();
    let arrivals = [fetch(&first), fetch(&second)];
    arrivals[0].lead_to(&memory.streams().current()).unwrap();
    let address = first.lock().as_ptr();
    let waits = driver.calls(Some(Call::WaitEvent));
    drop(first);
    // Its own stream gets it back at once, though the fetch after it is still on the way.
    let again = target();
    fill(memory, &again, 3);
    assert_eq!((again.lock().as_ptr(), driver.calls(Some(Call::WaitEvent))), (address, waits));
    drop((again, second, arrivals, stored, mover));
    expect_peace(memory);
}

/// Memory of another allocator is kept until the device has passed.
#[test]
fn memory_that_others_free_is_kept_until_it_is_not_used() {
    static LIVE: AtomicUsize = AtomicUsize::new(0);
    struct Foreign {
        memory: Memory,
        address: u64,
    }
    impl Drop for Foreign {
        fn drop(&mut self) {
            let driver = self.memory.driver();
            // From now on any code may use it, without waiting.
            driver.memset(self.address, 0xEE, MIB as u64, StreamId::NULL).unwrap();
            LIVE.fetch_sub(1, Ordering::Release);
        }
    }
    for memory in memories() {
        let (_folders, disk) = disk();
        let driver = memory.driver();
        let [source, target] = [(); 2].map(|()| driver.malloc(MIB as u64).unwrap());
        let bytes = |address: u64| {
            LIVE.fetch_add(1, Ordering::Relaxed);
            let start = ptr::without_provenance_mut(address as usize);
            let null = memory.streams().null();
            // SAFETY: all later work is in the order of the null stream.
            unsafe { MovableBytes::new(start, MIB, Some(&null), Foreign { memory, address }) }
        };
        let read = |address| {
            let mut bytes = vec![0; MIB];
            driver.copy_from_device(&mut bytes, address, StreamId::NULL).unwrap();
            bytes
        };
        for to in [Destination::Host, Destination::Disk] {
            let mover = mover(Some(memory), (to == Destination::Disk).then_some(&disk));
            driver.memset(source, 3, MIB as u64, StreamId::NULL).unwrap();
            let stored = mover.store("foreign", bytes(source), to).unwrap();
            stored.wait().unwrap();
            let arrival = mover.fetch(&stored, bytes(target), Urgency::Now).unwrap();
            arrival.wait().unwrap();
            drop((arrival, stored, mover));
            eventually(|| LIVE.load(Ordering::Acquire) == 0);
            assert!(read(source) == [0xEE; MIB] && read(target) == [0xEE; MIB]);
        }
        for address in [source, target] {
            driver.free(address).unwrap();
        }
        expect_peace(memory);
    }
}

#[test]
fn full_memory_is_an_answer_and_a_store_through_it_waits_for_room() {
    for memory in memories().into_iter().take(2) {
        let (_folders, paths) = folders(1);
        let (disk, gate) = gated(&paths, 64 << 20);
        let mover = mover(Some(memory), Some(&disk));
        let stay = |seed| store(&mover, memory, MIB / 2, seed, Destination::Host);
        let kept: Vec<_> = (0..).map_while(|seed| stay(seed).ok()).collect();
        assert!((1..=4).contains(&kept.len()), "{}", kept.len());
        let said = stay(9).unwrap_err().to_string();
        assert!(said.starts_with("layer.9/out#0: ") && said.contains("find no room in the mover's 8388608"), "{said}");
        // Bytes that stay can still be fetched, and there is always room to read.
        for (seed, stored) in kept.iter().enumerate() {
            assert!(fetch(&mover, memory, stored, Urgency::Ahead).unwrap() == expected(MIB / 2, seed as u8));
        }
        drop(kept);
        memory.driver().synchronize().unwrap();
        // This is more than the memory holds at once, several times. The disk writes nothing until a store waits.
        let stalls = &mover.shared.stalls;
        gate.close(Direction::Out);
        let through: Vec<_> = thread::scope(|scope| {
            scope.spawn(|| {
                eventually(|| stalls.disk_write.is_waiting());
                gate.open(Direction::Out);
            });
            (0..3).map(|seed| store(&mover, memory, 5 * MIB + 1, seed, Destination::Disk).unwrap()).collect()
        });
        // The disk reads nothing until a fetch waits.
        through[0].wait().unwrap();
        gate.close(Direction::In);
        thread::scope(|scope| {
            scope.spawn(|| {
                eventually(|| stalls.disk_read.is_waiting());
                gate.open(Direction::In);
            });
            for (seed, stored) in through.iter().enumerate() {
                assert!(fetch(&mover, memory, stored, Urgency::Ahead).unwrap() == expected(5 * MIB + 1, seed as u8));
            }
        });
        let links = mover.links();
        assert!(!links.disk_write.stalled.is_zero() && !links.disk_read.stalled.is_zero(), "{links:?}");
        assert!(mover.pinned().unwrap().pinned_bytes.peak <= SMALL as u64);
        drop((through, mover));
        expect_peace(memory);
    }
}

#[test]
fn links_say_what_went_over_them() {
    for memory in memories().into_iter().take(1) {
        let (_folders, disk) = disk();
        let mover = mover(Some(memory), Some(&disk));
        assert_eq!(mover.links(), Links::default());
        mover.probe().unwrap();
        let Links { device_to_host, host_to_device, disk_write, disk_read, .. } = mover.links();
        for link in [device_to_host, host_to_device] {
            // One direction after the other, and both at once.
            assert_eq!((link.bytes, link.transfers), (8 << 20, 16));
        }
        // The disk's codecs were tried too, on two pieces of a megabyte each.
        for link in [disk_write, disk_read] {
            assert!((10 << 20..12 << 20).contains(&link.bytes) && link.transfers == 16, "{link:?}");
        }
        assert!(disk_write.bandwidth().unwrap() > 0.0 && disk_read.bandwidth().unwrap() > 0.0);
        // Work of a simulated device takes no time.
        let is_real = matches!(memory.driver().executor(), Executor::Cuda(_));
        assert_eq!(device_to_host.bandwidth().is_some() && host_to_device.bandwidth().is_some(), is_real);
        drop(mover);
        expect_peace(memory);
    }
}

#[test]
fn invalid_options_are_refused() {
    let (_, memory) = simulated(0);
    let (_folders, disk) = disk();
    assert!(matches!(Mover::new(None, MoverOptions::new(5)), Err(MoverError::TooLittle { .. })));
    let said = |result: Result<Stored, MoverError>| result.unwrap_err().to_string();
    let device = mover(Some(memory), None);
    let host = mover(None, Some(&disk));
    assert_eq!(
        said(device.store("a", vector(vec![1]), Destination::Host)),
        "a: its bytes are on cpu, and the mover moves those on cuda:0"
    );
    let without_disk = store(&device, memory, 5, 1, Destination::Disk);
    assert!(matches!(without_disk, Err(MoverError::NoPlace { place: "disk", .. })));
    let without_memory = host.store("a", vector(vec![1]), Destination::Host);
    assert!(matches!(without_memory, Err(MoverError::NoPlace { place: "pinned memory", .. })));
    let stored = host.store("a", vector(vec![1; 10]), Destination::Disk).unwrap();
    let fetched = host.fetch(&stored, vector(vec![1; 9]), Urgency::Now);
    assert_eq!(fetched.unwrap_err().to_string(), "a: it has 10 bytes, and is fetched into 9");
    expect_peace(memory);
}

#[test]
fn a_capture_is_refused_and_goes_on() {
    let (driver, memory) = simulated(0);
    let mover = mover(Some(memory), None);
    let storage = filled(memory, 100, 1);
    let stream = memory.streams().pooled(Priority::Default).unwrap();
    driver.begin_capture(stream.id()).unwrap();
    // SAFETY: the store is refused.
    let bytes = unsafe { MovableBytes::of(&storage, Some(&stream)) };
    assert!(matches!(mover.store("a", bytes, Destination::Host), Err(MoverError::Captured { .. })));
    driver.destroy_graph(driver.end_capture(stream.id()).unwrap()).unwrap();
}

#[test]
fn host_memory_goes_to_disk_and_is_freed_there() {
    let (_folders, disk) = disk();
    let mover = mover(None, Some(&disk));
    let freed = Arc::new(AtomicBool::new(false));
    struct Owner(Vec<u8>, Arc<AtomicBool>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.store(true, Ordering::Release);
        }
    }
    let bytes = some_bytes(1, 17 * MIB + 5);
    let mut owner = Owner(bytes.clone(), Arc::clone(&freed));
    // SAFETY: nothing writes to the vector.
    let source = unsafe { MovableBytes::new(owner.0.as_mut_ptr(), bytes.len(), None, owner) };
    let stored = mover.store("a", source, Destination::Disk).unwrap();
    // At least half of the bytes had to be on disk.
    assert!(stored.host_bytes() <= SMALL as u64);
    assert!(fetch_host(&mover, &stored, Urgency::Now).unwrap() == bytes, "while it is written");
    stored.wait().unwrap();
    assert_eq!(stored.host_bytes(), 0);
    assert!(freed.load(Ordering::Acquire));
    for urgency in [Urgency::Ahead, Urgency::Now] {
        assert!(fetch_host(&mover, &stored, urgency).unwrap() == bytes);
    }
    drop(stored);
    assert_eq!(disk.statistics().free_bytes, disk.capacity_bytes());
}

#[test]
fn urgent_fetches_precede_prefetches() {
    let (_folders, disk) = disk();
    let mover = mover(None, Some(&disk));
    let [a, b, c] = ["a", "b", "c"].map(|name| mover.store(name, vector(vec![1; MIB]), Destination::Disk).unwrap());
    [&a, &b, &c].iter().for_each(|stored| stored.wait().unwrap());
    let order = || {
        let reads = mover.shared.reads.lock();
        reads.waiting.iter().flatten().map(|read| read.fetch.name.clone()).collect::<String>()
    };
    // Nothing is read while no slot is free.
    let slots = std::mem::take(&mut mover.shared.reads.lock().slots);
    let fetch = |stored, urgency| mover.fetch(stored, vector(vec![0; MIB]), urgency).unwrap();
    let arrivals = [fetch(&a, Urgency::Ahead), fetch(&b, Urgency::Ahead), fetch(&c, Urgency::Now)];
    assert_eq!(order(), "ccaabb");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| arrivals[1].wait());
        eventually(|| order() == "ccbbaa" && mover.shared.stalls.disk_read.is_waiting());
        mover.shared.reads.lock().slots = slots;
        mover.shared.start_reads();
        waiting.join().unwrap().unwrap();
    });
    arrivals.iter().for_each(|arrival| arrival.wait().unwrap());
    assert!(!mover.links().disk_read.stalled.is_zero());
}

#[test]
fn failed_writes_stay_in_memory_and_failed_reads_are_errors() {
    for memory in [None, Some(simulated(3).1)] {
        for ends in [false, true] {
            let (_folders, paths) = folders(1);
            let out = mover(memory, Some(&faulty(&paths, Direction::Out, 2, ends)));
            let bytes = expected(2 * MIB, 1);
            let put = |mover: &Mover| match memory {
                None => mover.store("layer.1/out#0", vector(bytes.clone()), Destination::Disk).unwrap(),
                Some(memory) => store(mover, memory, 2 * MIB, 1, Destination::Disk).unwrap(),
            };
            let get = |mover: &Mover, stored: &Stored| match memory {
                None => fetch_host(mover, stored, Urgency::Ahead),
                Some(memory) => fetch(mover, memory, stored, Urgency::Ahead),
            };
            let stored = put(&out);
            let said = stored.wait().unwrap_err().to_string();
            assert!(said.starts_with("layer.1/out#0: ") && said.contains(paths[0].to_str().unwrap()), "{said}");
            assert!(stored.host_bytes() > 0);
            if !ends {
                assert!(get(&out, &stored).unwrap() == bytes);
            }
            drop((stored, out));

            let back = mover(memory, Some(&faulty(&paths, Direction::In, 2, ends)));
            let stored = put(&back);
            stored.wait().unwrap();
            // Pieces that did arrive must not overwrite the next user of the memory, which is freed with the error.
            let said = get(&back, &stored).unwrap_err().to_string();
            assert!(said.starts_with("layer.1/out#0: ") && said.contains(paths[0].to_str().unwrap()), "{said}");
            memory.into_iter().for_each(|memory| drop(filled(memory, 2 * MIB, 9)));
            if !ends {
                assert!(get(&back, &stored).unwrap() == bytes, "it was one failure");
            }
            drop((stored, back));
            memory.into_iter().for_each(expect_peace);
        }
    }
}

#[test]
fn a_full_disk_says_so_and_takes_more_later() {
    let (_folders, paths) = folders(1);
    let disk = Disk::open(&paths, DiskOptions::new(2 << 20)).unwrap();
    let (_, memory) = simulated(1);
    let mover = mover(Some(memory), Some(&disk));
    let first = store(&mover, memory, MIB, 1, Destination::Disk).unwrap();
    // The first may still be on its way. Half of the second would fit; that half must be given back.
    let error = store(&mover, memory, 2 * MIB, 2, Destination::Disk).unwrap_err();
    let said = error.to_string();
    assert!(error.is_no_room() && said.starts_with("layer.2/out#0: ") && said.contains("do not fit on disk"), "{said}");
    let third = store(&mover, memory, MIB, 3, Destination::Disk).unwrap();
    for (stored, seed) in [(&first, 1), (&third, 3)] {
        stored.wait().unwrap();
        assert!(fetch(&mover, memory, stored, Urgency::Now).unwrap() == expected(MIB, seed));
    }
    drop((first, third));
    store(&mover, memory, 2 * MIB, 4, Destination::Disk).unwrap().wait().unwrap();
    drop(mover);
    expect_peace(memory);
}

#[test]
fn a_refused_write_stays_in_memory() {
    let (_folders, paths) = folders(1);
    let options = DiskOptions { daily_bytes: Some(2 << 20), ..DiskOptions::new(16 << 20) };
    let disk = Disk::open(&paths, options).unwrap();
    let (_, memory) = simulated(1);
    let mover = mover(Some(memory), Some(&disk));
    let first = store(&mover, memory, 2 * MIB, 1, Destination::Disk).unwrap();
    first.wait().unwrap();
    let second = store(&mover, memory, MIB, 2, Destination::Disk).unwrap();
    let said = second.wait().unwrap_err().to_string();
    assert!(said.starts_with("layer.2/out#0: ") && said.contains("may be written in a day"), "{said}");
    assert!(fetch(&mover, memory, &second, Urgency::Now).unwrap() == expected(MIB, 2));
    // The memory is full of bytes that could not be written, and the error says why.
    let more: Vec<_> = (0..2).map(|seed| store(&mover, memory, MIB, seed, Destination::Disk)).collect();
    let error = more.into_iter().find_map(Result::err).unwrap();
    let said = error.to_string();
    assert!(error.is_no_room() && said.contains("its disk failed: layer."), "{said}");
    drop((first, second, mover));
    expect_peace(memory);
}

/// Whichever driver call fails, no byte is wrong, and everything works afterwards.
#[test]
fn no_failing_call_loses_bytes_or_memory() {
    /// The length of two pieces.
    const LENGTH: usize = MIB / 4 + 777;
    for to in [Destination::Host, Destination::Disk] {
        let (_folders, disk) = disk();
        let failed = AtomicUsize::new(0);
        for call in 1.. {
            let (driver, memory) = simulated(call);
            let mover = mover(Some(memory), Some(&disk));
            let targets = [filled(memory, LENGTH, 1), filled(memory, LENGTH, 2)];
            driver.synchronize().unwrap();
            let calls = driver.calls(None);
            let stream = memory.streams().current();
            driver.inject(Failure::of_any(call));
            let round = |seed: u8| -> Result<Vec<u8>, MoverError> {
                let [source, target] = &targets;
                let stored = mover.store("a", on_device(memory, source), to)?;
                let waited = stored.wait();
                let arrival = mover.fetch(&stored, on_device(memory, target), Urgency::Ahead)?;
                arrival.lead_to(&stream)?;
                arrival.wait()?;
                assert!(waited.is_ok() || seed == 0);
                drop(stored);
                driver.clear_failures();
                Ok(read(memory, target))
            };
            let result = round(0);
            let is_past = driver.calls(None) - calls < call;
            driver.clear_failures();
            match result {
                Ok(bytes) => assert!(bytes == expected(LENGTH, 1), "call {call}"),
                Err(error) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    assert!(error.to_string().starts_with("a: "), "{error}");
                }
            }
            driver.synchronize().unwrap();
            fill(memory, &targets[1], 2);
            assert!(round(1).unwrap() == expected(LENGTH, 1), "after call {call}");
            drop((targets, mover));
            expect_peace(memory);
            if is_past {
                assert!(call > 20, "{call}");
                break;
            }
        }
        assert!(failed.into_inner() > 10);
    }
}

fn many_threads(memory: Option<Memory>, steps: &[(u8, usize, u8)], disk: &Disk) {
    let mover = mover(memory, Some(disk));
    let work = |number: usize| {
        // Each thread has a stream of its own, as a program's threads have.
        let stream = memory.map(|memory| memory.streams().pooled(Priority::Default).unwrap());
        let _guard = stream.as_ref().map(tenure_device::StreamGuard::new);
        let mut kept: Vec<(Stored, u8)> = Vec::new();
        for &(what, length, seed) in steps.iter().skip(number) {
            let seed = seed.wrapping_add(number as u8);
            let to = if what == 0 && memory.is_some() { Destination::Host } else { Destination::Disk };
            match what {
                0 | 1 => {
                    let stored = match memory {
                        Some(memory) => store(&mover, memory, length, seed, to),
                        None => mover.store("a", vector(expected(length, seed)), to),
                    };
                    match stored {
                        Ok(stored) => kept.push((stored, seed)),
                        Err(MoverError::NoRoom { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                _ if kept.is_empty() => {}
                2 | 3 => {
                    let (stored, its) = &kept[usize::from(seed) % kept.len()];
                    let urgency = if what == 2 { Urgency::Ahead } else { Urgency::Now };
                    let back = match memory {
                        Some(memory) => fetch(&mover, memory, stored, urgency),
                        None => fetch_host(&mover, stored, urgency),
                    };
                    assert!(back.unwrap() == expected(stored.bytes() as usize, *its));
                }
                4 => {
                    // No thread waits for it.
                    let (stored, _) = &kept[usize::from(seed) % kept.len()];
                    if let Some(memory) = memory {
                        let target = filled(memory, stored.bytes() as usize, 0);
                        drop(mover.fetch(stored, on_device(memory, &target), Urgency::Ahead).unwrap());
                    }
                }
                _ => drop(kept.swap_remove(usize::from(seed) % kept.len())),
            }
        }
    };
    thread::scope(|scope| {
        for number in 0..3 {
            let work = &work;
            scope.spawn(move || work(number));
        }
    });
    if let Some(pinned) = mover.pinned() {
        assert!(pinned.pinned_bytes.peak <= SMALL as u64);
    }
    drop(mover);
    memory.into_iter().for_each(expect_peace);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// When several threads store, fetch and drop in any order, exactly the stored bytes come back.
    #[test]
    fn everything_comes_back(
        steps in prop::collection::vec((0_u8..6, 0_usize..3 * MIB / 2, any::<u8>()), 1..24), seed: u64, has_device: bool,
    ) {
        let (_folders, disk) = disk();
        let is_real = env::var("TENURE_TEST_DRIVER").is_ok_and(|driver| driver == "cuda");
        let memory = has_device.then(|| if is_real { memories()[0] } else { simulated(seed).1 });
        many_threads(memory, &steps, &disk);
        // Bytes that were dropped on their way out are still written, and then free their room.
        eventually(|| disk.statistics().free_bytes == disk.capacity_bytes());
    }
}
