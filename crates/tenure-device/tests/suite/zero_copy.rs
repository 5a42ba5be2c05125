//! Zero-copy memory: the device uses it in place, and it is reused once no stream needs it.

use std::sync::Arc;

use tenure_alloc::Address;
use tenure_core::{Device, Storage, StreamId};
use tenure_device::memory::{DeviceMemory, MemoryConfig};
use tenure_device::pinned::{PinnedConfig, PinnedPool};
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_device::zero_copy::{self, ZeroCopy, ZeroCopyError};
use tenure_device::{Driver, Priority, StreamCalls};

use crate::common::drivers;

const BYTES: usize = 1 << 20;

fn zero_copy(driver: Arc<dyn Driver>) -> ZeroCopy {
    let config = PinnedConfig::new(64 << 20);
    let pool = PinnedPool::new(Arc::clone(&driver), config);
    ZeroCopy::new(Box::leak(Box::new(DeviceMemory::new(driver, MemoryConfig::default()).unwrap())), pool)
}

fn address_of(storage: &Storage) -> Address {
    storage.lock().as_ptr().addr() as Address
}

#[test]
fn bytes_go_to_zero_copy_memory_and_back_in_the_order_of_a_stream() {
    for driver in drivers() {
        let memory = zero_copy(driver.shared());
        let stream = driver.create_stream(Priority::Default).unwrap();
        let block = driver.malloc(BYTES as u64).unwrap();
        driver.copy_to_device(block, &[7; BYTES], stream).unwrap();
        let storage = memory.allocate_copy(block, BYTES, stream).unwrap();
        let address = address_of(&storage);
        assert!(zero_copy::contains(address) && storage.device() == driver.device() && !storage.is_resizable());
        driver.memset(block, 0, BYTES as u64, stream).unwrap();
        assert!(memory.copy_to_device(address, block, stream).unwrap());
        let mut back = vec![0; BYTES];
        driver.copy_from_device(&mut back, block, stream).unwrap();
        assert!(back == [7; BYTES]);
        // The device uses it in place.
        driver.memset(address, 9, BYTES as u64 / 2, stream).unwrap();
        driver.copy_on_device(block, address, BYTES as u64, stream).unwrap();
        driver.copy_from_device(&mut back, block, stream).unwrap();
        assert!(back[..BYTES / 2] == [9; BYTES / 2] && back[BYTES / 2..] == [7; BYTES / 2]);

        assert_eq!((memory.bytes(), memory.take_peak_bytes()), (BYTES as u64, BYTES as u64));
        drop(storage);
        assert_eq!((memory.bytes(), memory.take_peak_bytes(), memory.take_peak_bytes()), (0, BYTES as u64, 0));
        assert!(!zero_copy::contains(address) && !zero_copy::record_stream(address, stream));
        assert!(!memory.copy_to_device(address, block, stream).unwrap());
        assert!(matches!(memory.allocate(1 << 30, stream), Err(ZeroCopyError::Pinned(_))));
        assert_eq!(memory.allocate(0, stream).unwrap().bytes(), 0);
        driver.free(block).unwrap();
    }
}

#[test]
fn memory_is_used_again_when_the_streams_of_a_dropped_storage_have_passed() {
    let driver = Arc::new(SimDriver::new(SimConfig::default()));
    let memory = zero_copy(driver.clone());
    let [home, other] = [0; 2].map(|_| driver.create_stream(Priority::Default).unwrap());
    driver.busy_until(home, 10).unwrap();
    driver.busy_until(other, 20).unwrap();
    let storage = memory.allocate(BYTES, home).unwrap();
    let address = address_of(&storage);
    assert!(zero_copy::record_stream(address, other));
    drop(storage);
    for time_us in [0, 10] {
        driver.set_time(time_us);
        assert_ne!(address_of(&memory.allocate(BYTES, StreamId::NULL).unwrap()), address, "at {time_us} µs");
    }
    driver.set_time(20);
    let held: Vec<_> = (0..2).map(|_| memory.allocate(BYTES, StreamId::NULL).unwrap()).collect();
    assert!(held.iter().any(|storage| address_of(storage) == address));
    assert_eq!(driver.counters().host_syncs, 0, "nothing waited");
}

#[test]
fn a_device_asks_the_function_that_was_set_last_for_memory() {
    let memory = zero_copy(Arc::new(SimDriver::new(SimConfig::default())));
    // A device that no other test uses.
    let device = Device::cuda(5);
    assert!(zero_copy::overflow(device, BYTES, StreamId::NULL).is_none());
    zero_copy::on_overflow(device, |_, _| None);
    zero_copy::on_overflow(device, move |bytes, stream| memory.allocate(bytes, stream).ok());
    assert_eq!(zero_copy::overflow(device, BYTES, StreamId::NULL).map(|storage| storage.bytes()), Some(BYTES));
}
