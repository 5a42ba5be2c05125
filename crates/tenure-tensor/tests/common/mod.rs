//! The CUDA device of tests: a simulated one, unless `TENURE_TEST_DRIVER` is `cuda`.
#![allow(dead_code, reason = "no test needs all of it")]

use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tenure_device::memory::{self, MemoryConfig};
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_tensor::Device;

static IN_USE: RwLock<()> = RwLock::new(());

pub(crate) fn cuda() -> Device {
    simulated();
    Device::cuda(0)
}

pub(crate) fn simulated() -> Option<&'static SimDriver> {
    static DRIVER: OnceLock<Option<Arc<SimDriver>>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        if std::env::var("TENURE_TEST_DRIVER").is_ok_and(|driver| driver == "cuda") {
            return None;
        }
        let driver = Arc::new(SimDriver::new(SimConfig::default()));
        memory::install(driver.clone(), MemoryConfig::default()).unwrap();
        Some(driver)
    });
    driver.as_deref()
}

/// Locks the device for shared use.
pub(crate) fn in_use() -> RwLockReadGuard<'static, ()> {
    IN_USE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the device for one test alone: one that counts operations, or makes the device find errors, which its next use
/// would report.
pub(crate) fn in_use_alone() -> RwLockWriteGuard<'static, ()> {
    IN_USE.write().unwrap_or_else(PoisonError::into_inner)
}
