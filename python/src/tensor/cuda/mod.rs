//! `tenure.cuda`: devices, streams, events and graphs.

mod device;
mod event;
mod graph;
mod stream;

pub(crate) use device::{
    can_access_peer, check_cuda_device, cuda_memory_info, cuda_properties, current_device, device_count, set_device,
    simulate_devices, synchronize_device,
};
pub(crate) use event::EventObject;
pub(crate) use graph::{GraphObject, GraphPoolObject, is_stream_capturing};
pub(crate) use stream::{StreamObject, current_stream, default_stream, set_stream};

use pyo3::prelude::*;
use tenure::core::Device;
use tenure::device::memory::DeviceMemory;
use tenure_device::{functions, memory};

use super::device::DeviceObject;
use crate::errors::exception;

/// Returns the memory of a device, by default the thread's current one, and opens it at the first use.
fn opened(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<&'static DeviceMemory> {
    let index = match device.filter(|device| !device.is_none()) {
        None => functions::current_device(),
        Some(device) => cuda_index(super::device::asked(Some(device))?)?,
    };
    py.detach(|| memory::device(index)).map_err(exception)
}

/// Returns the number of a CUDA device.
fn cuda_index(device: Device) -> PyResult<u8> {
    if device.is_cpu() {
        return Err(pyo3::exceptions::PyValueError::new_err("Expected a cuda device, but got: cpu"));
    }
    Ok(device.index())
}
