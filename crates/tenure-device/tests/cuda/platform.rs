//! Tests of the platform: its reports about devices, and memory that another device accesses in place.

use std::sync::Arc;

use tenure_alloc::Request;
use tenure_core::{Device, StreamId};
use tenure_device::memory::{DeviceMemory, MemoryConfig};
use tenure_device::{CopyCalls, Driver, Event, EventKind, MemoryCalls, Platform, Priority, Streams, cuda};

use crate::common::{device, spin};

#[test]
fn the_platform_describes_its_devices() {
    let Some(driver) = device() else { return };
    let platform = cuda::platform();
    let count = platform.device_count().unwrap();
    let version = platform.driver_version().unwrap();
    println!("{count} devices, the driver serves CUDA {}.{}", version / 1000, version % 1000 / 10);
    let properties = platform.properties(0).unwrap();
    println!("{properties:#?}");
    assert_eq!(&properties, driver.properties());
    assert!(properties.has_virtual_memory && properties.shares_descriptors);
    assert!(driver.memory_info().unwrap().total <= properties.total_bytes);
    assert_eq!(platform.can_access_peer(0, 0), Ok(true));
    for peer in 1..count.min(16) as u8 {
        println!("0 to {peer}: {:?}, peer access {:?}", platform.link(0, peer), platform.can_access_peer(0, peer));
    }
    let beyond = platform.properties(count.min(255) as u8).unwrap_err();
    println!("one too many: {beyond}");
}

#[test]
fn a_device_has_one_driver() {
    let Some(driver) = device() else { return };
    let again = cuda::platform().cuda_driver(0).unwrap();
    assert!(std::ptr::eq(&*driver, &*again));
    assert_eq!(driver.device(), cuda::platform().driver(0).unwrap().device());
}

/// The management library numbers processes as the host does, so in a container this process may have another number
/// there.
#[test]
fn this_process_is_among_those_that_hold_memory() {
    let Some(driver) = device() else { return };
    driver.synchronize().unwrap();
    let Some(processes) = driver.processes() else {
        eprintln!("skipped: the management library does not tell");
        return;
    };
    println!("this is process {}; the device has {processes:?}", std::process::id());
    let ours = processes.iter().find(|process| process.pid == std::process::id());
    assert!(ours.is_none_or(|ours| ours.bytes != Some(0)));
}

#[test]
fn a_stream_waits_for_an_event_of_another_device() {
    let Some(driver) = device() else { return };
    if cuda::platform().device_count().unwrap() < 2 {
        eprintln!("skipped: there is one device");
        return;
    }
    let streams = [0, 1].map(|index| Streams::new(cuda::platform().driver(index).unwrap()));
    let [stream, other] = streams.map(|streams| streams.pooled(Priority::Default).unwrap());
    let mut event = Event::new(stream.driver().clone(), EventKind::Order);
    spin(&driver, stream.id(), 200);
    event.record(&stream).unwrap();
    event.wait(&other).unwrap();
    assert!(!other.query().unwrap(), "the other device waits");
    other.synchronize().unwrap();
    assert!(event.query().unwrap());
}

#[test]
fn work_of_a_peer_uses_memory_that_was_there_and_memory_that_came_later() {
    const BYTES: u64 = 4 << 20;
    let Some(driver) = device() else { return };
    let platform = cuda::platform();
    if platform.device_count().unwrap() < 2 || !platform.can_access_peer(1, 0).unwrap() {
        eprintln!("skipped: no device reaches another");
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
