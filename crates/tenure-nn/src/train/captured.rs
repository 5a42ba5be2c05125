//! Steps that are captured once, and replayed.

use tenure_device::memory::{self, MemoryError};
use tenure_tensor::autograd::no_grad;
use tenure_tensor::cuda::Captured;
use tenure_tensor::{DType, Device, Result, Tensor};

use super::StepMemory;
use crate::data::Tensors;

/// A step, to be made again with other batches.
pub(super) struct CapturedStep<B> {
    pub(super) captured: Captured,
    /// What it reads.
    pub(super) batch: B,
    /// What each replay writes.
    pub(super) loss: Tensor,
    /// What tensors held while it was captured: each replay uses the same memory, and asks for none.
    pub(super) memory: StepMemory,
}

/// What a batch must have in common with the one of a captured step.
pub(super) type Kind = Vec<(Vec<usize>, DType, Device)>;

pub(super) fn kind(batch: &mut impl Tensors) -> Result<Kind> {
    let kind = |tensor: &Tensor| (tensor.sizes().to_vec(), tensor.dtype(), tensor.device());
    Ok(tensors(batch)?.iter().map(kind).collect())
}

impl<B: Tensors> CapturedStep<B> {
    /// Brings another batch of the same kind to where it is read.
    pub(super) fn bring(&mut self, batch: &mut B) -> Result<()> {
        let (own, given) = (tensors(&mut self.batch)?, tensors(batch)?);
        no_grad(|| own.iter().zip(&given).try_for_each(|(own, given)| own.copy_(given)))
    }
}

/// Gives back what a step held that was not captured: the captured one has memory of its own.
pub(super) fn give_back(device: Device) -> Result<()> {
    let Some(memory) = memory::installed(device.index().into()) else { return Ok(()) };
    Ok(memory.allocator().release_cached().map_err(MemoryError::from)?)
}

/// Handles of all tensors of a batch.
fn tensors(batch: &mut impl Tensors) -> Result<Vec<Tensor>> {
    let mut all = Vec::new();
    batch.change(&mut |tensor| {
        all.push(tensor.clone());
        Ok(())
    })?;
    Ok(all)
}
