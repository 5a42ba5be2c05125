//! Registered host memory, where the simulated device is stricter than a real one.

use std::sync::Arc;

use tenure_core::StreamId;
use tenure_device::sim::{SimConfig, SimDriver, SimPlatform};
use tenure_device::{AccessMode, CallError, CopyCalls, Driver, ErrorKind, MemoryCalls, Priority, StreamCalls};

use crate::common::{kind, sim};

/// Registers `memory`, which the caller keeps for as long as the driver.
fn register(driver: &SimDriver, memory: &mut [u8], access: AccessMode) -> Result<(), CallError> {
    // SAFETY: the tests keep the memory, and the simulated device only records it.
    unsafe { driver.register_host(memory.as_mut_ptr(), memory.len() as u64, access) }
}

#[test]
fn host_memory_is_registered_once_and_unregistered_once() {
    let driver = sim(0);
    let mut memory = [0; 64];
    let start = memory.as_ptr() as u64;
    register(&driver, &mut memory[16..48], AccessMode::ReadWrite).unwrap();
    for (from, to) in [(16, 48), (0, 17), (47, 64), (0, 64), (20, 30)] {
        let error = kind(register(&driver, &mut memory[from..to], AccessMode::ReadWrite));
        let range = start + from as u64..start + to as u64;
        let existing = start + 16..start + 48;
        assert_eq!((error.code(), error), (712, ErrorKind::HostRegistered { range, existing }));
    }
    register(&driver, &mut memory[..16], AccessMode::Read).unwrap();
    register(&driver, &mut memory[48..], AccessMode::ReadWrite).unwrap();
    let address = memory[16..].as_mut_ptr();
    driver.unregister_host(address).unwrap();
    let error = kind(driver.unregister_host(address));
    assert_eq!((error.code(), error), (713, ErrorKind::HostNotRegistered(start + 16)));
    let inside = memory[8..].as_mut_ptr();
    assert_eq!(kind(driver.unregister_host(inside)), ErrorKind::HostNotRegistered(start + 8));
}

#[test]
fn no_host_memory_cannot_be_registered() {
    let driver = sim(0);
    let empty = register(&driver, &mut [], AccessMode::ReadWrite);
    assert!(matches!(kind(empty), ErrorKind::Misaligned { what: "size", .. }));
    // SAFETY: nothing is read or written through the address.
    let null = unsafe { driver.register_host(std::ptr::null_mut(), 8, AccessMode::ReadWrite) };
    assert!(matches!(kind(null), ErrorKind::Misaligned { what: "address", .. }));
}

#[test]
fn host_memory_is_unregistered_when_the_host_has_seen_its_copies_pass() {
    for seed in 0..8 {
        let driver = sim(seed);
        let mut memory = [0; 64];
        let address = driver.malloc(64).unwrap();
        let stream = driver.create_stream(Priority::Default).unwrap();
        register(&driver, &mut memory, AccessMode::ReadWrite).unwrap();
        let start = memory.as_mut_ptr();
        for finished in [true, false] {
            // SAFETY: the array outlives the device, and nothing else touches it.
            unsafe { driver.copy_to_device_async(address, start.add(32), 8, stream).unwrap() };
            if finished {
                driver.synchronize_stream(stream).unwrap();
                driver.unregister_host(start).unwrap();
                register(&driver, &mut memory, AccessMode::ReadWrite).unwrap();
            }
        }
        driver.run().unwrap();
        let error = kind(driver.unregister_host(start));
        let all = start as u64..start as u64 + 64;
        assert!(matches!(&error, ErrorKind::UnregisteredInUse { range, .. } if *range == all), "{error}");
        assert!(driver.fault().is_some());
    }
}

#[test]
fn copies_of_other_host_memory_do_not_hold_a_registration() {
    let driver = sim(0);
    let mut memory = [0; 64];
    let address = driver.malloc(64).unwrap();
    register(&driver, &mut memory[16..32], AccessMode::ReadWrite).unwrap();
    for offset in [0, 32] {
        // SAFETY: the array outlives the device, and nothing else touches it.
        unsafe { driver.copy_from_device_async(memory[offset..].as_mut_ptr(), address, 16, StreamId::NULL).unwrap() };
    }
    driver.unregister_host(memory[16..].as_mut_ptr()).unwrap();
}

#[test]
fn nothing_is_copied_into_host_memory_that_was_registered_for_reading() {
    let driver = sim(0);
    let mut memory = [0; 64];
    let address = driver.malloc(64).unwrap();
    register(&driver, &mut memory, AccessMode::Read).unwrap();
    let start = memory.as_mut_ptr();
    // SAFETY: the array outlives the device, and nothing else touches it.
    unsafe { driver.copy_to_device_async(address, start, 64, StreamId::NULL).unwrap() };
    driver.synchronize().unwrap();
    // SAFETY: as above.
    let error = kind(unsafe { driver.copy_from_device_async(start, address, 64, StreamId::NULL) });
    assert!(matches!(error, ErrorKind::ReadOnly { .. }), "{error}");
}

#[test]
fn host_memory_that_the_device_reads_in_place_is_not_unregistered_meanwhile() {
    let driver = sim(0);
    let mut memory = [3; 64];
    let address = driver.malloc(64).unwrap();
    let stream = driver.create_stream(Priority::Default).unwrap();
    register(&driver, &mut memory, AccessMode::ReadWrite).unwrap();
    let start = memory.as_mut_ptr();
    let free = driver.memory_info().unwrap().free;
    let there = driver.host_on_device(start).unwrap();
    assert_eq!(driver.memory_info().unwrap().free, free, "it is on no account of the device");
    driver.copy_on_device(address, there, 64, stream).unwrap();
    driver.synchronize_stream(stream).unwrap();
    driver.unregister_host(start).unwrap();
    register(&driver, &mut memory, AccessMode::ReadWrite).unwrap();
    let again = driver.host_on_device(start).unwrap();
    driver.copy_on_device(address, again, 64, stream).unwrap();
    let error = kind(driver.unregister_host(start));
    assert!(matches!(error, ErrorKind::UnregisteredInUse { .. }), "{error}");
}

#[test]
fn all_devices_of_a_platform_use_memory_that_one_registers() {
    let platform = SimPlatform::new(vec![SimConfig::default(); 2]);
    let [first, second] = [0, 1].map(|device| Arc::clone(platform.sim(device).unwrap()));
    let mut memory = [3; 64];
    let mut back = [0; 64];
    let address = second.malloc(64).unwrap();
    let start = memory.as_mut_ptr();
    for reads_in_place in [true, false] {
        register(&first, &mut memory, AccessMode::Read).unwrap();
        let again = kind(register(&second, &mut memory, AccessMode::Read));
        assert!(matches!(again, ErrorKind::HostRegistered { .. }), "{again}");
        let there = second.host_on_device(start).unwrap();
        match reads_in_place {
            true => second.copy_on_device(address, there, 64, StreamId::NULL).unwrap(),
            // SAFETY: the array outlives the devices, and nothing writes it.
            false => unsafe { second.copy_to_device_async(address, start, 64, StreamId::NULL).unwrap() },
        }
        second.copy_from_device(&mut back, address, StreamId::NULL).unwrap();
        assert_eq!(back, [3; 64]);
        first.unregister_host(start).unwrap();
        assert_eq!(kind(second.host_on_device(start)), ErrorKind::HostNotRegistered(start as u64));
    }
    register(&first, &mut memory, AccessMode::Read).unwrap();
    // SAFETY: the array outlives the devices, and nothing writes it.
    unsafe { second.copy_to_device_async(address, start, 64, StreamId::NULL).unwrap() };
    let error = kind(first.unregister_host(start));
    assert!(matches!(error, ErrorKind::UnregisteredInUse { .. }), "{error}");
}
