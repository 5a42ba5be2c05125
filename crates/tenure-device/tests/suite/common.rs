//! Helpers that the tests share: devices to test on, and a mapped chunk.
#![expect(clippy::disallowed_methods, reason = "polls a condition that no event tells of")]

use std::env;
use std::fs::File;
use std::ops::Deref;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tenure_alloc::{Address, ChunkId};
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_device::{AccessMode, DeviceProcess, Driver, ErrorKind, Platform, cuda};

/// A device under test.
pub(crate) struct Tested {
    driver: Arc<dyn Driver>,
    /// Held while a real device is used, so that no other test, in any process, changes its free memory.
    _alone: Option<File>,
}

impl Tested {
    /// Returns the driver, for objects that keep one. Drop them before this.
    pub(crate) fn shared(&self) -> Arc<dyn Driver> {
        Arc::clone(&self.driver)
    }
}

impl Deref for Tested {
    type Target = dyn Driver;

    fn deref(&self) -> &Self::Target {
        &*self.driver
    }
}

/// Returns each kind of device, one after another: simulated ones, and the first NVIDIA one if there is any. The
/// environment variable `TENURE_TEST_DRIVER` (`sim`, `cuda`, `all`) chooses among them; with `cuda` there must be one.
pub(crate) fn drivers() -> impl Iterator<Item = Tested> {
    let chosen = env::var("TENURE_TEST_DRIVER").unwrap_or_else(|_| "all".to_owned());
    let seeds = if chosen == "cuda" { 0..0 } else { 0..8 };
    let sims = seeds.map(|seed| Arc::new(SimDriver::new(SimConfig { seed, ..SimConfig::default() })));
    let has_cuda = chosen == "cuda" || chosen == "all" && cuda::platform().device_count().is_ok();
    let cuda = has_cuda.then_some(()).into_iter().map(|()| {
        let alone = File::create(env::temp_dir().join("tenure-cuda-tests.lock")).unwrap();
        alone.lock().unwrap();
        Tested { driver: cuda::platform().driver(0).unwrap(), _alone: Some(alone) }
    });
    sims.map(|driver| Tested { driver, _alone: None }).chain(cuda)
}

/// The granularity of the small device, in bytes.
pub(crate) const GRANULE: u64 = 64 << 10;

/// Creates a simulated device with room for 64 granules.
pub(crate) fn sim(seed: u64) -> Arc<SimDriver> {
    let config = SimConfig { capacity_bytes: 64 * GRANULE, granularity_bytes: GRANULE, seed, ..SimConfig::default() };
    Arc::new(SimDriver::new(config))
}

/// Waits until `condition` holds. The deadline keeps a failing test from waiting for ever.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < deadline, "not in two minutes: {what}");
        thread::sleep(Duration::from_micros(100));
    }
}

/// Creates a chunk of `bytes` bytes, mapped and accessible at an address of its own.
pub(crate) fn mapped_chunk(driver: &dyn Driver, bytes: u64) -> (Address, ChunkId) {
    let chunk = driver.create(bytes).unwrap();
    (map_anywhere(driver, chunk, bytes), chunk)
}

/// Maps a chunk of `bytes` bytes at an address reserved for it, makes it accessible, and returns the address.
pub(crate) fn map_anywhere(driver: &dyn Driver, chunk: ChunkId, bytes: u64) -> Address {
    let address = driver.reserve(bytes).unwrap();
    driver.map(address, chunk).unwrap();
    driver.set_access(address, bytes, AccessMode::ReadWrite).unwrap();
    address
}

/// Undoes [`map_anywhere`].
pub(crate) fn unmap_again(driver: &dyn Driver, address: Address, bytes: u64) {
    driver.unmap(address, bytes).unwrap();
    driver.unreserve(address, bytes).unwrap();
}

/// Reads `count` bytes at `address`, after everything on the null stream.
pub(crate) fn read(driver: &dyn Driver, address: Address, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    driver.copy_from_device(&mut bytes, address, tenure_core::StreamId::NULL).unwrap();
    bytes
}

/// Returns the reason of a failed call.
pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T, tenure_device::CallError>) -> ErrorKind {
    result.unwrap_err().kind
}

/// Returns a list of processes that hold memory of a device: this one alone.
pub(crate) fn this_process(bytes: Option<u64>) -> Option<Vec<DeviceProcess>> {
    Some(vec![DeviceProcess { pid: std::process::id(), bytes }])
}
