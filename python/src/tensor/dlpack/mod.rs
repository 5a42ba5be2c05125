//! Exchange of tensors with other libraries without a copy, by DLPack 1.x
//! (<https://dmlc.github.io/dlpack/latest/c_api.html>).

mod abi;
mod exchange;
mod export;
mod foreign;
mod import;
mod streams;

pub(crate) use export::bytes;
pub(super) use export::pinned_address;
pub(super) use foreign::ForeignArray;
pub(super) use import::imported;
pub(super) use streams::{current_number, known as known_stream};

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tenure::core::Device;

use self::abi::{CPU, IS_COPIED, VERSION, device_of};
use super::{TensorObject, exception};

#[pymethods]
impl TensorObject {
    /// Returns the tensor as a DLPack capsule, for libraries that take tensors without a copy.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let tensor = slf.get().tensor();
        if tensor.requires_grad() {
            return Err(PyBufferError::new_err(
                "a tensor that requires a gradient cannot be exported: detach() it first",
            ));
        }
        let consumer = streams::asked(tensor.device(), stream)?;
        let target = match dl_device {
            None => tensor.device(),
            Some((CPU, _)) => Device::CPU,
            Some(device) if device == device_of(tensor.device()) => tensor.device(),
            Some(device) => {
                return Err(PyBufferError::new_err(format!(
                    "a tensor on {} cannot be exported to DLPack's device {device:?}",
                    tensor.device()
                )));
            }
        };
        let moves = target != tensor.device();
        if moves && copy == Some(false) {
            return Err(PyBufferError::new_err("another device needs a copy, which copy=False forbids"));
        }
        let is_copied = moves || copy == Some(true);
        let exported = if is_copied {
            py.detach(|| if moves { tensor.to_device(target) } else { tensor.copy() }).map_err(exception)?
        } else {
            tensor
        };
        if let Some(consumer) = consumer.filter(|_| !exported.device().is_cpu()) {
            streams::lead_to(&exported, consumer)?;
        }
        if max_version.is_some_and(|(major, _)| major >= VERSION.major) {
            return export::versioned_capsule(py, exported, if is_copied { IS_COPIED } else { 0 });
        }
        if exported.storage().is_read_only() {
            return Err(PyBufferError::new_err(
                "the tensor's memory is read-only, which DLPack before 1.0 cannot say: the consumer must pass \
                 max_version=(1, 0), or take a copy (copy=True)",
            ));
        }
        export::legacy_capsule(py, exported)
    }

    /// Returns DLPack's type and number of the device that the tensor is on.
    fn __dlpack_device__(&self) -> (i32, i32) {
        device_of(self.tensor().device())
    }

    /// The functions of DLPack 1.3 for C, in a capsule.
    #[classattr]
    fn __dlpack_c_exchange_api__(py: Python<'_>) -> PyResult<Py<PyAny>> {
        exchange::capsule(py)
    }
}

/// Returns a tensor on the memory of another library's array or tensor.
///
/// Parameters
/// ----------
/// x : object with `__dlpack__`, or a DLPack capsule
/// device : device, default None
///     The device of the result; by default the array's.
/// copy : bool, default None
///     True: always copy. False: never copy, and raise a `BufferError` where that is impossible. None: copy if needed,
///     as of negative strides.
///
/// Notes
/// -----
/// The tensor of a read-only array is read-only too: operations that write to it raise a `tenure.Error`.
#[pyfunction]
#[pyo3(signature = (x, /, *, device = None, copy = None))]
pub(crate) fn from_dlpack<'py>(
    x: &Bound<'py, PyAny>,
    device: Option<&Bound<'py, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, TensorObject>> {
    let py = x.py();
    let tensor = if x.cast::<PyCapsule>().is_ok() { import::from_capsule(x, copy)? } else { imported(x, copy)? };
    let tensor = match device.filter(|device| !device.is_none()) {
        None => tensor,
        Some(device) => {
            let device = super::device::asked(Some(device))?;
            if device != tensor.device() && copy == Some(false) {
                return Err(PyBufferError::new_err("another device needs a copy, which copy=False forbids"));
            }
            py.detach(|| tensor.to_device(device)).map_err(exception)?
        }
    };
    super::wrapped(py, tensor)
}
