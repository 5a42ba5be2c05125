//! Device memory that another device reaches, and copies between devices.

use std::env;
use std::sync::Arc;

use tenure_alloc::Request;
use tenure_core::{Device, StreamId};
use tenure_device::memory::{DeviceMemory, MemoryConfig, MemoryError};
use tenure_device::sim::{Failure, SimConfig, SimDriver, SimKernel, SimPlatform};
use tenure_device::{
    AccessMode, Call, CopyCalls, Driver, ErrorKind, MemoryCalls, Platform, Priority, StreamCalls, Streams, cuda,
};

use crate::common::{kind, map_anywhere, read};

const MIB: u64 = 1 << 20;
const OTHER: u8 = 1;

fn devices() -> [Arc<SimDriver>; 2] {
    let platform = SimPlatform::new(vec![SimConfig::default(); 2]);
    [0, OTHER].map(|device| Arc::clone(platform.sim(device).unwrap()))
}

#[test]
fn a_peer_reaches_what_is_there_and_what_comes_as_the_device_itself_does() {
    let [driver, _] = devices();
    let chunk = driver.create(2 * MIB).unwrap();
    let take = || [driver.malloc(2 * MIB).unwrap(), map_anywhere(&*driver, chunk, 2 * MIB)];
    let reached = |addresses: [u64; 2]| addresses.map(|at| driver.lets(OTHER, AccessMode::ReadWrite, at, 2 * MIB));
    let before = take();
    assert_eq!(reached(before), [false, false]);
    driver.enable_peer(OTHER).unwrap();
    assert_eq!((reached(before), reached(take())), ([true, true], [true, true]));
    let [segment, mapping] = before;
    driver.set_access(mapping, 2 * MIB, AccessMode::Read).unwrap();
    assert_eq!(
        [AccessMode::Read, AccessMode::ReadWrite].map(|access| driver.lets(OTHER, access, mapping, MIB)),
        [true, false]
    );
    driver.unmap(mapping, 2 * MIB).unwrap();
    driver.free(segment).unwrap();
    assert_eq!(reached(before), [false, false]);
    assert!(!driver.lets(2, AccessMode::Read, segment, 1), "another device was not let");
}

#[test]
fn one_direction_is_not_the_other() {
    let [driver, other] = devices();
    driver.enable_peer(OTHER).unwrap();
    driver.enable_peer(OTHER).unwrap();
    let address = other.malloc(MIB).unwrap();
    assert!(!other.lets(0, AccessMode::Read, address, MIB));
}

#[test]
fn no_address_is_that_of_two_devices() {
    let [first, second] = devices().map(|driver| driver.reserve(1 << 46).unwrap());
    assert!(first + (1 << 46) <= second);
}

#[test]
fn devices_without_a_way_between_them_are_refused() {
    let platform = SimPlatform::new(vec![SimConfig::default(); 3]).with_link(0, 2, None, false);
    let driver = platform.sim(0).unwrap();
    assert_eq!(kind(driver.enable_peer(2)), ErrorKind::NoPeerAccess { device: 0, peer: 2 });
    assert_eq!(kind(driver.enable_peer(3)), ErrorKind::NoPeerAccess { device: 0, peer: 3 });
    assert_eq!(kind(driver.enable_peer(0)), ErrorKind::PeerOfItself(0));
    driver.enable_peer(OTHER).unwrap();
}

#[test]
fn every_block_of_a_memory_is_in_the_reach_of_its_peer() {
    for policy in ["paged", "native", "expandable"] {
        let [driver, _] = devices();
        let config = MemoryConfig { policy: policy.parse().unwrap(), ..MemoryConfig::default() };
        let memory = DeviceMemory::new(Arc::clone(&driver) as _, config).unwrap();
        let alloc = || [1000, 50 * MIB].map(|bytes| memory.allocate(Request::new(bytes, StreamId::NULL)).unwrap());
        let early = alloc();
        driver.inject(Failure::of(Call::EnablePeer, 1));
        let MemoryError::Driver(error) = memory.enable_peer(Device::cuda(OTHER)).unwrap_err() else { panic!() };
        assert_eq!(error.error.kind, ErrorKind::Injected);
        let is_reached =
            |block: &tenure_alloc::Block| driver.lets(OTHER, AccessMode::ReadWrite, block.address, block.bytes);
        assert!(!early.iter().any(is_reached), "{policy}: a failed call changed nothing");
        memory.enable_peer(Device::cuda(OTHER)).unwrap();
        assert!(early.iter().chain(&alloc()).all(is_reached), "{policy}");
    }
}

/// Returns pairs of devices: simulated ones that run in different orders, and real ones where there are two.
fn pairs() -> Vec<[Arc<dyn Driver>; 2]> {
    let chosen = env::var("TENURE_TEST_DRIVER").unwrap_or_else(|_| "all".to_owned());
    let mut pairs = Vec::new();
    if chosen != "cuda" {
        for seed in 0..8 {
            let platform = SimPlatform::new(vec![SimConfig { seed, ..SimConfig::default() }; 2]);
            pairs.push([0, OTHER].map(|device| platform.driver(device).unwrap()));
        }
    }
    if chosen != "sim" && cuda::platform().device_count().is_ok_and(|count| count > 1) {
        pairs.push([0, OTHER].map(|device| cuda::platform().driver(device).unwrap()));
    }
    pairs
}

#[test]
fn a_copy_to_a_peer_is_in_the_order_of_both_streams() {
    const BYTES: u64 = 4 * MIB;
    for drivers in pairs() {
        for policy in ["paged", "native", "expandable"] {
            let config = MemoryConfig { policy: policy.parse().unwrap(), ..MemoryConfig::default() };
            let memories =
                drivers.each_ref().map(|driver| DeviceMemory::new(Arc::clone(driver), config.clone()).unwrap());
            let [here, there] = drivers.each_ref();
            let [from, to] = memories.each_ref().map(|memory| memory.streams().pooled(Priority::Default).unwrap());
            let [source, target] = [(&memories[0], &from), (&memories[1], &to)]
                .map(|(memory, stream)| memory.allocate(Request::new(BYTES, stream.id())).unwrap().address);
            there.memset(target, 9, BYTES, to.id()).unwrap();
            for value in 1..4 {
                here.memset(source, value, BYTES, from.id()).unwrap();
                from.copy_to_peer(source, &to, target, BYTES / 2).unwrap();
                here.memset(source, 8, BYTES, from.id()).unwrap();
                // And back, to another place.
                to.copy_to_peer(target, &from, source + BYTES / 2, 8).unwrap();
                there.memset(target, 7, 4, to.id()).unwrap();
                to.synchronize().unwrap();
                assert_eq!(read(&**there, target, 8), [7, 7, 7, 7, value, value, value, value], "{policy}");
                assert_eq!(read(&**there, target + BYTES / 2 - 2, 4), [value, value, 9, 9], "{policy}");
                from.synchronize().unwrap();
                // The write on the other device came after the copy.
                let back = [&[8; 2][..], &[value; 8], &[8; 2]].concat();
                assert_eq!(read(&**here, source + BYTES / 2 - 2, 12), back, "{policy}");
            }
            from.copy_to_peer(source, &to, target, 0).unwrap();
            for (memory, address) in memories.iter().zip([source, target]) {
                memory.free(address).unwrap();
            }
            drivers.iter().for_each(|driver| driver.synchronize().unwrap());
        }
    }
}

#[test]
fn a_copy_to_a_peer_that_no_stream_waits_for_is_a_race() {
    let drivers = devices();
    let [from, to] = drivers.each_ref().map(|driver| Streams::new(Arc::clone(driver) as _).null());
    let [source, target] = drivers.each_ref().map(|driver| driver.malloc(64).unwrap());
    let side = drivers.each_ref().map(|driver| driver.create_stream(Priority::Default).unwrap());
    drivers[0].memset(source, 1, 64, from.id()).unwrap();
    from.copy_to_peer(source, &to, target, 64).unwrap();
    let read = |address| SimKernel::new("read", side[1]).reads(address, 64);
    assert!(drivers[1].launch(read(target)).is_err(), "it is not there yet");
    let late = drivers[0].memset(source, 2, 64, side[0]);
    assert!(late.is_err(), "it is not read yet");
}
