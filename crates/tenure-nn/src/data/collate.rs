//! Examples side by side.

use tenure_core::{Purpose, Tag};
use tenure_tensor::{Tensor, TensorError};

/// What examples are, and a batch of them is. PyTorch's `default_collate`.
pub trait Collate: Send + Sized {
    /// Several of them.
    type Batch: Tensors + Send + 'static;

    /// Makes a batch of examples, which are at least one.
    ///
    /// # Errors
    /// They do not go together; no memory.
    fn collate(examples: Vec<Self>) -> tenure_tensor::Result<Self::Batch>;
}

/// A batch, as the tensors that it is made of.
pub trait Tensors {
    /// Calls `change` with each.
    ///
    /// # Errors
    /// Those of `change`, of which the first ends it.
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

/// Says that this thread allocates for a batch. All have one key: threads read them in any order.
fn enter_batch() -> Purpose {
    crate::purpose::enter(Tag::Input, "input", "batch")
}

/// Tensors of the same sizes, along a new first dimension.
impl Collate for Tensor {
    type Batch = Self;

    fn collate(examples: Vec<Self>) -> tenure_tensor::Result<Self> {
        let _purpose = enter_batch();
        tenure_tensor::ops::stack(&examples.iter().collect::<Vec<_>>(), 0)
    }
}

/// Labels, as a tensor of one dimension.
impl Collate for i64 {
    type Batch = Tensor;

    fn collate(examples: Vec<Self>) -> tenure_tensor::Result<Tensor> {
        let _purpose = enter_batch();
        Tensor::from_slice(&examples, &[examples.len()])
    }
}

/// Rows of numbers of the same length.
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
