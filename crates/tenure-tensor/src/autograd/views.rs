//! Writes in place, and what they mean for views.
//!
//! A write to a tensor makes it the result of another node. If it is a view, its *base*, the tensor at the bottom of all
//! views, becomes the result of a node too: of what it was before, with a part replaced by what the view is now. The
//! other views of the base do not know of it; the version of the storage tells them, when they are asked for their edge,
//! to make it anew as a part of what the base is now. PyTorch's `CopySlices` and its regenerated views do the same.

use std::borrow::Cow;

use super::attach::{Draft, Save, Saver, attach, erased};
use super::mode::{is_grad_enabled, with_grad};
use super::node::{Context, Edge, Grads};
use crate::error::AutogradError;
use crate::{Layout, Result, Tensor};

/// Runs `write`, which writes to `target`, and makes `target` the result of the operation on `inputs`, of which `target`
/// is one if its value matters. `save` may be that of the operation that is not in place: it runs before the write, and
/// what it saves of the target is copied, while an output that it saves is the target afterwards.
///
/// # Errors
/// A leaf that requires a gradient, or a view of one, is written to; those of `write` and `save`, which change nothing,
/// but that an output that cannot be saved has been written.
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

/// [`attach_in_place`], compiled once, not for each operation.
fn attach_in_place_erased(
    target: &Tensor,
    op: &'static str,
    inputs: &[&Tensor],
    write: &mut dyn FnMut() -> Result<()>,
    save: &mut Save<'_>,
) -> Result<()> {
    let differentiates = is_grad_enabled() && target.dtype().is_floating();
    let view = target.view_of();
    let is_wanted = |tensor: &Tensor| tensor.requires_grad();
    let base_is_wanted = view.as_ref().is_some_and(|view| is_wanted(&view.base));
    if !differentiates || !(is_wanted(target) || base_is_wanted || inputs.iter().any(|input| is_wanted(input))) {
        write()?;
        target.bump_version(op);
        return Ok(());
    }
    let is_fixed = |tensor: &&Tensor| tensor.is_leaf() && tensor.requires_grad();
    let base = view.as_ref().map(|view| &view.base).filter(is_fixed);
    if let Some(leaf) = base.or(Some(target).filter(is_fixed)) {
        let (dtype, sizes) = (leaf.dtype(), leaf.sizes().to_vec());
        return Err(AutogradError::LeafModified { op, is_view: base.is_some(), dtype, sizes }.into());
    }
    if view.as_ref().is_some_and(|view| view.in_no_grad) {
        let reason = "a view that was made inside no_grad() is modified in place outside, and its base would not know of \
                      the gradient: make the view outside, or write inside";
        return Err(AutogradError::Other { node: op.to_owned(), reason: reason.to_owned() }.into());
    }
    let draft = Draft::new(Cow::Borrowed(op), inputs, Some(target), save)?;
    write()?;
    target.bump_version(op);
    target.set_edge(Edge { node: draft.finish(&[target])?, output: 0 });
    let Some(base) = view.map(|view| view.base) else { return Ok(()) };
    let place = Place::of(target, &base);
    let save = &mut erased(|_| Ok(place.formula()));
    let replaced = Draft::new(Cow::Borrowed("copy_slices"), &[&base, target], None, save)?;
    base.set_edge(Edge { node: replaced.finish(&[&base])?, output: 0 });
    Ok(())
}

/// The edge of a view as a part of what its base is now; none if that has no gradient.
pub(crate) fn view_edge(base: &Tensor, view: &Tensor) -> Option<Edge> {
    let layout = view.layout();
    let view = with_grad(|| base.as_strided(layout.sizes(), layout.strides(), layout.offset()));
    // It is in the storage: it is there already.
    view.ok()?.gradient_edge()
}

/// Where a view that was written to lies in its base.
#[derive(Clone)]
struct Place {
    base: Layout,
    view: Layout,
}

impl Place {
    /// Relative to the base's first element.
    fn of(view: &Tensor, base: &Tensor) -> Self {
        let first = base.layout().offset();
        let moved = |layout: &Layout| {
            let offset = layout.offset().saturating_sub(first);
            Layout::strided(layout.sizes(), layout.strides(), offset).expect("no larger than it was")
        };
        Self { base: moved(base.layout()), view: moved(view.layout()) }
    }

    /// A tensor of the base's sizes with the part replaced by another. Both may be of no dimension.
    fn replace(&self, whole: &Tensor, part: &Tensor) -> Result<Tensor> {
        let out = Tensor::empty_strided(self.base.clone(), part.dtype(), part.device())?;
        out.copy_raw(whole)?;
        out.alias(self.view.clone()).copy_raw(part)?;
        attach(out, "copy_slices", &[whole, part], |_| Ok(self.clone().formula()))
    }

    /// The gradients of that.
    fn formula(self) -> impl Fn(&Context<'_>) -> Result<Grads> + Send + Sync {
        move |context| {
            let grad = context.grad(0)?;
            let zero = || Tensor::zeros(&[], grad.dtype(), grad.device());
            let to_whole = context.give(0, || self.replace(&grad, &zero()?))?;
            let to_part = context.give(1, || {
                let laid_out = grad.copied("contiguous", self.base.clone(), grad.dtype())?;
                laid_out.as_strided(self.view.sizes(), self.view.strides(), self.view.offset())
            })?;
            Ok([to_whole, to_part].into_iter().collect())
        }
    }
}
