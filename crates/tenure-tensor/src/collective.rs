//! Sums over devices, and tensors that all devices get from one.

use parking_lot::Mutex;
use tenure_core::Overlap;
use tenure_device::collective::{CollectiveError, Communicator};
use tenure_device::memory::{self, DeviceMemory};
use tenure_device::{Event, EventKind, Priority, Stream};

pub use tenure_device::collective::Reduction;

use crate::{Access, Device, Result, Tensor, TensorError, cuda};

/// A device's part in a group of devices that exchange tensors, on a stream of its own: beside what the device
/// computes, until that is [joined](Self::join). All devices make the same calls, in the same order, each from a thread
/// of its own. To drop it waits for what is on its way.
pub struct Collective {
    communicator: Communicator,
    memory: &'static DeviceMemory,
    stream: Stream,
    state: Mutex<State>,
}

struct State {
    event: Event,
    /// What is on its way.
    tensors: Vec<Tensor>,
}

impl Collective {
    /// The parts of a group of CUDA devices, in their order.
    ///
    /// # Errors
    /// A device that is not there, or twice; no NCCL.
    pub fn group(devices: &[Device]) -> Result<Vec<Self>> {
        const OP: &str = "collective";
        if let Some(other) = devices.iter().find(|device| device.is_cpu()) {
            return Err(TensorError::argument(OP, format!("{other} exchanges nothing: CUDA devices are expected")));
        }
        let memory = |device: &Device| memory::device(device.index());
        let memories = devices.iter().map(memory).collect::<std::result::Result<Vec<_>, _>>();
        let memories = memories.map_err(|error| TensorError::memory(OP, error))?;
        let drivers: Vec<_> = memories.iter().map(|memory| memory.driver().clone()).collect();
        let group = Communicator::group(&drivers).map_err(|error| TensorError::collective(OP, error))?;
        let part = |(communicator, memory): (_, &'static DeviceMemory)| {
            // Before what is computed: the other devices wait for it.
            let stream = memory.streams().pooled(Priority::High);
            let stream = stream.map_err(|error| TensorError::memory(OP, error.into()))?;
            let event = Event::new(memory.driver().clone(), EventKind::Order);
            Ok(Self { communicator, memory, stream, state: Mutex::new(State { event, tensors: Vec::new() }) })
        };
        group.into_iter().zip(memories).map(part).collect()
    }

    /// The device's place in the group, from 0.
    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// Devices of the group.
    pub fn size(&self) -> usize {
        self.communicator.size()
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.communicator.device()
    }

    /// Makes every element what `reduction` makes of all devices', when the calling thread's stream has come to this
    /// call. Until that is [joined](Self::join), nobody may use the tensors. They are put on their way as one.
    ///
    /// # Errors
    /// Tensors of another device, with gaps, or of a dtype that is not exchanged; the group has ended.
    pub fn all_reduce(&self, tensors: &[Tensor], reduction: Reduction) -> Result<()> {
        self.put("all_reduce", tensors, |address, tensor| {
            self.communicator.all_reduce(address, tensor.numel(), tensor.dtype(), reduction, self.stream.id())
        })
    }

    /// Makes every element that of the device of rank `root`; otherwise as [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// As there.
    pub fn broadcast(&self, tensors: &[Tensor], root: usize) -> Result<()> {
        self.put("broadcast", tensors, |address, tensor| {
            let bytes = tensor.numel() * tensor.dtype().size();
            self.communicator.broadcast(address, bytes, root, self.stream.id())
        })
    }

    /// Makes later work of the calling thread's stream wait, on the device, for all that was put on its way until now.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn join(&self) -> Result<()> {
        let state = &mut *self.state.lock();
        let current = self.memory.streams().current();
        let joined = state.event.record(&self.stream).and_then(|()| current.wait(&state.event));
        // Their memory is reused behind that wait.
        state.tensors.clear();
        joined.map_err(|error| TensorError::memory("join", error.into()))
    }

    /// Ends the group, for all: see [`Communicator::abort`].
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
        let addresses: Vec<u64> = (0..tensors.len()).map(|index| access.write_ptr(index).addr() as u64).collect();
        let state = &mut *self.state.lock();
        let current = self.memory.streams().current();
        let led = state.event.record(&current).and_then(|()| self.stream.wait(&state.event));
        led.map_err(|error| TensorError::memory(op, error.into()))?;
        // Should their memory be of another stream than the one that joins.
        cuda::record_use(op, self.memory, access.storages(), self.stream.id())?;
        state.tensors.extend(tensors.iter().cloned());
        let each = || addresses.iter().zip(tensors).filter(|(_, tensor)| tensor.numel() > 0);
        let put = self.communicator.together(|| each().try_for_each(|(address, tensor)| call(*address, tensor)));
        put.map_err(|error| TensorError::collective(op, error))?;
        drop(access);
        tensors.iter().for_each(|tensor| tensor.bump_version(op));
        Ok(())
    }

    fn check(&self, op: &'static str, tensor: &Tensor) -> Result<()> {
        let (left, right) = (self.device(), tensor.device());
        if left != right {
            return Err(TensorError::Device { op, left, right });
        }
        if tensor.layout().overlap() != Overlap::No || tensor.layout().extent().len() != tensor.numel() {
            let (sizes, strides) = (tensor.sizes(), tensor.strides());
            let reason = format!("contiguous() is needed first, got sizes {sizes:?} with strides {strides:?}");
            return Err(TensorError::argument(op, reason));
        }
        Ok(())
    }
}

impl Drop for Collective {
    /// Waits until what is on its way is there, since NCCL gives that up with the group. Others wait for a thread that
    /// panics no longer.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort();
        }
        // A context that is lost has nothing on its way.
        let _ = self.stream.synchronize();
    }
}
