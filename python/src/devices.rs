//! The list of a driver's devices, and drivers opened by name.

use std::sync::{Arc, LazyLock};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tenure::device::sim::{SimConfig, SimPlatform};
use tenure::device::{Driver, Platform, cuda};
use tenure::devices::Listing;

use crate::errors::device_complaint;
use crate::json;

/// Returns a driver's devices as JSON.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>, driver: &str) -> PyResult<String> {
    let driver = DriverKind::named(driver)?;
    json(&py.detach(|| match driver {
        DriverKind::Sim => Listing::new(driver.platform()),
        DriverKind::Cuda => Listing::cuda(),
    }))
}

/// The driver that devices come from.
#[derive(Clone, Copy)]
pub(crate) enum DriverKind {
    Sim,
    Cuda,
}

impl DriverKind {
    pub(crate) fn named(name: &str) -> PyResult<Self> {
        match name {
            "sim" => Ok(Self::Sim),
            "cuda" => Ok(Self::Cuda),
            _ => Err(PyValueError::new_err(format!("unknown driver {name:?}: expected \"sim\" or \"cuda\""))),
        }
    }

    fn platform(self) -> &'static dyn Platform {
        static SIMULATED: LazyLock<SimPlatform> = LazyLock::new(|| SimPlatform::new(vec![SimConfig::default()]));
        match self {
            Self::Sim => &*SIMULATED,
            Self::Cuda => cuda::platform(),
        }
    }

    /// Opens the driver of device number `device`.
    pub(crate) fn open(self, device: u32) -> PyResult<Arc<dyn Driver>> {
        let platform = self.platform();
        let count = platform.device_count().map_err(|error| device_complaint(error.kind.to_string()))?;
        let Some(device) = u8::try_from(device).ok().filter(|_| device < count) else {
            return Err(device_complaint(format!(
                "device {device} does not exist: `tenure.devices()` lists the devices, numbered from 0"
            )));
        };
        platform.driver(device).map_err(|error| device_complaint(format!("device {device}: {}", error.kind)))
    }
}
