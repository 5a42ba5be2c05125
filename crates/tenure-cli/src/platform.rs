//! The devices that the program works with.

use std::sync::{Arc, LazyLock};

use clap::Args;
use tenure::core::Device;
use tenure::device::Driver;
use tenure::device::sim::SimConfig;
use tenure_device::memory::{self, DeviceMemory, MemoryConfig, MemoryError};
use tenure_device::sim::SimPlatform;
use tenure_device::{Platform, cuda};

use crate::values::DriverKind;

/// The device that a command computes on.
#[derive(Args)]
pub(crate) struct DeviceArgs {
    /// The device to compute on: cpu, cuda, or cuda:N
    #[arg(long, default_value_t = Device::CPU, value_name = "DEVICE")]
    pub(crate) device: Device,
    /// The driver; simulated devices are for tests
    #[arg(long, value_enum, default_value_t = DriverKind::Cuda, hide = true)]
    pub(crate) driver: DriverKind,
}

impl DeviceArgs {
    /// Opens the device.
    ///
    /// # Errors
    /// The device does not exist or failed; the error is worded for users of the program.
    pub(crate) fn open(&self) -> anyhow::Result<()> {
        let Self { device, driver } = self;
        if device.is_cpu() {
            return Ok(());
        }
        if matches!(driver, DriverKind::Sim) {
            simulate(&[device.index()])?;
        }
        memory(&format!("--device {device}"), *device).map(|_| ())
    }
}

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
/// The device does not exist or failed; the error is worded for users of the program.
pub(crate) fn memory(option: &str, device: Device) -> anyhow::Result<&'static DeviceMemory> {
    memory::device(device.index()).map_err(|error| match error {
        MemoryError::Driver(error) => anyhow::anyhow!("{option}: {}", error.error.kind),
        error => anyhow::anyhow!("{option}: {error}"),
    })
}

/// Opens a device.
///
/// # Errors
/// The device does not exist or failed; the error is worded for users of the program.
pub(crate) fn device(driver: DriverKind, device: u8) -> anyhow::Result<Arc<dyn Driver>> {
    let platform = platform(driver);
    let count = platform.device_count().map_err(|error| anyhow::anyhow!(error.kind))?;
    anyhow::ensure!(
        u32::from(device) < count,
        "device {device} does not exist: `tenure devices` lists those that do, numbered from 0"
    );
    platform.driver(device).map_err(|error| anyhow::anyhow!("device {device}: {}", error.kind))
}
