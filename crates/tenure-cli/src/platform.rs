//! The devices that the program works with.

use std::sync::{Arc, LazyLock};

use tenure::core::Device;
use tenure::device::Driver;
use tenure::device::sim::SimConfig;
use tenure_device::memory::{self, DeviceMemory, MemoryConfig, MemoryError};
use tenure_device::sim::SimPlatform;
use tenure_device::{Platform, cuda};

use crate::values::DriverKind;

/// Returns the platform of a driver.
pub(crate) fn platform(driver: DriverKind) -> &'static dyn Platform {
    static SIMULATED: LazyLock<SimPlatform> = LazyLock::new(|| SimPlatform::new(vec![SimConfig::default()]));
    match driver {
        DriverKind::Sim => &*SIMULATED,
        DriverKind::Cuda => cuda::platform(),
    }
}

/// Makes simulated devices with these numbers the process's devices.
///
/// # Errors
/// One of the numbers already has a device.
pub(crate) fn simulate(numbers: &[u8]) -> anyhow::Result<()> {
    let count = numbers.last().map_or(0, |last| usize::from(*last) + 1);
    let platform = SimPlatform::new(vec![SimConfig::default(); count]);
    for number in numbers {
        memory::install(platform.driver(*number)?, MemoryConfig::default())?;
    }
    Ok(())
}

/// Returns the memory of the CUDA device that `option` names, such as `--device cuda`.
///
/// # Errors
/// There is no such device; the error is worded for users of the program.
pub(crate) fn memory(option: &str, device: Device) -> anyhow::Result<&'static DeviceMemory> {
    memory::device(device.index()).map_err(|error| match error {
        MemoryError::Driver(error) => anyhow::anyhow!("{option}: {}", error.error.kind),
        error => anyhow::anyhow!("{option}: {error}"),
    })
}

/// Opens a device.
///
/// # Errors
/// There is none; the error is worded for users of the program.
pub(crate) fn device(driver: DriverKind, device: u8) -> anyhow::Result<Arc<dyn Driver>> {
    let platform = platform(driver);
    let count = platform.device_count().map_err(|error| anyhow::anyhow!(error.kind))?;
    anyhow::ensure!(
        u32::from(device) < count,
        "there is no device {device}: `tenure devices` lists what there is, numbered from 0"
    );
    platform.driver(device).map_err(|error| anyhow::anyhow!("device {device}: {}", error.kind))
}
