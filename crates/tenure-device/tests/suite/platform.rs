//! Platforms of simulated devices.

use std::sync::Arc;

use tenure_core::Device;
use tenure_device::sim::{SimConfig, SimPlatform};
use tenure_device::{ErrorKind, LinkKind, Platform};

use crate::common::kind;

fn platform(count: usize) -> SimPlatform {
    SimPlatform::new(vec![SimConfig::default(); count])
}

#[test]
fn devices_are_numbered_from_zero() {
    let platform = platform(3);
    assert_eq!((platform.device_count(), platform.driver_version()), (Ok(3), Ok(13_000)));
    for device in 0..3 {
        assert_eq!(platform.driver(device).unwrap().device(), Device::cuda(device));
    }
    let error = platform.driver(3).err().unwrap();
    assert_eq!((error.kind.code(), error.kind.loses_context()), (101, false));
}

#[test]
fn a_device_has_one_driver_for_all_callers() {
    let platform = platform(2);
    let driver = platform.driver(1).unwrap();
    let sim = platform.sim(1).unwrap();
    driver.malloc(1000).unwrap();
    assert_eq!(sim.counters().malloc, 1);
    assert!(Arc::ptr_eq(sim, platform.sim(1).unwrap()));
    assert_eq!(platform.sim(0).unwrap().counters().malloc, 0);
}

#[test]
fn properties_tell_devices_apart() {
    let small = SimConfig { capacity_bytes: 1 << 30, ..SimConfig::default() };
    let platform = SimPlatform::new(vec![SimConfig::default(), small]);
    let [first, second] = [0, 1].map(|device| platform.properties(device).unwrap());
    assert_eq!((first.total_bytes, second.total_bytes), (143_771 << 20, 1 << 30));
    assert_ne!(first.uuid, second.uuid);
    assert_ne!(first.pci_address, second.pci_address);
    assert_eq!(platform.properties(0).unwrap(), first);
}

#[test]
fn devices_reach_each_other_as_was_said() {
    let platform = platform(3).with_link(2, 0, Some(LinkKind::System), false).with_link(1, 2, None, true);
    let ways = |a, b| (platform.link(a, b), platform.can_access_peer(a, b).unwrap());
    for (a, b, expected) in [
        (0, 1, (Some(LinkKind::NvLink { count: 18 }), true)),
        (0, 2, (Some(LinkKind::System), false)),
        (1, 2, (None, true)),
    ] {
        assert_eq!((ways(a, b), ways(b, a)), (expected, expected));
    }
    assert_eq!(ways(1, 1), (None, false), "no device is its own peer");
    platform.can_access_peer(0, 3).unwrap_err();
}

#[test]
fn a_platform_without_devices_says_so() {
    assert_eq!(kind(platform(0).device_count()), ErrorKind::NoDevice);
    assert_eq!(platform(0).driver_version(), Ok(13_000));
}

#[test]
fn counting_can_be_made_to_fail_and_then_no_device_is_there() {
    let old = ErrorKind::DriverTooOld { serves: 11_040, needed: 12_000 };
    for failure in [old.clone(), ErrorKind::NoDriver { reason: "no libcuda.so.1".into() }] {
        let platform = platform(1).with_count(Err(failure.clone()));
        assert_eq!(kind(platform.device_count()), failure);
        assert_eq!(kind(platform.properties(0)), failure);
        assert_eq!(platform.driver(0).err().unwrap().kind, failure);
    }
    assert_eq!(platform(1).with_count(Err(old)).driver_version(), Ok(11_040));
}

#[test]
fn devices_beyond_the_count_are_not_there() {
    let platform = platform(2).with_count(Ok(1));
    platform.driver(0).unwrap();
    assert!(platform.driver(1).is_err());
    assert_eq!(self::platform(1).with_count(Ok(300)).device_count(), Ok(300));
}
