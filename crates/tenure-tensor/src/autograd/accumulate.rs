//! Sums of gradients, in the memory of one of them where nobody can see it.

use tenure_core::{Layout, Overlap};

use super::mode::is_grad_enabled;
use crate::ops::pointwise::dense_like;
use crate::{Result, Tensor};

/// Adds a gradient to another of the same tensor: in place of one that nobody else has, if no graph is made of it. An
/// error changes nothing.
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
    !is_grad_enabled()
        && !target.requires_grad()
        && (target.sizes(), target.dtype()) == (other.sizes(), other.dtype())
        && target.layout().overlap() == Overlap::No
        && target.is_unique()
}

/// A gradient as a tensor's first: itself if nobody else has it, so that writing to it changes no other. Otherwise, or if
/// it shares memory with itself, a copy in the order of the tensor's layout.
pub(crate) fn own(mut grad: Tensor, like: &Layout) -> Result<Tensor> {
    if !is_grad_enabled() && grad.layout().overlap() == Overlap::No {
        if grad.is_unique() {
            return Ok(grad.detach());
        }
        // A view of all of something may be the last that has it, as a product that was transposed.
        if grad.storage().bytes() == grad.numel() * grad.dtype().size() {
            grad = grad.detach();
            if grad.is_unique() {
                return Ok(grad);
            }
        }
    }
    let layout = dense_like(grad.sizes(), Some(like))?;
    let dtype = grad.dtype();
    grad.copied("copy", layout, dtype)
}
