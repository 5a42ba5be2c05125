//! Errors of a device's memory.

use tenure_alloc::AllocError;
use tenure_core::{AllocatorError, Device};

use super::OutOfMemoryReport;
use crate::pinned::PinnedError;
use crate::platform::MAX_DEVICES;
use crate::{CallError, DriverError};

/// An error of a device's memory.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// There is too little memory, even after the allocator gave back all that it could.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemoryReport>),
    /// The allocator refused for another reason.
    #[error(transparent)]
    Allocator(#[from] AllocError),
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Pinned host memory for copies to or from the device is not available.
    #[error(transparent)]
    Pinned(#[from] PinnedError),
    /// Memory was requested, or a use recorded, on `cudaStreamPerThread`.
    #[error(
        "stream 0x2, cudaStreamPerThread, is another stream in each thread, so that memory on it cannot be told apart: \
         create a stream for each thread"
    )]
    PerThreadStream,
    /// The device's memory is in use already, with the settings it began with.
    #[error("the memory of {device} is in use already: set it up before its first use, once")]
    AlreadyInstalled {
        /// The device.
        device: Device,
    },
    /// The device's number is above the limit.
    #[error("{device} is out of range: devices are numbered from 0 to {}", MAX_DEVICES - 1)]
    DeviceOutOfRange {
        /// The device.
        device: Device,
    },
    /// There is no such allocator.
    #[error("unknown allocator {name:?}: expected \"paged\", \"native\" or \"expandable\"")]
    UnknownPolicy {
        /// The name given.
        name: String,
    },
}

impl From<CallError> for MemoryError {
    #[track_caller]
    fn from(error: CallError) -> Self {
        DriverError::from(error).into()
    }
}

impl MemoryError {
    /// Returns whether there was too little memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory(_) | Self::Allocator(AllocError::OutOfMemory { .. }))
    }

    /// Converts the error for callers that know devices only as [`Allocator`](tenure_core::Allocator)s.
    pub(super) fn into_allocator_error(self, device: Device, requested: usize) -> AllocatorError {
        match self {
            Self::OutOfMemory(report) => {
                AllocatorError::DeviceOutOfMemory { device, requested, report: report.to_string() }
            }
            Self::Allocator(AllocError::TooLarge(_)) => AllocatorError::TooLarge { requested },
            other => AllocatorError::Failed { device, call: "allocate", reason: other.to_string() },
        }
    }
}
