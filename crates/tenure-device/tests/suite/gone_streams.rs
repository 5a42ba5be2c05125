//! Memory whose stream was destroyed: the allocator waits for the stream's work, and other streams go on.

use std::sync::Arc;

use tenure_alloc::adaptor::{Donated, RangePlacement};
use tenure_alloc::{
    Backing, CachingAllocator, NativeAllocator, NativeConfig, PoolId, PoolUse, PrivatePools, Request, Resource,
};
use tenure_core::StreamId;
use tenure_device::memory::{DeviceMemory, MemoryConfig};
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_device::{CopyCalls, DeviceBacking, MemoryCalls, Priority, StreamCalls};

const MIB: u64 = 1 << 20;

/// Creates a device of 1 GiB, and a stream of it that is busy until 10 µs.
fn device() -> (Arc<SimDriver>, StreamId) {
    let driver = Arc::new(SimDriver::new(SimConfig { capacity_bytes: 1 << 30, ..SimConfig::default() }));
    let stream = driver.create_stream(Priority::Default).unwrap();
    driver.busy_until(stream, 10).unwrap();
    (driver, stream)
}

fn memories(driver: &Arc<SimDriver>) -> impl Iterator<Item = DeviceMemory> {
    ["paged", "native", "expandable"].into_iter().map(|policy| {
        let config = MemoryConfig { policy: policy.parse().unwrap(), ..MemoryConfig::default() };
        DeviceMemory::new(Arc::clone(driver) as _, config).unwrap()
    })
}

#[test]
fn a_mark_on_a_stream_that_is_gone_waits_for_the_device_and_is_passed() {
    let (driver, stream) = device();
    let backing = DeviceBacking::new(Arc::clone(&driver) as _);
    let before = backing.record(stream).unwrap();
    driver.destroy_stream(stream).unwrap();
    assert!(!backing.completed(before).unwrap());
    let after = backing.record(stream).unwrap();
    assert!(before < after);
    assert_eq!(driver.now_us(), 10, "its work was waited for");
    let calls = driver.calls(None);
    assert!(backing.completed(before).unwrap() && backing.completed(after).unwrap());
    backing.wait(StreamId::NULL, after).unwrap();
    backing.synchronize(after).unwrap();
    assert_eq!(driver.calls(None), calls);
    assert!(after < backing.record(stream).unwrap());
}

#[test]
fn memory_cached_for_a_stream_that_is_gone_serves_others() {
    for number in 0..3 {
        let (driver, stream) = device();
        let memory = memories(&driver).nth(number).unwrap();
        let block = memory.allocate(Request::new(600 * MIB, stream)).unwrap();
        memory.free(block.address).unwrap();
        driver.destroy_stream(stream).unwrap();
        let block = memory.allocate(Request::new(600 * MIB, StreamId::NULL)).unwrap();
        driver.memset(block.address, 1, 600 * MIB, StreamId::NULL).unwrap();
        memory.free(block.address).unwrap();
        memory.allocator().release_cached().unwrap();
        assert_eq!((memory.backing().held_bytes(), driver.now_us()), (0, 10));
    }
}

#[test]
fn a_block_recorded_on_a_stream_that_is_gone_can_be_freed() {
    for number in 0..3 {
        let (driver, stream) = device();
        let memory = memories(&driver).nth(number).unwrap();
        let block = memory.allocate(Request::new(600 * MIB, StreamId::NULL)).unwrap();
        driver.memset(block.address, 1, 600 * MIB, stream).unwrap();
        memory.record_stream(block.address, stream).unwrap();
        driver.destroy_stream(stream).unwrap();
        memory.free(block.address).unwrap();
        let block = memory.allocate(Request::new(700 * MIB, StreamId::NULL)).unwrap();
        memory.free(block.address).unwrap();
        memory.allocator().release_cached().unwrap();
        assert_eq!((memory.backing().held_bytes(), driver.fault()), (0, None));
    }
}

#[test]
fn donated_memory_used_by_a_stream_that_is_gone_comes_back() {
    let (driver, user) = device();
    let owner = driver.create_stream(Priority::Default).unwrap();
    let backing: Arc<dyn Backing> = Arc::new(DeviceBacking::new(Arc::clone(&driver) as _));
    let inner = NativeAllocator::new(Arc::clone(&backing), NativeConfig::default()).unwrap();
    let donated = Donated::new(inner, backing);
    let range = driver.malloc(8 * MIB).unwrap();
    donated.donated().insert(range, 8 * MIB, owner, RangePlacement::BestFit).unwrap();
    let block = donated.allocate(Request::new(8 * MIB, owner)).unwrap();
    donated.record_stream(block.address, user).unwrap();
    donated.begin_pool(PoolId(1, 1), PoolUse::Capture, Box::new(|_| false)).unwrap();
    donated.free(block.address).unwrap();
    driver.destroy_stream(user).unwrap();
    donated.end_pool(PoolId(1, 1)).unwrap();
    assert_eq!(donated.allocate(Request::new(8 * MIB, owner)).unwrap(), block);
    donated.free(block.address).unwrap();
    donated.donated().clear(range).unwrap();
}
