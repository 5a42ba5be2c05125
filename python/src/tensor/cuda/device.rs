//! CUDA devices: their number, their properties, and each thread's current one.

use std::sync::OnceLock;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tenure::device::memory::MemoryConfig;
use tenure::device::sim::{SimConfig, SimPlatform};
use tenure::device::{Platform, cuda};
use tenure_device::{functions, memory};

use super::opened;
use crate::errors::{complaint, exception};

/// The simulated devices that the process has in place of CUDA's.
static SIMULATED: OnceLock<SimPlatform> = OnceLock::new();

fn platform() -> &'static dyn Platform {
    match SIMULATED.get() {
        Some(simulated) => simulated,
        None => cuda::platform(),
    }
}

/// Gives the process simulated devices in place of CUDA's, for tests. `seed` chooses the order in which streams run.
#[pyfunction]
pub(crate) fn simulate_devices(count: u8, seed: u64) -> PyResult<()> {
    let config = SimConfig { seed, ..SimConfig::default() };
    let simulated = SimPlatform::new(vec![config; count.into()]);
    if SIMULATED.set(simulated).is_err() {
        return Err(complaint("the process has simulated devices already".to_owned()));
    }
    for device in 0..count {
        let driver = functions::driver(platform(), device).map_err(exception)?;
        memory::install(driver, MemoryConfig::default()).map_err(exception)?;
    }
    Ok(())
}

/// Returns the number of devices: 0 also where the driver does not start.
#[pyfunction]
pub(crate) fn device_count(py: Python<'_>) -> u8 {
    py.detach(|| functions::device_count(platform())).unwrap_or(0)
}

/// Returns the number of the thread's current device.
#[pyfunction]
pub(crate) fn current_device() -> u8 {
    functions::current_device()
}

/// Makes a device the thread's current one.
#[pyfunction]
pub(crate) fn set_device(device: u8) {
    functions::set_device(device);
}

/// Raises an error if there is no such device.
#[pyfunction]
pub(crate) fn check_cuda_device(py: Python<'_>, device: u8) -> PyResult<()> {
    py.detach(|| functions::properties(platform(), device)).map(drop).map_err(exception)
}

/// Returns the properties of a device, by PyTorch's names.
#[pyfunction]
pub(crate) fn cuda_properties(py: Python<'_>, device: u8) -> PyResult<Bound<'_, PyDict>> {
    let properties = py.detach(|| functions::properties(platform(), device)).map_err(exception)?;
    let (major, minor) = properties.compute_capability;
    let fields = PyDict::new(py);
    fields.set_item("name", properties.name)?;
    fields.set_item("major", major)?;
    fields.set_item("minor", minor)?;
    fields.set_item("total_memory", properties.total_bytes)?;
    fields.set_item("multi_processor_count", properties.multiprocessors)?;
    fields.set_item("L2_cache_size", properties.l2_bytes)?;
    fields.set_item("uuid", properties.uuid)?;
    fields.set_item("pci_address", properties.pci_address)?;
    Ok(fields)
}

/// Returns whether `device` can reach the memory of `peer` in place.
#[pyfunction]
pub(crate) fn can_access_peer(py: Python<'_>, device: u8, peer: u8) -> PyResult<bool> {
    py.detach(|| functions::can_access_peer(platform(), device, peer)).map_err(exception)
}

/// Returns a device's free and total memory, in bytes.
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(crate) fn cuda_memory_info(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<(u64, u64)> {
    let memory = opened(py, device)?;
    let info = py.detach(|| memory.driver().memory_info());
    info.map(|info| (info.free, info.total)).map_err(|error| exception(tenure::device::DriverError::from(error)))
}

/// Waits until everything put on a device has completed.
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(crate) fn synchronize_device(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let memory = opened(py, device)?;
    let done = py.detach(|| memory.driver().synchronize());
    done.map_err(|error| exception(tenure::device::DriverError::from(error)))
}
