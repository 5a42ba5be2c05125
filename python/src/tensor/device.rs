//! `tenure.device`: the place of a tensor's elements.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use tenure::core::Device;
use tenure_device::functions;

use super::convert;

/// A device, such as ``device("cpu")``, ``device("cuda:1")`` or ``device("cuda", 1)``.
#[pyclass(frozen, eq, name = "device", module = "tenure")]
#[derive(PartialEq)]
pub(crate) struct DeviceObject {
    device: Device,
}

impl DeviceObject {
    pub(super) fn new(device: Device) -> Self {
        Self { device }
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }
}

/// Returns the thread's current CUDA device.
pub(super) fn current() -> Device {
    Device::cuda(functions::current_device())
}

/// Returns the device of a name. `cuda` is the thread's current CUDA device.
pub(super) fn parsed(name: &str) -> PyResult<Device> {
    if name == "cuda" {
        return Ok(current());
    }
    name.parse().map_err(|error: tenure::core::DeviceError| PyRuntimeError::new_err(error.to_string()))
}

/// Returns the CUDA device of a number.
pub(super) fn numbered(number: i64) -> PyResult<Device> {
    let index = u8::try_from(number);
    index
        .map(Device::cuda)
        .map_err(|_| PyRuntimeError::new_err(format!("{number} is not a device's number: 0 is the first")))
}

#[pymethods]
impl DeviceObject {
    #[new]
    #[pyo3(signature = (r#type, index = None))]
    fn new_object(r#type: &Bound<'_, PyAny>, index: Option<i64>) -> PyResult<Self> {
        let device = converted(r#type)?
            .ok_or_else(|| PyTypeError::new_err("a device is given by a name, a number or another device"))?;
        match index {
            None => Ok(Self { device }),
            Some(0) if device.is_cpu() => Ok(Self { device }),
            Some(index) if r#type.eq("cuda")? => Ok(Self { device: numbered(index)? }),
            Some(index) => Err(PyRuntimeError::new_err(format!("device {device} cannot have the index {index}"))),
        }
    }

    /// The kind: ``"cpu"`` or ``"cuda"``.
    #[getter]
    fn r#type(&self) -> &'static str {
        self.device.kind().name()
    }

    /// The number among the devices of its kind; `None` for the CPU.
    #[getter]
    fn index(&self) -> Option<u8> {
        (!self.device.is_cpu()).then(|| self.device.index())
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.device.hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        match self.index() {
            Some(index) => format!("device(type='{}', index={index})", self.r#type()),
            None => format!("device(type='{}')", self.r#type()),
        }
    }

    fn __str__(&self) -> String {
        self.device.to_string()
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<(Py<PyAny>, (String,))> {
        Ok((slf.get_type().into_any().unbind(), (slf.get().device.to_string(),)))
    }
}

/// Converts a device, its name, or the number of a CUDA device.
///
/// # Errors
/// A string that names no device.
pub(super) fn converted(object: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    if let Ok(device) = object.cast::<DeviceObject>() {
        return Ok(Some(device.get().device()));
    }
    if let Ok(name) = object.cast::<PyString>() {
        return parsed(&name.to_cow()?).map(Some);
    }
    match convert::integer(object)? {
        Some(number) => numbered(number).map(Some),
        None => Ok(None),
    }
}

/// Returns the device that a caller asks for; by default the CPU.
pub(super) fn asked(device: Option<&Bound<'_, PyAny>>) -> PyResult<Device> {
    match device.filter(|device| !device.is_none()) {
        None => Ok(Device::CPU),
        Some(device) => converted(device)?
            .ok_or_else(|| PyTypeError::new_err("device must be a name such as 'cuda:0', a number or a tenure.device")),
    }
}
