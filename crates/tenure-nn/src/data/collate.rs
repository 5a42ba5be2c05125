//! Examples side by side.

use tenure_core::{KeyId, Purpose, Tag};
use tenure_tensor::{Device, Tensor, TensorError};

/// What examples are, and a batch of them is. PyTorch's `default_collate`.
pub trait Collate: Send + Sized {
    /// Several of them.
    type Batch: Send + 'static;

    /// Makes a batch of examples, which are at least one.
    ///
    /// # Errors
    /// They do not go together; no memory.
    fn collate(examples: Vec<Self>) -> tenure_tensor::Result<Self::Batch>;

    /// The same batch on a device.
    ///
    /// # Errors
    /// No memory; the device cannot be used.
    fn to_device(batch: Self::Batch, device: Device) -> tenure_tensor::Result<Self::Batch>;
}

/// Tensors of the same sizes, along a new first dimension.
impl Collate for Tensor {
    type Batch = Self;

    fn collate(examples: Vec<Self>) -> tenure_tensor::Result<Self> {
        let _purpose = Purpose::enter(Tag::Input, KeyId::NONE);
        tenure_tensor::ops::stack(&examples.iter().collect::<Vec<_>>(), 0)
    }

    fn to_device(batch: Tensor, device: Device) -> tenure_tensor::Result<Tensor> {
        moved(&batch, device)
    }
}

/// Labels, as a tensor of one dimension.
impl Collate for i64 {
    type Batch = Tensor;

    fn collate(examples: Vec<Self>) -> tenure_tensor::Result<Tensor> {
        let _purpose = Purpose::enter(Tag::Input, KeyId::NONE);
        Tensor::from_slice(&examples, &[examples.len()])
    }

    fn to_device(batch: Tensor, device: Device) -> tenure_tensor::Result<Tensor> {
        moved(&batch, device)
    }
}

/// Rows of numbers of the same length.
impl Collate for Vec<i64> {
    type Batch = Tensor;

    fn collate(examples: Vec<Self>) -> tenure_tensor::Result<Tensor> {
        let _purpose = Purpose::enter(Tag::Input, KeyId::NONE);
        let length = examples.first().map_or(0, Vec::len);
        if let Some(other) = examples.iter().find(|example| example.len() != length) {
            let reason = format!("rows of {length} and of {} numbers cannot be one batch", other.len());
            return Err(TensorError::shape("collate", reason));
        }
        Tensor::from_slice(&examples.concat(), &[examples.len(), length])
    }

    fn to_device(batch: Tensor, device: Device) -> tenure_tensor::Result<Tensor> {
        moved(&batch, device)
    }
}

impl<A: Collate, B: Collate> Collate for (A, B) {
    type Batch = (A::Batch, B::Batch);

    fn collate(examples: Vec<Self>) -> tenure_tensor::Result<Self::Batch> {
        let (left, right) = examples.into_iter().unzip();
        Ok((A::collate(left)?, B::collate(right)?))
    }

    fn to_device((left, right): Self::Batch, device: Device) -> tenure_tensor::Result<Self::Batch> {
        Ok((A::to_device(left, device)?, B::to_device(right, device)?))
    }
}

fn moved(batch: &Tensor, device: Device) -> tenure_tensor::Result<Tensor> {
    let _purpose = Purpose::enter(Tag::Input, KeyId::NONE);
    batch.to_device(device)
}
