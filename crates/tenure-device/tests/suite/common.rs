//! What the suites share: devices to test on, and a chunk to work with.

use std::sync::Arc;

use tenure_alloc::{Address, ChunkId};
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_device::{Access, Driver, ErrorKind};

/// One granule of the small device.
pub(crate) const GRANULE: u64 = 64 << 10;

/// A simulated device with room for 64 granules.
pub(crate) fn sim(seed: u64) -> Arc<SimDriver> {
    let config = SimConfig { capacity_bytes: 64 * GRANULE, granularity_bytes: GRANULE, seed, ..SimConfig::default() };
    Arc::new(SimDriver::new(config))
}

/// Each kind of device, one after another.
pub(crate) fn drivers() -> Vec<Arc<dyn Driver>> {
    (0..8).map(|seed| Arc::new(SimDriver::new(SimConfig { seed, ..SimConfig::default() })) as Arc<dyn Driver>).collect()
}

/// A chunk of `bytes` bytes, mapped and accessible at an address of its own.
pub(crate) fn mapped_chunk(driver: &dyn Driver, bytes: u64) -> (Address, ChunkId) {
    let chunk = driver.create(bytes).unwrap();
    (map_anywhere(driver, chunk, bytes), chunk)
}

/// The address, reserved for it, at which a chunk of `bytes` bytes is mapped and accessible.
pub(crate) fn map_anywhere(driver: &dyn Driver, chunk: ChunkId, bytes: u64) -> Address {
    let address = driver.reserve(bytes).unwrap();
    driver.map(address, chunk).unwrap();
    driver.set_access(address, bytes, Access::ReadWrite).unwrap();
    address
}

/// Gives back what [`map_anywhere`] took.
pub(crate) fn unmap_again(driver: &dyn Driver, address: Address, bytes: u64) {
    driver.unmap(address, bytes).unwrap();
    driver.unreserve(address, bytes).unwrap();
}

/// `count` bytes at `address`, after everything on the null stream.
pub(crate) fn read(driver: &dyn Driver, address: Address, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    driver.copy_from_device(&mut bytes, address, tenure_core::StreamId::NULL).unwrap();
    bytes
}

/// Why a call failed.
pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T, tenure_device::CallError>) -> ErrorKind {
    result.unwrap_err().kind
}
