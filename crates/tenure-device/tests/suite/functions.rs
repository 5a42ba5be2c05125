//! Devices by their index: their number, their properties, and the current one.

use std::panic::catch_unwind;
use std::thread;

use tenure_core::Device;
use tenure_device::functions::{
    DeviceGuard, can_access_peer, current_device, device_count, device_count_ensure_non_zero, driver, exchange_device,
    memory_info, properties, set_device, synchronize,
};
use tenure_device::sim::{SimConfig, SimPlatform};
use tenure_device::{DriverError, ErrorKind, cuda};

fn platform(devices: usize) -> SimPlatform {
    SimPlatform::new(vec![SimConfig::default(); devices])
}

/// Returns a platform whose count of devices is `count`.
fn counting(count: Result<u32, ErrorKind>) -> SimPlatform {
    platform(1).with_count(count)
}

fn why<T>(result: Result<T, DriverError>) -> ErrorKind {
    let error = result.err().unwrap();
    assert_eq!(error.at.file(), file!(), "an error names the place of the call");
    error.error.kind
}

fn no_driver() -> ErrorKind {
    ErrorKind::NoDriver { reason: "libcuda.so.1 was not found".into() }
}

fn unknown() -> ErrorKind {
    let name = "CUDA_ERROR_UNKNOWN".into();
    let description = "unknown error".into();
    ErrorKind::Device { code: 999, name, description, in_flight: Vec::new() }
}

#[test]
fn devices_are_counted() {
    for count in [1, 2, 8] {
        assert_eq!(device_count(&platform(count)).unwrap(), count as u8);
        assert_eq!(device_count_ensure_non_zero(&platform(count)).unwrap(), count as u8);
    }
    assert_eq!(device_count(&counting(Ok(128))).unwrap(), 128);
}

#[test]
fn the_devices_of_this_machine_are_counted_be_there_any_or_none() {
    let platform = cuda::platform();
    let count = device_count(platform).unwrap();
    for device in 0..count {
        assert!(properties(platform, device).unwrap().total_bytes > 0);
    }
    if count == 0 {
        let none = why(device_count_ensure_non_zero(platform));
        assert!(matches!(none, ErrorKind::NoDriver { .. } | ErrorKind::NoDevice), "{none}");
    } else {
        assert_eq!(why(properties(platform, count)), ErrorKind::NoSuchDevice { device: count, count });
    }
}

#[test]
fn no_driver_and_no_device_are_zero_devices() {
    for nothing in [Ok(0), Err(ErrorKind::NoDevice), Err(no_driver())] {
        assert_eq!(device_count(&counting(nothing)).unwrap(), 0);
    }
}

#[test]
fn a_call_that_needs_a_device_says_whether_driver_or_device_is_missing() {
    for nothing in [Ok(0), Err(ErrorKind::NoDevice)] {
        assert_eq!(why(device_count_ensure_non_zero(&counting(nothing))), ErrorKind::NoDevice);
    }
    assert_eq!(why(device_count_ensure_non_zero(&counting(Err(no_driver())))), no_driver());
}

#[test]
fn a_driver_that_is_too_old_asks_for_an_update() {
    let old = ErrorKind::DriverTooOld { serves: 11_040, needed: 13_000 };
    let platform = counting(Err(old.clone()));
    assert_eq!(why(device_count(&platform)), old);
    let text = device_count_ensure_non_zero(&platform).unwrap_err().to_string();
    assert!(text.contains("serves CUDA 11.4, and 13.0 is needed: update the driver"), "{text}");
}

#[test]
fn a_driver_that_does_not_start_says_so() {
    let failed = ErrorKind::StartFailed { reason: "CUDA_ERROR_NOT_INITIALIZED".into() };
    assert_eq!(why(device_count(&counting(Err(failed.clone())))), failed);
}

#[test]
fn an_unknown_error_is_said_to_be_one_and_says_what_to_check() {
    let error = device_count(&counting(Err(unknown()))).unwrap_err();
    assert_eq!(error.error.kind, ErrorKind::CountFailed(Box::new(unknown())));
    assert_eq!(error.error.kind.code(), 999);
    let text = error.to_string();
    for part in ["cuDeviceGetCount", "999", "unknown error", "CUDA_ERROR_UNKNOWN", "CUDA_VISIBLE_DEVICES", file!()] {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

#[test]
fn more_devices_than_an_index_holds_ask_for_a_report() {
    for count in [129, 256, u32::MAX] {
        let error = device_count(&counting(Ok(count))).unwrap_err();
        assert_eq!(error.error.kind, ErrorKind::TooManyDevices(count));
        assert!(error.to_string().contains("please report this"), "{error}");
    }
}

#[test]
fn a_device_is_known_by_its_index() {
    let small = SimConfig { capacity_bytes: 1 << 30, ..SimConfig::default() };
    let platform = SimPlatform::new(vec![SimConfig::default(), small]);
    assert_eq!(properties(&platform, 1).unwrap().total_bytes, 1 << 30);
    assert_eq!(memory_info(&platform, 1).unwrap().total, 1 << 30);
    assert_eq!(driver(&platform, 1).unwrap().device(), Device::cuda(1));
    synchronize(&platform, 1).unwrap();
}

#[test]
fn an_index_out_of_range_says_what_the_range_is() {
    let platform = platform(2);
    let outside = ErrorKind::NoSuchDevice { device: 2, count: 2 };
    assert_eq!(why(properties(&platform, 2)), outside);
    assert_eq!(why(memory_info(&platform, 2)), outside);
    assert_eq!(why(synchronize(&platform, 2)), outside);
    assert_eq!(why(driver(&platform, 2)), outside);
    assert_eq!(why(can_access_peer(&platform, 0, 2)), outside);
    assert_eq!(why(can_access_peer(&platform, 2, 0)), outside);
    assert_eq!(outside.to_string(), "device 2 does not exist: there are 2, numbered from 0");
    assert_eq!(why(driver(&counting(Err(no_driver())), 0)), no_driver());
}

#[test]
fn peer_access_is_a_matter_of_two_devices() {
    let platform = platform(3).with_link(0, 2, None, false);
    assert!(can_access_peer(&platform, 0, 1).unwrap());
    assert!(!can_access_peer(&platform, 2, 0).unwrap());
    assert_eq!(why(can_access_peer(&platform, 1, 1)), ErrorKind::PeerOfItself(1));
}

#[test]
fn the_current_device_is_of_one_thread() {
    set_device(3);
    assert_eq!(exchange_device(4), 3);
    thread::spawn(|| assert_eq!(current_device(), 0)).join().unwrap();
    assert_eq!(current_device(), 4);
}

#[test]
fn a_guard_restores_the_device_through_a_panic() {
    set_device(2);
    catch_unwind(|| {
        let _guard = DeviceGuard::new(7);
        assert_eq!(current_device(), 7);
        panic!("on purpose");
    })
    .unwrap_err();
    assert_eq!(current_device(), 2);
}
