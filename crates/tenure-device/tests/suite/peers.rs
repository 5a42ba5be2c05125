//! Memory that another device may reach.

use std::sync::Arc;

use tenure_alloc::Request;
use tenure_core::{Device, StreamId};
use tenure_device::memory::{DeviceMemory, MemoryConfig, MemoryError};
use tenure_device::sim::{Failure, SimConfig, SimDriver, SimPlatform};
use tenure_device::{Access, Call, Driver, ErrorKind};

use crate::common::{kind, map_anywhere};

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
    let reached = |addresses: [u64; 2]| addresses.map(|at| driver.lets(OTHER, Access::ReadWrite, at, 2 * MIB));
    let before = take();
    assert_eq!(reached(before), [false, false]);
    driver.enable_peer(OTHER).unwrap();
    assert_eq!((reached(before), reached(take())), ([true, true], [true, true]));
    let [segment, mapping] = before;
    driver.set_access(mapping, 2 * MIB, Access::Read).unwrap();
    assert_eq!([Access::Read, Access::ReadWrite].map(|access| driver.lets(OTHER, access, mapping, MIB)), [true, false]);
    driver.unmap(mapping, 2 * MIB).unwrap();
    driver.free(segment).unwrap();
    assert_eq!(reached(before), [false, false]);
    assert!(!driver.lets(2, Access::Read, segment, 1), "another device was not let");
}

#[test]
fn one_direction_is_not_the_other() {
    let [driver, other] = devices();
    driver.enable_peer(OTHER).unwrap();
    driver.enable_peer(OTHER).unwrap();
    let address = other.malloc(MIB).unwrap();
    assert!(!other.lets(0, Access::Read, address, MIB));
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
            |block: &tenure_alloc::Block| driver.lets(OTHER, Access::ReadWrite, block.address, block.bytes);
        assert!(!early.iter().any(is_reached), "{policy}: a failed call changed nothing");
        memory.enable_peer(Device::cuda(OTHER)).unwrap();
        assert!(early.iter().chain(&alloc()).all(is_reached), "{policy}");
    }
}
