//! Which devices the program works with.

use std::sync::{Arc, LazyLock};

use tenure::core::Device;
use tenure::device::Driver;
use tenure::device::sim::SimConfig;
use tenure_device::memory::{self, DeviceMemory, MemoryConfig, MemoryError};
use tenure_device::sim::SimPlatform;
use tenure_device::{Platform, cuda};

use crate::args::DriverKind;

/// The devices of a driver.
pub(crate) fn platform(driver: DriverKind) -> &'static dyn Platform {
    static SIMULATED: LazyLock<SimPlatform> = LazyLock::new(|| SimPlatform::new(vec![SimConfig::default()]));
    match driver {
        DriverKind::Sim => &*SIMULATED,
        DriverKind::Cuda => cuda::platform(),
    }
}

/// Makes simulated devices the process's of these numbers.
///
/// # Errors
/// One of them is there already.
pub(crate) fn simulate(numbers: &[u8]) -> anyhow::Result<()> {
    let count = numbers.last().map_or(0, |last| usize::from(*last) + 1);
    let platform = SimPlatform::new(vec![SimConfig::default(); count]);
    for number in numbers {
        memory::install(platform.driver(*number)?, MemoryConfig::default())?;
    }
    Ok(())
}

/// The memory of a CUDA device that `option` asks for, such as `--device cuda`.
///
/// # Errors
/// There is no such device, in the words for those who use it.
pub(crate) fn memory(option: &str, device: Device) -> anyhow::Result<&'static DeviceMemory> {
    memory::device(device.index()).map_err(|error| match error {
        MemoryError::Driver(error) => anyhow::anyhow!("{option}: {}", error.error.kind),
        error => anyhow::anyhow!("{option}: {error}"),
    })
}

/// A device to work on.
///
/// # Errors
/// There is none, in the words for those who use it.
pub(crate) fn device(driver: DriverKind, device: u8) -> anyhow::Result<Arc<dyn Driver>> {
    let platform = platform(driver);
    let count = platform.device_count().map_err(|error| anyhow::anyhow!(error.kind))?;
    anyhow::ensure!(
        u32::from(device) < count,
        "there is no device {device}: `tenure devices` lists what there is, numbered from 0"
    );
    platform.driver(device).map_err(|error| anyhow::anyhow!("device {device}: {}", error.kind))
}
