//! Collective operations: reductions over devices, and broadcasts from one device to all.

use parking_lot::Mutex;
use tenure_core::Overlap;
use tenure_device::collective::{CollectiveError, Communicator};
use tenure_device::memory::{self, DeviceMemory};
use tenure_device::{Event, EventKind, Priority, Stream};

pub use tenure_device::collective::ReduceOp;

use crate::{Access, Device, Result, Tensor, TensorError, cuda};

/// A device's member of a group of devices that exchange tensors. Exchanges run on a stream of their own, concurrently
/// with other work of the device until they are [joined](Self::join). All devices make the same calls, in the same
/// order, each from its own thread. Dropping it waits for unfinished exchanges.
pub struct Collective {
    communicator: Communicator,
    memory: &'static DeviceMemory,
    stream: Stream,
    state: Mutex<CollectiveState>,
}

struct CollectiveState {
    event: Event,
    /// The tensors of exchanges that are not yet joined.
    tensors: Vec<Tensor>,
}

impl Collective {
    /// Creates the members of a group of CUDA devices, in the order of `devices`.
    ///
    /// # Errors
    /// A device does not exist or is named twice; NCCL is missing.
    pub fn group(devices: &[Device]) -> Result<Vec<Self>> {
        const OP: &str = "collective";
        if let Some(other) = devices.iter().find(|device| device.is_cpu()) {
            return Err(TensorError::argument(OP, format!("{other} exchanges nothing: CUDA devices are expected")));
        }
        let memories = devices.iter().map(|device| memory::device(device.index()));
        let memories = memories.collect::<std::result::Result<Vec<_>, _>>();
        let memories = memories.map_err(|error| TensorError::memory(OP, error))?;
        let drivers: Vec<_> = memories.iter().map(|memory| memory.driver().clone()).collect();
        let group = Communicator::group(&drivers).map_err(|error| TensorError::collective(OP, error))?;
        group
            .into_iter()
            .zip(memories)
            .map(|(communicator, memory): (_, &'static DeviceMemory)| {
                // High priority, so that exchanges go before computation: the other devices wait for them.
                let stream = memory.streams().pooled(Priority::High);
                let stream = stream.map_err(|error| TensorError::memory(OP, error.into()))?;
                let event = Event::new(memory.driver().clone(), EventKind::Order);
                Ok(Self {
                    communicator,
                    memory,
                    stream,
                    state: Mutex::new(CollectiveState { event, tensors: Vec::new() }),
                })
            })
            .collect()
    }

    /// Returns the device's rank in the group, from 0.
    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// Returns the number of devices in the group.
    pub fn size(&self) -> usize {
        self.communicator.size()
    }

    /// Returns the device.
    pub fn device(&self) -> Device {
        self.communicator.device()
    }

    /// Replaces every element by the `reduction` of that element over all devices. The exchange starts when the calling
    /// thread's stream reaches this call, as one group for all tensors. The caller must not use the tensors before it
    /// [joins](Self::join).
    ///
    /// # Errors
    /// A tensor is on another device, has gaps, or has a dtype that cannot be exchanged; the group has ended.
    pub fn all_reduce(&self, tensors: &[Tensor], reduction: ReduceOp) -> Result<()> {
        self.put("all_reduce", tensors, |address, tensor| {
            self.communicator.all_reduce(address, tensor.numel(), tensor.dtype(), reduction, self.stream.id())
        })
    }

    /// Replaces every element by that of the device of rank `root`; otherwise like [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// The errors of [`all_reduce`](Self::all_reduce).
    pub fn broadcast(&self, tensors: &[Tensor], root: usize) -> Result<()> {
        self.put("broadcast", tensors, |address, tensor| {
            let bytes = tensor.numel() * tensor.dtype().size();
            self.communicator.broadcast(address, bytes, root, self.stream.id())
        })
    }

    /// Makes later work of the calling thread's stream wait, on the device, for all exchanges started until now.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn join(&self) -> Result<()> {
        let state = &mut *self.state.lock();
        let current = self.memory.streams().current();
        let joined = state.event.record(&self.stream).and_then(|()| current.wait(&state.event));
        // Memory freed here is reused only after that wait.
        state.tensors.clear();
        joined.map_err(|error| TensorError::memory("join", error.into()))
    }

    /// Ends the group for all members: see [`Communicator::abort`].
    pub fn abort(&self) {
        self.communicator.abort();
    }

    fn put(
        &self,
        op: &'static str,
        tensors: &[Tensor],
        call: impl Fn(u64, &Tensor) -> Result<(), CollectiveError>,
    ) -> Result<()> {
        tensors.iter().try_for_each(|tensor| self.check(op, tensor))?;
        let references: Vec<&Tensor> = tensors.iter().collect();
        let mut access = Access::on_any(op, &references, &[])?;
        let addresses: Vec<u64> = (0..tensors.len()).map(|index| access.write_word(index)).collect();
        let state = &mut *self.state.lock();
        let current = self.memory.streams().current();
        let led = state.event.record(&current).and_then(|()| self.stream.wait(&state.event));
        led.map_err(|error| TensorError::memory(op, error.into()))?;
        // The tensors' memory may belong to another stream than the one that joins.
        cuda::record_use(op, self.memory, access.storages(), self.stream.id())?;
        state.tensors.extend(tensors.iter().cloned());
        let put = self.communicator.together(|| {
            let mut filled = addresses.iter().zip(tensors).filter(|(_, tensor)| tensor.numel() > 0);
            filled.try_for_each(|(address, tensor)| call(*address, tensor))
        });
        put.map_err(|error| TensorError::collective(op, error))?;
        drop(access);
        tensors.iter().for_each(|tensor| tensor.bump_version(op));
        Ok(())
    }

    fn check(&self, op: &'static str, tensor: &Tensor) -> Result<()> {
        let left = self.device();
        let right = tensor.device();
        if left != right {
            return Err(TensorError::Device { op, left, right });
        }
        if tensor.layout().overlap() != Overlap::No || tensor.layout().extent().len() != tensor.numel() {
            let sizes = tensor.sizes();
            let strides = tensor.strides();
            let reason = format!("contiguous() is needed first, got sizes {sizes:?} with strides {strides:?}");
            return Err(TensorError::argument(op, reason));
        }
        Ok(())
    }
}

impl Drop for Collective {
    /// Waits for unfinished exchanges, since NCCL abandons them with the group. If the thread panics, it first aborts
    /// the group, so that other devices do not wait for it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort();
        }
        // An error means that the context is lost; then no exchange is left.
        let _ = self.stream.synchronize();
    }
}
