//! Sums of gradients, written in place where no other tensor shares the memory.

use tenure_core::{Layout, Overlap};

use super::mode::is_grad_enabled;
use crate::tensor::create::dense_like;
use crate::{Result, Tensor};

/// Adds `grad` to `sum`. If no graph is recorded and one of the two has no other owner, the addition is done in place
/// in that one. An error changes nothing.
pub(crate) fn add_to(sum: &mut Tensor, mut grad: Tensor) -> Result<()> {
    if can_add_in_place(sum, &grad) {
        return sum.add_raw(&grad);
    }
    if can_add_in_place(&mut grad, sum) {
        grad.add_raw(sum)?;
        *sum = grad;
    } else {
        *sum = sum.add(&grad)?;
    }
    Ok(())
}

/// Returns whether `other` can be added to `target` in place: they have the same sizes and dtype, and `target` can be
/// overwritten.
fn can_add_in_place(target: &mut Tensor, other: &Tensor) -> bool {
    !target.requires_grad()
        && (target.sizes(), target.dtype()) == (other.sizes(), other.dtype())
        && can_overwrite(target)
}

/// Returns whether a gradient can be overwritten: no graph is recorded, its elements do not overlap, and it has no
/// other owner.
fn can_overwrite(grad: &mut Tensor) -> bool {
    if is_grad_enabled() || grad.layout().overlap() != Overlap::No {
        return false;
    }
    // A view refers to its base. An alias does not, so the tensor is its storage's only owner if nothing else uses it.
    let alias = grad.alias(grad.layout().clone());
    *grad = alias;
    grad.is_unique()
}

/// Returns `grad` as a tensor that a leaf with the layout `like` can keep as its first gradient and add to in place.
/// Returns `grad` itself if it has no other owner, has the leaf's memory order, and fills its storage. Otherwise
/// returns a copy in the leaf's memory order.
pub(crate) fn into_leaf_grad(mut grad: Tensor, like: &Layout) -> Result<Tensor> {
    let layout = dense_like(grad.sizes(), Some(like))?;
    let is_whole = grad.storage().bytes() == grad.numel() * grad.dtype().size();
    // In a dimension of one element, the stride does not matter.
    let mut strides = grad.strides().iter().zip(layout.strides()).zip(grad.sizes());
    if is_whole && strides.all(|((own, other), size)| own == other || *size < 2) && can_overwrite(&mut grad) {
        return Ok(grad);
    }
    let dtype = grad.dtype();
    grad.copied("copy", layout, dtype)
}
