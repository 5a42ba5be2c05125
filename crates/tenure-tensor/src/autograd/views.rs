//! Gradients of writes in place, also through views.
//!
//! A write in place makes a tensor the result of a new node. If the tensor is a view, its *base*, the tensor that it is
//! a view of and that is no view itself, becomes the result of a node too, which replaces the view's elements in the
//! base. Other views of the base notice the write when they are next asked for their edge: the version of the storage
//! has changed, so they make their edge anew, as a view of the base as it is now. PyTorch's `CopySlices` and its
//! regenerated views do the same.

use std::borrow::Cow;

use super::attach::{NodeDraft, Save, Saver, attach, erased};
use super::mode::{is_grad_enabled, with_grad};
use super::node::{Context, Edge, Grads};
use crate::error::AutogradError;
use crate::{Layout, Result, Tensor};

/// Runs `write`, which writes to `target`, and makes `target` the result of the operation on `inputs`. `target` must
/// be one of the inputs if the result depends on its earlier value. `save` can be the same as for the operation that is
/// not in place. It runs before the write: if it saves the target as an input, a copy is saved; if it saves the output,
/// the target is saved after the write.
///
/// # Errors
/// `target` is a leaf that requires a gradient, a view of one, or a view that was made inside `no_grad`; the errors of
/// `write` and `save`. After an error nothing has changed, except that `target` was written to if the error came from
/// saving the output.
pub(crate) fn attach_in_place<F>(
    target: &Tensor,
    op: &'static str,
    inputs: &[&Tensor],
    write: impl FnOnce() -> Result<()>,
    save: impl FnOnce(&mut Saver) -> Result<F>,
) -> Result<()>
where
    F: Fn(&Context<'_>) -> Result<Grads> + Send + Sync + 'static,
{
    let mut write = Some(write);
    let write = &mut || write.take().map_or(Ok(()), |write| write());
    attach_in_place_erased(target, op, inputs, write, &mut erased(save))
}

/// Does the work of [`attach_in_place`]. It is compiled once, not for each operation.
fn attach_in_place_erased(
    target: &Tensor,
    op: &'static str,
    inputs: &[&Tensor],
    write: &mut dyn FnMut() -> Result<()>,
    save: &mut Save<'_>,
) -> Result<()> {
    let differentiates = is_grad_enabled() && target.dtype().is_floating();
    let view = target.view_of();
    let base = view.as_ref().map(|view| &view.base);
    let has_grad = [target].into_iter().chain(base).chain(inputs.iter().copied()).any(Tensor::requires_grad);
    if !differentiates || !has_grad {
        write()?;
        target.bump_version(op);
        return Ok(());
    }
    let mut written = base.into_iter().chain(Some(target));
    if let Some(leaf) = written.find(|tensor| tensor.is_leaf() && tensor.requires_grad()) {
        let is_view = base.is_some_and(|base| base.is_same(leaf));
        let dtype = leaf.dtype();
        let sizes = leaf.sizes().to_vec();
        return Err(AutogradError::LeafModified { op, is_view, dtype, sizes }.into());
    }
    if view.as_ref().is_some_and(|view| view.in_no_grad) {
        let reason = "a view that was made inside no_grad() is modified in place outside, and its base would not know of \
                      the gradient: make the view outside, or write inside";
        return Err(AutogradError::Other { node: op.to_owned(), reason: reason.to_owned() }.into());
    }
    let draft = NodeDraft::new(Cow::Borrowed(op), inputs, Some(target), save)?;
    write()?;
    target.bump_version(op);
    target.set_edge(Edge { node: draft.finish(&[target])?, output: 0 });
    let Some(base) = view.map(|view| view.base) else { return Ok(()) };
    let layouts = ViewLayouts::of(target, &base);
    let save = &mut erased(|_| Ok(layouts.formula()));
    let replaced = NodeDraft::new(Cow::Borrowed("copy_slices"), &[&base, target], None, save)?;
    base.set_edge(Edge { node: replaced.finish(&[&base])?, output: 0 });
    Ok(())
}

/// Makes the edge of `view` anew, as a view of `base` as it is now. `None` if the base requires no gradient.
pub(crate) fn view_edge(base: &Tensor, view: &Tensor) -> Option<Edge> {
    let layout = view.layout();
    let view = with_grad(|| base.as_strided(layout.sizes(), layout.strides(), layout.offset()));
    // The view lies within the storage: `as_strided` succeeds.
    view.ok()?.gradient_edge()
}

/// The layouts of a base and of a view of it that was written to.
#[derive(Clone)]
struct ViewLayouts {
    base: Layout,
    view: Layout,
}

impl ViewLayouts {
    /// Returns both layouts, with offsets relative to the base's first element.
    fn of(view: &Tensor, base: &Tensor) -> Self {
        let first = base.layout().offset();
        let [base, view] = [base, view].map(|tensor| {
            let offset = tensor.layout().offset().saturating_sub(first);
            Layout::strided(tensor.sizes(), tensor.strides(), offset).expect("no larger than it was")
        });
        Self { base, view }
    }

    /// Returns a tensor of the base's sizes with the view's elements replaced by `part`. Both tensors are broadcast, so
    /// they may be scalars.
    fn replace(&self, whole: &Tensor, part: &Tensor) -> Result<Tensor> {
        let out = Tensor::empty_strided(self.base.clone(), part.dtype(), part.device())?;
        out.copy_raw(whole)?;
        out.alias(self.view.clone()).copy_raw(part)?;
        attach(out, "copy_slices", &[whole, part], |_| Ok(self.clone().formula()))
    }

    /// Returns the formula of the gradients of [`replace`](Self::replace).
    fn formula(self) -> impl Fn(&Context<'_>) -> Result<Grads> + Send + Sync {
        move |context| {
            let grad = context.grad(0)?;
            let to_whole =
                context.give(0, || self.replace(&grad, &Tensor::zeros(&[], grad.dtype(), grad.device())?))?;
            let to_part = context.give(1, || {
                let laid_out = grad.copied("contiguous", self.base.clone(), grad.dtype())?;
                laid_out.as_strided(self.view.sizes(), self.view.strides(), self.view.offset())
            })?;
            Ok([to_whole, to_part].into_iter().collect())
        }
    }
}
