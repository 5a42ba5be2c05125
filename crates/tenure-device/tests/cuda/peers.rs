//! Tests of memory that another device accesses in place. They need two devices.

use std::sync::Arc;

use tenure_alloc::Request;
use tenure_core::{Device, StreamId};
use tenure_device::memory::{DeviceMemory, MemoryConfig};
use tenure_device::{CopyCalls, Driver, MemoryCalls, Platform, cuda};

use crate::common::device;

const BYTES: u64 = 4 << 20;

#[test]
fn work_of_a_peer_uses_memory_that_was_there_and_memory_that_came_later() {
    let Some(driver) = device() else { return };
    let platform = cuda::platform();
    if platform.device_count().unwrap() < 2 || !platform.can_access_peer(1, 0).unwrap() {
        eprintln!("skipped: there are no two devices of which one reaches the other");
        return;
    }
    let other = platform.driver(1).unwrap();
    let stream = StreamId::NULL;
    for policy in ["paged", "native", "expandable"] {
        let config = MemoryConfig { policy: policy.parse().unwrap(), ..MemoryConfig::default() };
        let shared: Arc<dyn Driver> = driver.shared();
        let memory = DeviceMemory::new(shared, config).unwrap();
        let alloc = || memory.allocate(Request::new(BYTES, stream)).unwrap().address;
        let early = alloc();
        memory.enable_peer(Device::cuda(1)).unwrap();
        memory.enable_peer(Device::cuda(1)).unwrap();
        for (address, value) in [(early, 7), (alloc(), 8)] {
            // The peer writes and this device reads; then the other way round.
            other.memset(address, value, BYTES, stream).unwrap();
            other.synchronize().unwrap();
            let mut bytes = vec![0; BYTES as usize];
            driver.copy_from_device(&mut bytes, address, stream).unwrap();
            assert!(bytes.iter().all(|&byte| byte == value), "{policy}");

            driver.memset(address, value + 10, BYTES, stream).unwrap();
            driver.synchronize().unwrap();
            let target = other.malloc(BYTES).unwrap();
            other.copy_on_device(target, address, BYTES, stream).unwrap();
            other.copy_from_device(&mut bytes, target, stream).unwrap();
            assert!(bytes.iter().all(|&byte| byte == value + 10), "{policy}");
            other.free(target).unwrap();
            memory.free(address).unwrap();
        }
    }
}

#[test]
fn a_device_is_no_peer_of_its_own() {
    let Some(driver) = device() else { return };
    println!("{}", driver.enable_peer(0).unwrap_err());
}
