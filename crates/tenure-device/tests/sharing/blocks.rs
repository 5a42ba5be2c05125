//! Tests of single blocks that one process opens in another.

use std::sync::{Arc, Barrier};
use std::thread;

use rustix::process::Uid;
use tenure_alloc::{PagedConfig, PoolId, PoolUse, Request};
use tenure_core::StreamId;
use tenure_device::memory::{AllocatorPolicy, DeviceMemory, MemoryConfig, SharedBlock};
use tenure_device::share::{HandleError, ShareError};
use tenure_device::sim::{Failure, SimConfig, SimDriver, SimPlatform};
use tenure_device::{Call, CopyCalls, Driver, MemoryCalls, Platform, Priority, StreamCalls};

use crate::common::{Footprint, GRANULE, alone, becomes_free, driver, eventually, fill, sim, sum};
use crate::process::{Process, tell};

/// The size of a large block, in bytes: its chunks of one granule are more than a frame carries descriptors.
const LARGE: u64 = 70 * GRANULE;
const SMALL: u64 = 4096;

/// Returns the memory of a process, in chunks of one granule.
pub(crate) fn memory(driver: Arc<dyn Driver>) -> DeviceMemory {
    let config = PagedConfig { min_chunk_bytes: GRANULE, max_chunk_bytes: GRANULE, ..PagedConfig::default() };
    DeviceMemory::new(driver, MemoryConfig { policy: AllocatorPolicy::Paged(config), ..MemoryConfig::default() })
        .unwrap()
}

fn simulated() -> (DeviceMemory, Arc<SimDriver>) {
    let driver = sim();
    (memory(Arc::<SimDriver>::clone(&driver)), driver)
}

/// Allocates and fills a block of `bytes` bytes. Returns its address and its handle for other processes.
pub(crate) fn shared(memory: &DeviceMemory, bytes: u64, seed: u64) -> (u64, SharedBlock) {
    let address = memory.allocate(Request::new(bytes, StreamId::NULL)).unwrap().address;
    fill(&**memory.driver(), address, bytes.min(GRANULE), seed);
    (address, memory.share(address).unwrap())
}

/// Returns a block's handle as text, to send to another process.
fn spelled(block: &SharedBlock) -> String {
    let hex: String = block.handle.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} {hex}", block.offset)
}

pub(crate) fn read(spelled: &str) -> SharedBlock {
    let (offset, hex) = spelled.split_once(' ').unwrap();
    SharedBlock {
        offset: offset.parse().unwrap(),
        handle: (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect(),
    }
}

/// Sends the handle of `block` and the sum of its content.
pub(crate) fn tell_of(block: &SharedBlock, sum: u64) {
    tell(format!("{sum} {}", spelled(block)));
}

/// Starts a process that shares a block of `bytes` bytes. Returns it, the sum of the block's first granule, and the
/// block.
fn sender(bytes: u64) -> (Process, u64, SharedBlock) {
    let mut sender = Process::start(&format!("send {bytes}"));
    let said = sender.hear();
    let (sum, block) = said.split_once(' ').unwrap();
    (sender, sum.parse().unwrap(), read(block))
}

#[test]
fn one_process_reads_the_bytes_that_another_writes() {
    alone();
    for bytes in [SMALL, LARGE] {
        let (mut sender, before, block) = sender(bytes);
        let memory = memory(driver());
        let opened = memory.open(&block.handle).unwrap();
        let address = opened.address() + block.offset;
        let looked_at = bytes.min(GRANULE);
        assert_eq!(sum(&**memory.driver(), address, looked_at), before);
        fill(&**memory.driver(), address, looked_at, 99);
        memory.driver().memset(address + bytes - 1, 7, 1, StreamId::NULL).unwrap();
        memory.driver().synchronize().unwrap();
        let written = sum(&**memory.driver(), address, looked_at);
        sender.say("sum");
        assert_eq!(sender.hear(), written.to_string());
        drop(opened);
        sender.finish();
    }
}

#[test]
fn memory_outlives_the_process_that_shared_it() {
    alone();
    let (process, before, block) = sender(LARGE);
    let memory = memory(driver());
    let opened = memory.open(&block.handle).unwrap();
    let pid = process.id();
    process.kill();
    assert_eq!(sum(&**memory.driver(), opened.address() + block.offset, GRANULE), before);
    // A mapped block is found again; opening an unmapped one gives the reason for the failure.
    memory.open(&block.handle).unwrap();
    drop(opened);
    let error = memory.open(&block.handle).err().unwrap();
    assert!(matches!(error, ShareError::SenderGone { pid: gone } if gone == pid), "{error}");
}

#[test]
fn a_freed_block_is_not_found_and_who_has_it_keeps_it() {
    alone();
    let (mut sender, before, block) = sender(LARGE);
    let memory = memory(driver());
    let opened = memory.open(&block.handle).unwrap();
    sender.say("free");
    assert_eq!(sender.hear(), "freed");
    assert_eq!(sum(&**memory.driver(), opened.address() + block.offset, GRANULE), before);
    drop(opened);
    let error = memory.open(&block.handle).err().unwrap();
    assert!(error.to_string().contains("has freed the block"), "{error}");
    sender.finish();
}

#[test]
fn a_chunk_that_was_given_back_gives_its_name_to_no_other() {
    let ((sender, driver), (receiver, _)) = (simulated(), simulated());
    let (address, old) = shared(&sender, LARGE, 1);
    sender.free(address).unwrap();
    sender.allocator().release_cached().unwrap();
    let (_, new) = shared(&sender, LARGE, 2);
    assert!(driver.counters().release > 0);
    assert_ne!(old.handle, new.handle);
    assert!(matches!(receiver.open(&old.handle), Err(ShareError::BlockReleased { .. })));
    receiver.open(&new.handle).unwrap();
}

#[test]
fn blocks_in_the_same_chunks_are_mapped_once() {
    let ((sender, _), (receiver, driver)) = (simulated(), simulated());
    let ((one, first), (other, second)) = (shared(&sender, SMALL, 1), shared(&sender, SMALL, 2));
    assert_eq!(first.handle, second.handle);
    assert_eq!(other - one, second.offset - first.offset);
    let maps = driver.counters().map;
    let opened = [&first, &second, &first].map(|block| receiver.open(&block.handle).unwrap());
    assert!(opened.iter().all(|block| block.address() == opened[0].address()));
    assert_eq!(driver.counters().map, maps + 1);
    let [a, b, c] = opened;
    drop((a, b));
    assert_eq!(driver.counters().unmap, 0);
    drop(c);
    assert_eq!(driver.counters().unmap, 1);
}

#[test]
fn threads_that_open_a_block_at_once_have_one_mapping() {
    let ((sender, _), (receiver, driver)) = (simulated(), simulated());
    let (_, block) = shared(&sender, LARGE, 1);
    let start = Barrier::new(4);
    let opened: Vec<_> = thread::scope(|scope| {
        let threads = [(); 4].map(|()| {
            scope.spawn(|| {
                start.wait();
                receiver.open(&block.handle).unwrap()
            })
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(opened.iter().all(|block| block.address() == opened[0].address()));
    drop(opened);
    // The mappings that the other threads made are gone.
    assert_eq!(driver.calls(Some(Call::Release)), driver.calls(Some(Call::Import)));
}

/// Counts the sockets that have the name at which the sender of a handle listens: its own, and one for each connection
/// to it, accepted or not.
fn sockets_of_sender(handle: &[u8]) -> usize {
    // The token in the name follows the handle's magic bytes (6) and version (2).
    let token: String = handle[8..24].iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::read_to_string("/proc/net/unix").unwrap().lines().filter(|line| line.ends_with(&token)).count()
}

#[test]
fn a_silent_sender_holds_up_no_other_block() {
    alone();
    let (answering, _, known) = sender(SMALL);
    let (silent, _, block) = sender(SMALL);
    let receiver = memory(driver());
    let opened = receiver.open(&known.handle).unwrap();
    silent.stop();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| receiver.open(&block.handle).err().unwrap());
        eventually("it is connected", || sockets_of_sender(&block.handle) > 1);
        drop(receiver.open(&known.handle).unwrap());
        drop(opened);
        assert!(!waiting.is_finished(), "it waited too");
        silent.kill();
        assert!(matches!(waiting.join().unwrap(), ShareError::SenderGone { .. }));
    });
    answering.finish();
}

#[test]
fn a_block_is_named_alike_each_time() {
    let (memory, _) = simulated();
    let (address, block) = shared(&memory, LARGE, 1);
    assert_eq!(memory.share(address).unwrap(), block);
}

#[test]
fn nothing_is_unmapped_under_work_that_is_queued() {
    let ((sender, _), (receiver, driver)) = (simulated(), simulated());
    let (_, block) = shared(&sender, GRANULE, 1);
    let opened = receiver.open(&block.handle).unwrap();
    let stream = driver.create_stream(Priority::Default).unwrap();
    driver.memset(opened.address() + block.offset, 3, GRANULE, stream).unwrap();
    drop(opened);
    driver.synchronize().unwrap();
    assert_eq!((driver.fault(), driver.counters().unmap), (None, 1));
}

#[test]
fn a_capture_is_not_broken_by_the_end_of_a_block() {
    let ((sender, _), (receiver, driver)) = (simulated(), simulated());
    let (_, block) = shared(&sender, GRANULE, 1);
    let opened = receiver.open(&block.handle).unwrap();
    let pool = PoolId(1, 0);
    receiver.allocator().begin_pool(pool, PoolUse::Capture, Box::new(|_| true)).unwrap();
    let waits = driver.calls(Some(Call::Synchronize));
    drop(opened);
    assert_eq!((driver.calls(Some(Call::Synchronize)), driver.counters().unmap), (waits, 0));
    receiver.allocator().end_pool(pool).unwrap();
    // The block is still mapped and is used again, so this does not wait for the device.
    let maps = driver.counters().map;
    let opened = receiver.open(&block.handle).unwrap();
    assert_eq!((driver.counters().map, driver.calls(Some(Call::Synchronize))), (maps, waits));
    drop(opened);
    assert_eq!(driver.counters().unmap, 1);
}

#[test]
fn a_block_can_end_in_a_host_function() {
    let ((sender, _), (receiver, driver)) = (simulated(), simulated());
    let (receiver, (_, block)) = (Box::leak(Box::new(receiver)), shared(&sender, GRANULE, 1));
    let opened = receiver.open(&block.handle).unwrap();
    driver.host_function(StreamId::NULL, Box::new(move || drop(opened))).unwrap();
    driver.synchronize().unwrap();
    assert_eq!((driver.fault(), driver.counters().unmap), (None, 0));
    drop(receiver.open(&block.handle).unwrap());
    assert_eq!(driver.counters().unmap, 1);
}

#[test]
fn a_block_that_is_used_while_the_device_is_waited_for_stays() {
    let ((sender, _), (receiver, driver)) = (simulated(), simulated());
    let (receiver, (_, block)) = (&*Box::leak(Box::new(receiver)), shared(&sender, GRANULE, 1));
    let opened = receiver.open(&block.handle).unwrap();
    let handle = block.handle.clone();
    driver.host_function(StreamId::NULL, Box::new(move || drop(receiver.open(&handle).unwrap()))).unwrap();
    // This waits for the device, and the function runs. Work submitted while the function used the block may be
    // unfinished.
    drop(opened);
    assert_eq!(driver.counters().unmap, 0);
    drop(receiver.open(&block.handle).unwrap());
    assert_eq!(driver.counters().unmap, 1);
}

#[test]
fn a_process_can_open_what_it_shares() {
    let (memory, driver) = simulated();
    let (address, block) = shared(&memory, GRANULE, 1);
    let opened = memory.open(&block.handle).unwrap();
    assert_ne!(opened.address() + block.offset, address);
    driver.memset(address, 5, GRANULE, StreamId::NULL).unwrap();
    assert_eq!(sum(&*driver, opened.address() + block.offset, GRANULE), sum(&*driver, address, GRANULE));
    drop(opened);
    memory.free(address).unwrap();
}

#[test]
fn only_live_blocks_of_chunks_are_shared() {
    let (memory, _) = simulated();
    let (address, _) = shared(&memory, SMALL, 1);
    memory.free(address).unwrap();
    for address in [0, 0x42, address] {
        assert!(matches!(memory.share(address), Err(ShareError::NotShareable { .. })));
    }
    let config = MemoryConfig { policy: "native".parse().unwrap(), ..MemoryConfig::default() };
    let native = DeviceMemory::new(sim(), config).unwrap();
    let address = native.allocate(Request::new(SMALL, StreamId::NULL)).unwrap().address;
    let error = native.share(address).unwrap_err().to_string();
    assert!(error.contains("expandable segments"), "{error}");
}

#[test]
fn a_block_is_opened_on_the_device_that_it_lies_on() {
    let platform = SimPlatform::new(vec![SimConfig::default(); 2]);
    let sender = memory(platform.driver(0).unwrap());
    let receiver = memory(platform.driver(1).unwrap());
    let (_, block) = shared(&sender, SMALL, 1);
    let error = receiver.open(&block.handle).err().unwrap();
    assert!(matches!(error, ShareError::OtherDevice { .. }), "{error}");
    assert!(error.to_string().contains("CUDA_VISIBLE_DEVICES"), "{error}");
}

#[test]
fn an_invalid_handle_says_what_to_do() {
    let (memory, _) = simulated();
    let error = memory.open(&[0x42; 64]).err().unwrap();
    assert!(matches!(error, ShareError::Handle(HandleError::Foreign)));
    assert!(error.to_string().contains("install Tenure's allocator in the process that sends"), "{error}");
}

#[test]
fn another_user_is_refused() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return;
    }
    let ((sender, _), (receiver, _)) = (simulated(), simulated());
    let (_, block) = shared(&sender, SMALL, 1);
    let error = as_another_user(|| receiver.open(&block.handle).err().unwrap());
    assert!(matches!(error, ShareError::ForeignSender), "{error}");
    receiver.open(&block.handle).unwrap();
}

#[test]
fn another_user_s_blocks_are_refused() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return;
    }
    let ((sender, _), (receiver, _)) = (simulated(), simulated());
    // A receiver sees the user who started to listen.
    let (_, block) = as_another_user(|| shared(&sender, SMALL, 1));
    let error = receiver.open(&block.handle).err().unwrap();
    assert!(matches!(error, ShareError::ForeignSender), "{error}");
}

fn as_another_user<T: Send>(action: impl FnOnce() -> T + Send) -> T {
    let action = || {
        // Sets the user of this thread only.
        rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::from_raw(65534), Uid::ROOT).unwrap();
        action()
    };
    thread::scope(|threads| threads.spawn(action).join().unwrap())
}

#[test]
fn an_opening_that_fails_leaves_nothing_behind() {
    let ((sender, owner), (receiver, driver)) = (simulated(), simulated());
    let (address, block) = shared(&sender, 3 * GRANULE, 1);
    let free = owner.memory_info().unwrap().free;
    let mut failures = 0;
    for n in 1.. {
        driver.inject(Failure::of_any(n));
        let opened = receiver.open(&block.handle);
        driver.clear_failures();
        let Err(error) = opened else { break };
        assert!(matches!(error, ShareError::Driver(_)), "{error}");
        failures += 1;
    }
    assert_eq!(failures, 8, "a reservation, three imports and maps, and access");
    owner.inject(Failure::of(Call::Export, 1));
    let error = receiver.open(&block.handle).err().unwrap();
    assert!(matches!(error, ShareError::SenderFailed { .. }), "{error}");
    drop(receiver.open(&block.handle).unwrap());
    sender.free(address).unwrap();
    sender.allocator().release_cached().unwrap();
    becomes_free(&*owner, free + 3 * GRANULE);
}

#[test]
fn many_threads_open_and_end_the_same_block() {
    let ((sender, _), (receiver, driver)) = (simulated(), simulated());
    let (_, block) = shared(&sender, GRANULE, 1);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..100 {
                    let opened = receiver.open(&block.handle).unwrap();
                    driver.memset(opened.address() + block.offset, 1, GRANULE, StreamId::NULL).unwrap();
                }
            });
        }
    });
    assert_eq!(driver.fault(), None);
    assert_eq!(driver.counters().map, driver.counters().unmap);
}

/// Runs in a process of its own, so that no other test opens descriptors or starts threads in it.
#[test]
fn sending_and_receiving_leak_nothing() {
    alone();
    let mut receiver = Process::start("receive 20");
    assert_eq!(receiver.hear(), "nothing leaked");
    receiver.finish();
}

/// Opens and drops blocks of another process, and shares its own, `rounds` times.
pub(crate) fn receive(rounds: u64) {
    let memory = memory(driver());
    let (process, _, theirs) = sender(LARGE);
    let round = |seed| {
        let opened = memory.open(&theirs.handle).unwrap();
        let (own, block) = shared(&memory, GRANULE, seed);
        drop((memory.open(&block.handle).unwrap(), opened));
        memory.free(own).unwrap();
        memory.allocator().release_cached().unwrap();
    };
    round(0);
    let before = Footprint::now(&**memory.driver());
    (0..rounds).for_each(round);
    // The two ends of a connection are closed one after the other.
    eventually("nothing is left behind", || Footprint::now(&**memory.driver()).is_no_more_than(&before));
    process.finish();
    tell("nothing leaked");
}
