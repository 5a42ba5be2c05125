//! The device memory that a switcher's weights are in: Tenure's under PyTorch, or memory of Tenure's beside PyTorch's
//! allocator.

use std::sync::{Arc, Mutex, PoisonError};

use tenure::core::StreamId;
use tenure::device::memory::{DeviceMemory, MemoryConfig, MemoryError};
use tenure::device::{Stream, cuda};
use tenure_device::memory;

/// Devices that were opened beside PyTorch's allocator. They stay open for the rest of the process.
static BESIDE: Mutex<Vec<WeightsMemory>> = Mutex::new(Vec::new());

/// A device's memory, and the driver that must be told of PyTorch's streams.
#[derive(Clone)]
pub(crate) struct WeightsMemory {
    pub(crate) memory: &'static DeviceMemory,
    /// The driver, where Tenure is not under PyTorch. `None` where it is: there PyTorch's shim tells the driver.
    beside: Option<Arc<cuda::CudaDriver>>,
}

impl WeightsMemory {
    /// Opens a device without taking memory on it, unless Tenure is under PyTorch there. The opened device does not
    /// count as installed, so that PyTorch's memory is not taken for Tenure's.
    ///
    /// # Errors
    /// There is no such device, or its driver failed.
    pub(crate) fn open(index: u8) -> Result<Self, MemoryError> {
        if let Some(memory) = memory::installed(index.into()) {
            return Ok(Self { memory, beside: None });
        }
        let mut opened = BESIDE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = opened.iter().find(|known| known.memory.device().index() == index) {
            return Ok(known.clone());
        }
        let driver = cuda::platform().cuda_driver(index)?;
        let memory = DeviceMemory::new(Arc::clone(&driver) as _, MemoryConfig::default())?;
        let made = Self { memory: Box::leak(Box::new(memory)), beside: Some(driver) };
        opened.push(made.clone());
        Ok(made)
    }

    /// Returns the stream with PyTorch's handle `handle`.
    ///
    /// # Safety
    /// The handle is null, or a stream of the device that exists as long as it is in use, as PyTorch's do.
    pub(crate) unsafe fn stream(&self, handle: usize) -> Option<Stream> {
        let Some(driver) = &self.beside else {
            // SAFETY: by the function's contract.
            return unsafe { tenure_capi::torch::stream(self.memory.device(), handle) };
        };
        let id = StreamId(handle as u64);
        if id == StreamId::NULL {
            return Some(self.memory.streams().null());
        }
        // SAFETY: by the function's contract.
        unsafe { driver.adopt_stream(id) };
        Some(self.memory.streams().external(id))
    }
}
