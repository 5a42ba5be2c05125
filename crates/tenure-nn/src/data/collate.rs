//! Collation of examples into batches.

use tenure_core::{Purpose, Tag};
use tenure_tensor::{Tensor, TensorError};

/// A kind of example that can be collated into a batch. PyTorch's `default_collate`.
pub trait Collate: Send + Sized {
    /// A batch of examples.
    type Batch: Tensors + Send + 'static;

    /// Makes a batch of at least one example.
    ///
    /// # Errors
    /// The examples do not fit together; no memory.
    fn collate(examples: Vec<Self>) -> tenure_tensor::Result<Self::Batch>;
}

/// A batch, seen as the tensors that it consists of.
pub trait Tensors {
    /// Calls `change` with each tensor.
    ///
    /// # Errors
    /// The first error of `change`, which ends the calls.
    fn change(&mut self, change: &mut dyn FnMut(&mut Tensor) -> tenure_tensor::Result<()>)
    -> tenure_tensor::Result<()>;
}

impl Tensors for Tensor {
    fn change(
        &mut self,
        change: &mut dyn FnMut(&mut Tensor) -> tenure_tensor::Result<()>,
    ) -> tenure_tensor::Result<()> {
        change(self)
    }
}

impl<A: Tensors, B: Tensors> Tensors for (A, B) {
    fn change(
        &mut self,
        change: &mut dyn FnMut(&mut Tensor) -> tenure_tensor::Result<()>,
    ) -> tenure_tensor::Result<()> {
        self.0.change(change)?;
        self.1.change(change)
    }
}

/// Marks this thread's allocations as a batch's. All batches have one key, since threads read them in any order.
fn enter_batch() -> Purpose {
    crate::purpose::enter(Tag::Input, "input", "batch")
}

/// Stacks tensors of the same sizes along a new first dimension.
impl Collate for Tensor {
    type Batch = Self;

    fn collate(examples: Vec<Self>) -> tenure_tensor::Result<Self> {
        let _purpose = enter_batch();
        tenure_tensor::ops::stack(&examples.iter().collect::<Vec<_>>(), 0)
    }
}

/// Makes a tensor of one dimension from labels.
impl Collate for i64 {
    type Batch = Tensor;

    fn collate(examples: Vec<Self>) -> tenure_tensor::Result<Tensor> {
        let _purpose = enter_batch();
        Tensor::from_slice(&examples, &[examples.len()])
    }
}

/// Makes a tensor of two dimensions from rows of the same length.
impl Collate for Vec<i64> {
    type Batch = Tensor;

    fn collate(examples: Vec<Self>) -> tenure_tensor::Result<Tensor> {
        let _purpose = enter_batch();
        let length = examples.first().map_or(0, Vec::len);
        if let Some(other) = examples.iter().find(|example| example.len() != length) {
            let reason = format!("rows of {length} and of {} numbers cannot be one batch", other.len());
            return Err(TensorError::shape("collate", reason));
        }
        Tensor::from_slice(&examples.concat(), &[examples.len(), length])
    }
}

impl<A: Collate, B: Collate> Collate for (A, B) {
    type Batch = (A::Batch, B::Batch);

    fn collate(examples: Vec<Self>) -> tenure_tensor::Result<Self::Batch> {
        let (left, right) = examples.into_iter().unzip();
        Ok((A::collate(left)?, B::collate(right)?))
    }
}
