//! Sums of gradients, written in place where no other tensor shares the memory.

use tenure_core::{Layout, Overlap};

use super::mode::is_grad_enabled;
use crate::ops::pointwise::dense_like;
use crate::{Result, Tensor};

/// Adds a gradient to another of the same tensor. If no graph is recorded, it adds in place to one of the two that no
/// other owner has. An error changes nothing.
pub(crate) fn add_to(sum: &mut Tensor, mut grad: Tensor) -> Result<()> {
    if takes(sum, &grad) {
        return sum.add_raw(&grad);
    }
    if takes(&mut grad, sum) {
        grad.add_raw(sum)?;
        *sum = grad;
    } else {
        *sum = sum.add(&grad)?;
    }
    Ok(())
}

fn takes(target: &mut Tensor, other: &Tensor) -> bool {
    !target.requires_grad() && (target.sizes(), target.dtype()) == (other.sizes(), other.dtype()) && is_sole(target)
}

/// Returns whether a gradient can be overwritten: no graph is recorded, its elements do not overlap, and it has no
/// other owner.
fn is_sole(grad: &mut Tensor) -> bool {
    if is_grad_enabled() || grad.layout().overlap() != Overlap::No {
        return false;
    }
    // A view whose base has no other owner lets go of the base.
    let alias = grad.alias(grad.layout().clone());
    *grad = alias;
    grad.is_unique()
}

/// Returns a gradient as the first gradient of a tensor. The gradient itself is returned if it has no other owner, has
/// the tensor's memory order, and fills its storage. Otherwise it is copied into the order of the tensor's layout.
pub(crate) fn own(mut grad: Tensor, like: &Layout) -> Result<Tensor> {
    let layout = dense_like(grad.sizes(), Some(like))?;
    let is_whole = grad.storage().bytes() == grad.numel() * grad.dtype().size();
    // In a dimension of one element, the stride does not matter.
    let mut steps = grad.strides().iter().zip(layout.strides()).zip(grad.sizes());
    if is_whole && steps.all(|((own, other), size)| own == other || *size < 2) && is_sole(&mut grad) {
        return Ok(grad);
    }
    let dtype = grad.dtype();
    grad.copied("copy", layout, dtype)
}
