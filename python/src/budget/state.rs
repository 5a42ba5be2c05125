//! The program's own state in a budget of PyTorch's tensors, such as its optimizers': it can lie in host memory that
//! the device uses in place.

use std::sync::Arc;

use pyo3::prelude::*;
use tenure::core::{Storage, StreamId};
use tenure_device::memory::{self, DeviceMemory};
use tenure_device::zero_copy::{self, ZeroCopy, ZeroCopyError};
use tenure_device::{Stream, StreamGuard};

use super::told;
use super::torch::{Budget, BudgetInner};
use crate::errors::complaint;
use crate::operations::{Shim, Tensor, TorchStorage};

/// The part of a budget that moves the program's state.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct BudgetState {
    inner: Arc<BudgetInner>,
    shim: Shim,
    memory: &'static DeviceMemory,
}

#[pymethods]
impl BudgetState {
    /// Returns the state of a budget of a device's memory. There is none in a budget of the host's memory.
    #[staticmethod]
    fn of(budget: &Bound<'_, Budget>) -> Option<Self> {
        let (inner, shim) = budget.get().parts();
        let device = inner.device();
        let memory = if device.is_cpu() { None } else { memory::installed(device.index().into()) };
        Some(Self { inner, shim, memory: memory? })
    }

    /// Returns whether the storage at an address lies in host memory.
    #[staticmethod]
    fn is_on_host(address: u64) -> bool {
        zero_copy::contains(address)
    }

    /// Tells how many bytes of state are on the device and could move to the host.
    fn set_bytes(&self, py: Python<'_>, bytes: u64) {
        py.detach(|| self.inner.engine().set_state_bytes(bytes));
    }

    /// Tells how many bytes of gradients and weights could leave too.
    fn set_parameter_bytes(&self, py: Python<'_>, bytes: u64) {
        py.detach(|| self.inner.engine().set_parameter_bytes(bytes));
    }

    /// Discards all measurements of steps.
    fn forget(&self, py: Python<'_>) {
        py.detach(|| self.inner.engine().forget());
    }

    /// The bytes in host memory that the device uses in place.
    #[getter]
    fn host_bytes(&self) -> u64 {
        self.inner.engine().zero_copy().map_or(0, |memory| memory.bytes())
    }

    /// Returns the bytes that the program can still allocate on the device.
    fn room_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.inner.engine().room_bytes()).map_err(told)
    }

    /// Begins an update of the state: what finds no room on the device goes to host memory.
    fn begin_update(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.engine().begin_update()).map_err(told)
    }

    /// Ends an update.
    fn end_update(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.engine().end_update()).map_err(told)
    }

    /// Copies a storage in host memory to the device, in the order of this thread's stream.
    fn copy_to_device(&self, py: Python<'_>, address: u64, target: u64) -> PyResult<()> {
        py.detach(|| self.copy(|zero_copy, stream| zero_copy.copy_to_device(address, target, stream)))
    }

    /// Copies bytes of the device to a storage in host memory, in the order of this thread's stream.
    fn copy_from_device(&self, py: Python<'_>, address: u64, source: u64) -> PyResult<()> {
        py.detach(|| self.copy(|zero_copy, stream| zero_copy.copy_from_device(address, source, stream)))
    }

    /// Moves the storage of a tensor, at `address` and of `bytes` bytes, to host memory. Returns whether there is room.
    fn move_to_host(&self, tensor: &Bound<'_, PyAny>, address: usize, bytes: usize) -> PyResult<bool> {
        self.replace(tensor, |stream| {
            let Some(zero_copy) = self.inner.engine().zero_copy() else { return Ok(None) };
            // PyTorch frees the source in the order of the stream.
            match zero_copy.allocate_copy(address as u64, bytes, stream.id()) {
                Err(ZeroCopyError::Pinned(_)) => Ok(None),
                copied => copied.map(Some),
            }
        })
    }

    /// Moves the storage of a tensor, at `address` and of `bytes` bytes, from host memory to the device. Returns
    /// whether there is room.
    fn move_to_device(&self, tensor: &Bound<'_, PyAny>, address: usize, bytes: usize) -> PyResult<bool> {
        self.replace(tensor, |stream| {
            let _on_stream = StreamGuard::new(stream);
            let Some(zero_copy) = self.inner.engine().zero_copy() else { return Ok(None) };
            let Ok(storage) = Storage::new(bytes, Arc::new(self.memory)) else { return Ok(None) };
            let target = storage.lock().as_ptr().addr() as u64;
            Ok(zero_copy.copy_to_device(address as u64, target, stream.id())?.then_some(storage))
        })
    }
}

impl BudgetState {
    /// Copies a storage in host memory on this thread's stream.
    fn copy(&self, copy: impl FnOnce(&ZeroCopy, StreamId) -> Result<bool, ZeroCopyError>) -> PyResult<()> {
        let stream = self.inner.stream(self.shim.stream(self.inner.device()));
        let copied = match (self.inner.engine().zero_copy(), stream) {
            (Some(zero_copy), Some(stream)) => copy(zero_copy, stream.id()).map_err(|error| error.to_string()),
            _ => Ok(false),
        };
        match copied {
            Ok(true) => Ok(()),
            Ok(false) => Err(complaint("the storage is not in host memory".into())),
            Err(words) => Err(complaint(words)),
        }
    }

    /// Gives a tensor the storage that `copy` makes on this thread's stream. Its former bytes are freed with no lock
    /// held, in the order of the stream. Returns whether there was a storage.
    fn replace(
        &self,
        tensor: &Bound<'_, PyAny>,
        copy: impl FnOnce(&Stream) -> Result<Option<Storage>, ZeroCopyError> + Send,
    ) -> PyResult<bool> {
        let py = tensor.py();
        let tensor = Tensor::of(tensor)?;
        let device = self.inner.device();
        let Some(stream) = self.inner.stream(self.shim.stream(device)) else { return Ok(false) };
        let storage = py.detach(|| match copy(&stream) {
            Ok(storage) => storage.map(|storage| TorchStorage::of(self.shim, storage)).transpose(),
            Err(error) => Err(error.to_string()),
        });
        let Some(storage) = storage.map_err(complaint)? else { return Ok(false) };
        storage.exchange(tensor).map_err(complaint)?;
        py.detach(|| drop(storage));
        Ok(true)
    }
}
