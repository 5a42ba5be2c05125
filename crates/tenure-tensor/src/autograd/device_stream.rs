//! The device and stream that an operation ran on, so that its gradient is computed on the same stream.

use tenure_core::Device;
use tenure_device::memory::{self, DeviceMemory};
use tenure_device::{Stream, StreamGuard};

use crate::{Result, TensorError};

/// A device and one of its streams. The gradient of an operation is computed on the stream of the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceStream {
    device: Device,
    /// `None` on the CPU, and for the null stream of a device that has no other stream yet: then no stream has to wait.
    stream: Option<Stream>,
}

impl DeviceStream {
    /// Returns the calling thread's current stream on a device.
    pub(super) fn current(device: Device) -> Self {
        let memory = memory_of(device).filter(|memory| !memory.streams().is_single());
        Self { device, stream: memory.map(|memory| memory.streams().current()) }
    }

    /// Returns the calling thread's current stream on the same device.
    pub(super) fn current_of_same_device(&self) -> Self {
        Self::current(self.device)
    }

    /// Runs `work` with this stream as the calling thread's current one.
    pub(super) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = self.stream().as_ref().map(StreamGuard::new);
        work()
    }

    /// Returns the stream that `next` must wait for before it reads a gradient that this stream computed. If the
    /// devices differ, this is the calling thread's current stream on the device of `next`, which copied the gradient
    /// there.
    pub(super) fn source_for(&self, next: &Self) -> Self {
        if self.device == next.device { self.clone() } else { Self::current(next.device) }
    }

    /// Makes later work on the calling thread's current stream wait, on the device, for all work on this stream so far.
    pub(super) fn make_current_wait(&self) -> Result<()> {
        self.make_wait(&self.current_of_same_device())
    }

    /// Makes later work on `next` wait, on the device, for all work on this stream so far.
    pub(super) fn make_wait(&self, next: &Self) -> Result<()> {
        // The CPU computes at once, and waits for the device before it reads a result.
        let (Some(from), Some(to)) = (self.stream(), next.stream()) else { return Ok(()) };
        if from == to {
            return Ok(());
        }
        from.lead_to(&to).map_err(|error| TensorError::memory("backward", error.into()))
    }

    /// Returns the stream, or `None` if the device still has only the null stream.
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
