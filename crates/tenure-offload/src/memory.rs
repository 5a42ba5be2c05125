//! The memory that a budget is of.

use std::sync::Arc;

use tenure_alloc::{FreeMemoryCallback, Statistics};
use tenure_core::Device;
use tenure_device::Executor;
use tenure_device::host::HostMemory;
use tenure_device::memory::{self, DeviceMemory};

use crate::error::OffloadError;

/// See [`Memory::launch_ns`]. Measured of PyTorch on the host of an H100.
const LAUNCH_NS: u64 = 25_000;

/// The memory that a budget is of.
#[derive(Clone)]
pub enum Memory {
    /// Of tensors on the CPU.
    Host(Arc<HostMemory>),
    /// Of those on a device.
    Device(&'static DeviceMemory),
}

/// The most there was at once.
#[derive(Clone, Copy, Default)]
pub(crate) struct Peak {
    /// Bytes of blocks.
    pub(crate) allocated_bytes: u64,
    /// Bytes that they are parts of, and of what is kept for later blocks.
    pub(crate) reserved_bytes: u64,
}

impl Peak {
    /// The more of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            allocated_bytes: self.allocated_bytes.max(other.allocated_bytes),
            reserved_bytes: self.reserved_bytes.max(other.reserved_bytes),
        }
    }
}

impl Memory {
    /// That of a device, if there is one and Tenure manages it.
    pub fn of(device: Device) -> Option<Self> {
        if device.is_cpu() {
            HostMemory::install();
            return HostMemory::installed().map(Self::Host);
        }
        memory::installed(device.index().into()).map(Self::Device)
    }

    /// The device whose memory it is, if it is not the host's.
    pub fn device(&self) -> Option<&'static DeviceMemory> {
        match self {
            Self::Host(_) => None,
            Self::Device(memory) => Some(memory),
        }
    }

    /// The counters of its allocator.
    pub fn statistics(&self) -> Statistics {
        match self {
            Self::Host(memory) => memory.statistics(),
            Self::Device(memory) => memory.allocator().statistics(),
        }
    }

    /// The most bytes that were allocated, and held, at once since it was asked the last time.
    pub(crate) fn take_peak(&self) -> Peak {
        let all = self.statistics().all;
        match self {
            Self::Host(memory) => memory.reset_peak_statistics(),
            Self::Device(memory) => memory.allocator().reset_peak_statistics(),
        }
        Peak { allocated_bytes: all.allocated_bytes.peak, reserved_bytes: all.reserved_bytes.peak }
    }

    /// Limits what is held to so many bytes.
    pub(crate) fn set_limit(&self, bytes: Option<u64>) -> Result<(), OffloadError> {
        let set = match self {
            Self::Host(memory) => memory.set_limit(bytes),
            Self::Device(memory) => {
                let allocator = memory.allocator();
                allocator.count_overhead(false);
                let total =
                    memory.driver().memory_info().map_err(|error| OffloadError::Memory(error.to_string()))?.total;
                let fraction = bytes.map_or(1.0, |bytes| (bytes as f64 / total as f64).min(1.0));
                allocator.set_memory_fraction(fraction).and_then(|()| allocator.release_cached())
            }
        };
        set.map_err(|error| OffloadError::Memory(error.to_string()))
    }

    /// What planning has left in the host's memory is given back, where that is what the budget is of.
    pub(crate) fn release_cached(&self) -> Result<(), OffloadError> {
        let Self::Host(memory) = self else { return Ok(()) };
        memory.release_cached().map_err(|error| OffloadError::Memory(error.to_string()))
    }

    /// A step begins: what the last ones had no use for need not be kept, such as the ranges of addresses that steps before
    /// their first plan were pieced together in.
    pub(crate) fn begin_step(&self) -> Result<(), OffloadError> {
        let begun = self.device().map_or(Ok(()), |memory| memory.allocator().begin_cycle());
        begun.map_err(|error| OffloadError::Memory(error.to_string()))
    }

    /// Bytes of a limit that no plan counts on: parts of chunks, and what other threads have for a moment.
    pub(crate) fn slack_bytes(&self) -> u64 {
        match self {
            Self::Host(_) => 1 << 20,
            Self::Device(_) => 8 << 20,
        }
    }

    /// Whether it is a simulated device's, which has no time of its own.
    pub(crate) fn is_simulated(&self) -> bool {
        self.device().is_some_and(|device| matches!(device.driver().executor(), Executor::Sim(_)))
    }

    /// The host's time for each operation that is computed again, in nanoseconds: the host notes the operation where it is
    /// asked for first, and asks for it again. Where the host itself computes, that is time of the operation.
    pub(crate) fn launch_ns(&self) -> u64 {
        if self.device().is_none() || self.is_simulated() { 0 } else { LAUNCH_NS }
    }

    pub(crate) fn on_full(&self, callback: FreeMemoryCallback) {
        match self {
            Self::Host(memory) => memory.add_free_memory_callback(callback),
            Self::Device(memory) => memory.allocator().add_free_memory_callback(callback),
        }
    }
}
