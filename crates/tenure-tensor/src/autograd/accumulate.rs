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
    !target.requires_grad() && (target.sizes(), target.dtype()) == (other.sizes(), other.dtype()) && is_sole(target)
}

/// Whether a gradient can be written to unseen: no graph is made of it, it does not share memory with itself, and nobody
/// else has it.
fn is_sole(grad: &mut Tensor) -> bool {
    if is_grad_enabled() || grad.layout().overlap() != Overlap::No {
        return false;
    }
    // Of a view the tensor that it shows goes, if only the view has it.
    let alias = grad.alias(grad.layout().clone());
    *grad = alias;
    grad.is_unique()
}

/// A gradient as a tensor's first: itself if nobody else has it, so that writing to it changes no other, and it lies as
/// the tensor does, and is all of its storage. Otherwise a copy in the order of the tensor's layout.
pub(crate) fn own(mut grad: Tensor, like: &Layout) -> Result<Tensor> {
    let layout = dense_like(grad.sizes(), Some(like))?;
    let is_whole = grad.storage().bytes() == grad.numel() * grad.dtype().size();
    // Of one element there is no next.
    let mut steps = grad.strides().iter().zip(layout.strides()).zip(grad.sizes());
    if is_whole && steps.all(|((own, other), size)| own == other || *size < 2) && is_sole(&mut grad) {
        return Ok(grad);
    }
    let dtype = grad.dtype();
    grad.copied("copy", layout, dtype)
}
