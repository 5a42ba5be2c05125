//! Training steps that are captured once and replayed.

use tenure_device::memory::{self, MemoryError};
use tenure_tensor::autograd::no_grad;
use tenure_tensor::cuda::Captured;
use tenure_tensor::{DType, Device, Result, Tensor};

use super::StepMemory;
use crate::data::Tensors;

/// A captured step, to be replayed with other batches.
pub(super) struct CapturedStep<B> {
    pub(super) captured: Captured,
    /// The batch that replays read.
    pub(super) batch: B,
    /// The loss that each replay writes.
    pub(super) loss: Tensor,
    /// The memory of tensors during the capture. Each replay uses the same memory and allocates none.
    pub(super) memory: StepMemory,
}

/// The sizes, dtype and device of each tensor of a batch. A captured step can be replayed for batches of its kind.
pub(super) type BatchKind = Vec<(Vec<usize>, DType, Device)>;

/// Returns the kind of a batch.
pub(super) fn kind(batch: &mut impl Tensors) -> Result<BatchKind> {
    let kind = |tensor: &Tensor| (tensor.sizes().to_vec(), tensor.dtype(), tensor.device());
    Ok(tensors(batch)?.iter().map(kind).collect())
}

impl<B: Tensors> CapturedStep<B> {
    /// Copies another batch of the same kind into the tensors that replays read.
    pub(super) fn set_batch(&mut self, batch: &mut B) -> Result<()> {
        let own = tensors(&mut self.batch)?;
        let given = tensors(batch)?;
        no_grad(|| own.iter().zip(&given).try_for_each(|(own, given)| own.copy_(given)))
    }
}

/// Releases the allocator's cached memory, which steps that were not captured used. The captured step has its own
/// memory pool.
pub(super) fn release_cached_memory(device: Device) -> Result<()> {
    let Some(memory) = memory::installed(device.index().into()) else { return Ok(()) };
    Ok(memory.allocator().release_cached().map_err(MemoryError::from)?)
}

/// Returns handles of all tensors of a batch.
fn tensors(batch: &mut impl Tensors) -> Result<Vec<Tensor>> {
    let mut all = Vec::new();
    batch.change(&mut |tensor| {
        all.push(tensor.clone());
        Ok(())
    })?;
    Ok(all)
}
