//! Streams that operations ran on, for the way back.

use tenure_core::Device;
use tenure_device::memory::{self, DeviceMemory};
use tenure_device::{Stream, StreamGuard};

use crate::{Result, TensorError};

/// Where work goes: a device, and its stream. The gradient of an operation is computed on the lane of the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lane {
    device: Device,
    /// None on the CPU, and where no other stream than the null stream has been current: then there is nothing to order.
    stream: Option<Stream>,
}

impl Lane {
    /// The calling thread's, on a device.
    pub(super) fn current(device: Device) -> Self {
        let memory = memory_of(device).filter(|memory| !memory.streams().is_single());
        Self { device, stream: memory.map(|memory| memory.streams().current()) }
    }

    /// The calling thread's, on the same device.
    pub(super) fn here(&self) -> Self {
        Self::current(self.device)
    }

    /// Runs `work` with the lane as the calling thread's.
    pub(super) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = self.stream().as_ref().map(StreamGuard::new);
        work()
    }

    /// Where what this one gave to another device was copied to: the calling thread's lane there.
    pub(super) fn giving_to(&self, next: &Self) -> Self {
        if self.device == next.device { self.clone() } else { Self::current(next.device) }
    }

    /// Makes later work of the calling thread wait, on the device, for all work on this lane until now.
    pub(super) fn lead_here(&self) -> Result<()> {
        self.lead_to(&self.here())
    }

    /// Makes later work on `next` wait, on the device, for all work on this one until now.
    pub(super) fn lead_to(&self, next: &Self) -> Result<()> {
        // What the CPU computed is there, and what it reads it waits for.
        let (Some(from), Some(to)) = (self.stream(), next.stream()) else { return Ok(()) };
        if from == to {
            return Ok(());
        }
        from.lead_to(&to).map_err(|error| TensorError::memory("backward", error.into()))
    }

    /// The stream, if there are several on the device by now.
    fn stream(&self) -> Option<Stream> {
        let streams = memory_of(self.device)?.streams();
        match &self.stream {
            _ if streams.is_single() => None,
            Some(stream) => Some(stream.clone()),
            None => Some(streams.null()),
        }
    }
}

fn memory_of(device: Device) -> Option<&'static DeviceMemory> {
    (!device.is_cpu()).then(|| memory::installed(device.index().into())).flatten()
}
