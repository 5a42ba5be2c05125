//! Lanes: the streams that operations ran on, for their backward.

use tenure_core::Device;
use tenure_device::memory::{self, DeviceMemory};
use tenure_device::{Stream, StreamGuard};

use crate::{Result, TensorError};

/// A device and one of its streams. The gradient of an operation is computed on the lane of the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceStream {
    device: Device,
    /// `None` on the CPU, and where no stream but the null stream has been current: then there is nothing to order.
    stream: Option<Stream>,
}

impl DeviceStream {
    /// Returns the calling thread's lane on a device.
    pub(super) fn current(device: Device) -> Self {
        let memory = memory_of(device).filter(|memory| !memory.streams().is_single());
        Self { device, stream: memory.map(|memory| memory.streams().current()) }
    }

    /// Returns the calling thread's lane on the same device.
    pub(super) fn here(&self) -> Self {
        Self::current(self.device)
    }

    /// Runs `work` with this lane as the calling thread's.
    pub(super) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = self.stream().as_ref().map(StreamGuard::new);
        work()
    }

    /// Returns the lane that has a gradient of this lane ready for `next`. If the devices differ, this is the calling
    /// thread's lane on the device of `next`, which did the copy.
    pub(super) fn giving_to(&self, next: &Self) -> Self {
        if self.device == next.device { self.clone() } else { Self::current(next.device) }
    }

    /// Makes later work of the calling thread wait, on the device, for all work on this lane until now.
    pub(super) fn lead_here(&self) -> Result<()> {
        self.lead_to(&self.here())
    }

    /// Makes later work on `next` wait, on the device, for all work on this one until now.
    pub(super) fn lead_to(&self, next: &Self) -> Result<()> {
        // Results of the CPU are ready at once, and the CPU waits for what it reads.
        let (Some(from), Some(to)) = (self.stream(), next.stream()) else { return Ok(()) };
        if from == to {
            return Ok(());
        }
        from.lead_to(&to).map_err(|error| TensorError::memory("backward", error.into()))
    }

    /// Returns the stream, if the device has several by now.
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
