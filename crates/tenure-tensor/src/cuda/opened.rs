//! CUDA memory of other processes.

pub use tenure_device::OpenedMemory;
use tenure_device::{MemoryHandle, memory};

use crate::{Device, Result, TensorError};

const OP: &str = "open_memory";

/// Opens another process's memory on a CUDA device, from the bytes of its `cudaIpcMemHandle_t`.
///
/// # Errors
/// The device is the CPU or does not exist; the handle names no memory of another process; a driver call failed.
pub fn open_memory(device: Device, handle: [u8; 64]) -> Result<OpenedMemory> {
    if device.is_cpu() {
        return Err(TensorError::argument(OP, "memory is opened on a CUDA device, got the CPU"));
    }
    let memory = memory::device(device.index()).map_err(|error| TensorError::memory(OP, error))?;
    let opened = OpenedMemory::open(memory.driver().clone(), &MemoryHandle(handle));
    opened.map_err(|error| TensorError::memory(OP, error.into()))
}
