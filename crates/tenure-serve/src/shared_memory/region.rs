//! Regions of any kind of memory, and the parts of them that requests use.

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

/// A kind of memory: a function that returns a region's status if the region is of that kind.
pub(crate) type RegionKind<T> = fn(&Region) -> Option<&T>;

impl Region {
    /// Returns the status if the region is the system's shared memory.
    pub(crate) fn system(&self) -> Option<&SystemStatus> {
        if let Self::System(region) = self { Some(region.status()) } else { None }
    }

    /// Returns the status if the region is memory of a CUDA device.
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

/// A part of a region that a request uses. It keeps the region alive, even if the region is unregistered meanwhile.
pub(super) struct RegionPart {
    region: Arc<Region>,
    offset: u64,
    byte_size: u64,
}

impl RegionPart {
    /// Creates the part that holds a tensor, if it is inside the region.
    pub(super) fn new(region: Arc<Region>, span: &Span) -> Result<Self, SharedMemoryError> {
        region.contains(span.offset, span.byte_size)?;
        Ok(Self { region, offset: span.offset, byte_size: span.byte_size })
    }

    pub(super) fn byte_size(&self) -> u64 {
        self.byte_size
    }

    /// Returns whether a device copies the part, which takes long even for a few bytes.
    pub(super) fn is_on_device(&self) -> bool {
        matches!(*self.region, Region::Cuda(_))
    }

    /// Returns its bytes as they are now.
    pub(super) fn read(&self) -> Result<Vec<u8>, SharedMemoryError> {
        match &*self.region {
            Region::System(region) => region.read(self.offset, self.byte_size),
            Region::Cuda(region) => region.read(self.offset, self.byte_size),
        }
    }

    /// Writes an output's bytes to the start of the part.
    pub(super) fn write(&self, output: &str, bytes: &[u8]) -> Result<(), SharedMemoryError> {
        if bytes.len() as u64 > self.byte_size {
            let output = output.into();
            let bytes = bytes.len();
            let room = self.byte_size;
            return Err(SharedMemoryError::Room { output, bytes, room });
        }
        match &*self.region {
            Region::System(region) => region.write(self.offset, bytes),
            Region::Cuda(region) => region.write(self.offset, bytes),
        }
    }
}
