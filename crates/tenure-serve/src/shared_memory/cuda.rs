//! Regions of CUDA devices' memory: allocations of clients, opened by CUDA's IPC handles.

use std::io;

use serde::Serialize;
use tenure_tensor::Device;
use tenure_tensor::cuda::{OpenedMemory, open_memory};

use super::SharedMemoryError;

/// A region to be opened.
pub(crate) struct CudaRegistration {
    /// The bytes of a `cudaIpcMemHandle_t`.
    pub(crate) raw_handle: Vec<u8>,
    pub(crate) device_id: i64,
    pub(crate) byte_size: u64,
}

/// A region in the form of its status.
#[derive(Clone, Serialize)]
pub(crate) struct CudaStatus {
    pub(crate) name: String,
    pub(crate) device_id: u8,
    pub(crate) byte_size: u64,
}

/// The start of a client's allocation on a CUDA device.
pub(crate) struct CudaRegion {
    status: CudaStatus,
    memory: OpenedMemory,
}

impl CudaRegion {
    /// Opens an allocation on one of the devices that the server computes on. Waits for the driver.
    pub(crate) fn open(
        name: String,
        registration: CudaRegistration,
        served: &[Device],
    ) -> Result<Self, SharedMemoryError> {
        let CudaRegistration { raw_handle, device_id, byte_size } = registration;
        let mut devices = served.iter().copied().filter(|device| !device.is_cpu());
        let device = match devices.find(|device| i64::from(device.index()) == device_id) {
            Some(device) => device,
            None if served.iter().all(|device| device.is_cpu()) => return Err(SharedMemoryError::Cuda),
            None => return Err(SharedMemoryError::OtherDevice { device_id, served: served.into() }),
        };
        let handle = raw_handle.try_into().map_err(|_| SharedMemoryError::Handle)?;
        if byte_size == 0 {
            return Err(SharedMemoryError::Size { offset: 0, byte_size });
        }
        let memory = open_memory(device, handle)
            .map_err(|source| SharedMemoryError::NotOpened { device, source: source.into() })?;
        let found = memory.bytes();
        if found < byte_size {
            return Err(SharedMemoryError::Short { key: name, end: byte_size, found });
        }
        Ok(Self { status: CudaStatus { name, device_id: device.index(), byte_size }, memory })
    }

    pub(super) fn status(&self) -> &CudaStatus {
        &self.status
    }

    pub(super) fn read(&self, offset: u64, byte_size: u64) -> Result<Vec<u8>, SharedMemoryError> {
        let mut bytes = vec![0; usize::try_from(byte_size).unwrap_or(usize::MAX)];
        self.memory.read(offset, &mut bytes).map_err(io::Error::other).map_err(|source| self.failed(source))?;
        Ok(bytes)
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), SharedMemoryError> {
        self.memory.write(offset, bytes).map_err(io::Error::other).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> SharedMemoryError {
        SharedMemoryError::Failed { region: self.status.name.clone(), source }
    }
}
