//! Asynchronous copies from the host to a device.

use tenure_device::memory::{self, DeviceMemory};
use tenure_device::pinned::{PinnedConfig, PinnedPool};
use tenure_device::{Event, EventKind, Priority, Stream, StreamGuard};

use crate::autograd::no_grad;
use crate::transfer::dense;
use crate::{Access, Device, Result, Tensor, TensorError};

const OP: &str = "upload";

/// A copier of CPU tensors to a device, through pinned memory and on a stream of its own: copies run concurrently with
/// other work of the device, and while the host goes on.
///
/// ```no_run
/// use tenure_tensor::{Device, Tensor, Uploader};
///
/// let uploader = Uploader::new(Device::cuda(0), 1 << 30)?;
/// let batch = uploader.upload(&Tensor::from_slice(&[1.0_f32, 2.0], &[2])?)?;
/// // ... work on the batch before ...
/// let batch = batch.take()?;
/// # Ok::<(), tenure_tensor::TensorError>(())
/// ```
pub struct Uploader {
    memory: &'static DeviceMemory,
    stream: Stream,
    pool: PinnedPool,
}

/// A tensor whose copy to the device may not have finished.
pub struct Upload {
    tensor: Tensor,
    memory: &'static DeviceMemory,
    arrived: Event,
}

impl Uploader {
    /// Creates an uploader to a CUDA device that pins at most `limit_bytes` bytes.
    ///
    /// # Errors
    /// The device does not exist; a driver call failed.
    pub fn new(device: Device, limit_bytes: u64) -> Result<Self> {
        if device.is_cpu() {
            return Err(TensorError::argument(OP, "tensors are brought to a CUDA device, got the CPU"));
        }
        let memory = memory::device(device.index()).map_err(|error| TensorError::memory(OP, error))?;
        let stream = memory.streams().pooled(Priority::Default);
        let stream = stream.map_err(|error| TensorError::memory(OP, error.into()))?;
        let pool = PinnedPool::new(
            memory.driver().clone(),
            PinnedConfig { user: "uploads", ..PinnedConfig::new(limit_bytes) },
        );
        Ok(Self { memory, stream, pool })
    }

    /// Copies a tensor, dense and in the same order in memory. Returns when its elements have been read: the host may
    /// then change the tensor.
    ///
    /// # Errors
    /// The tensor is not on the CPU; the device or pinned memory is exhausted; a driver call failed.
    pub fn upload(&self, tensor: &Tensor) -> Result<Upload> {
        if !tensor.device().is_cpu() {
            return Err(TensorError::argument(OP, format!("a tensor on the CPU is needed, not {}", tensor.device())));
        }
        let dense = no_grad(|| dense(OP, tensor))?;
        let _stream = StreamGuard::new(&self.stream);
        let out = Tensor::unset(dense.layout().clone(), tensor.dtype(), self.memory.device())?;
        let bytes = out.numel() * out.dtype().size();
        let mut buffer = self.pool.allocate(bytes).map_err(|error| TensorError::memory(OP, error.into()))?;
        let mut access = Access::on_any(OP, &[&out], &[&dense])?;
        if bytes > 0 {
            // SAFETY: the tensor is dense, so it is this many bytes from its first element, locked by `access`.
            buffer.copy_from_slice(unsafe { std::slice::from_raw_parts(access.read_ptr(0), bytes) });
            let target = access.write_word(0);
            // SAFETY: the buffer is dropped unchanged, and the pool does not reuse it before the stream has passed the
            // copy.
            let copied = unsafe {
                self.memory.driver().copy_to_device_async(target, buffer.as_ptr(), bytes as u64, self.stream.id())
            };
            copied.map_err(|error| TensorError::device(OP, error))?;
            buffer.record_stream(self.stream.id());
        }
        drop(access);
        let mut arrived = Event::new(self.memory.driver().clone(), EventKind::Order);
        arrived.record(&self.stream).map_err(|error| TensorError::memory(OP, error.into()))?;
        Ok(Upload { tensor: out, memory: self.memory, arrived })
    }
}

impl Upload {
    /// Returns the tensor, which must not be used before [`take`](Self::take).
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Returns the tensor and makes the thread's current stream wait, on the device, for the copy.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn take(self) -> Result<Tensor> {
        let current = self.memory.streams().current();
        self.arrived.wait(&current).map_err(|error| TensorError::memory(OP, error.into()))?;
        Ok(self.tensor)
    }
}
