//! A region, whatever memory it is of, and the parts of it that requests use.

use std::sync::Arc;

use super::SharedMemoryError;
use super::cuda::{CudaRegion, CudaStatus};
use super::system::{SystemRegion, SystemStatus};
use crate::protocol::Span;

/// Memory that a client registered under a name.
pub(crate) enum Region {
    System(SystemRegion),
    Cuda(CudaRegion),
}

/// A kind of memory: the status of a region that is of it.
pub(crate) type Kind<T> = fn(&Region) -> Option<&T>;

impl Region {
    /// The system's shared memory.
    pub(crate) fn system(&self) -> Option<&SystemStatus> {
        if let Self::System(region) = self { Some(region.status()) } else { None }
    }

    /// Memory of CUDA devices.
    pub(crate) fn cuda(&self) -> Option<&CudaStatus> {
        if let Self::Cuda(region) = self { Some(region.status()) } else { None }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::System(region) => &region.status().name,
            Self::Cuda(region) => &region.status().name,
        }
    }

    fn byte_size(&self) -> u64 {
        match self {
            Self::System(region) => region.status().byte_size,
            Self::Cuda(region) => region.status().byte_size,
        }
    }

    fn contains(&self, offset: u64, byte_size: u64) -> Result<(), SharedMemoryError> {
        let region_bytes = self.byte_size();
        if offset.checked_add(byte_size).is_some_and(|end| end <= region_bytes) {
            return Ok(());
        }
        Err(SharedMemoryError::Outside { region: self.name().into(), region_bytes, offset, byte_size })
    }
}

/// A part of a region that a request uses. The region stays, even if it is unregistered meanwhile.
pub(super) struct Part {
    region: Arc<Region>,
    offset: u64,
    byte_size: u64,
}

impl Part {
    /// The part of a region that a tensor is in.
    pub(super) fn new(region: Arc<Region>, span: &Span) -> Result<Self, SharedMemoryError> {
        region.contains(span.offset, span.byte_size)?;
        Ok(Self { region, offset: span.offset, byte_size: span.byte_size })
    }

    pub(super) fn byte_size(&self) -> u64 {
        self.byte_size
    }

    /// Whether a device copies it, which takes long however few bytes it has.
    pub(super) fn is_on_device(&self) -> bool {
        matches!(*self.region, Region::Cuda(_))
    }

    /// Its bytes as they are now.
    pub(super) fn read(&self) -> Result<Vec<u8>, SharedMemoryError> {
        match &*self.region {
            Region::System(region) => region.read(self.offset, self.byte_size),
            Region::Cuda(region) => region.read(self.offset, self.byte_size),
        }
    }

    /// Makes an output's bytes its first ones.
    pub(super) fn write(&self, output: &str, bytes: &[u8]) -> Result<(), SharedMemoryError> {
        if bytes.len() as u64 > self.byte_size {
            let (output, bytes, room) = (output.into(), bytes.len(), self.byte_size);
            return Err(SharedMemoryError::Room { output, bytes, room });
        }
        match &*self.region {
            Region::System(region) => region.write(self.offset, bytes),
            Region::Cuda(region) => region.write(self.offset, bytes),
        }
    }
}
