//! The purposes of a step's allocations.

use tenure_core::{Key, KeyId, Name, Purpose, Site, SiteGuard, Tag};
use tenure_tensor::{Result, Tensor, autograd};

/// Runs `forward` with its allocations marked as activations. It is a pass ([`Site::begin_pass`]): several calls of one
/// module in it are told apart.
pub fn forward<R>(forward: impl FnOnce() -> R) -> R {
    let _pass = Site::begin_pass();
    let _purpose = Purpose::enter(Tag::Activation, KeyId::NONE);
    forward()
}

/// A guard that keeps a thread in a module while it lives.
#[must_use = "it holds for as long as it lives"]
pub struct ModuleGuard {
    _site: SiteGuard,
    /// The purpose, if the thread had none before.
    _purpose: Option<Purpose>,
}

/// Enters the module of a path on this thread. Allocations get keys from the path, and are marked as activations unless
/// the thread has another purpose already.
pub fn module(path: Name) -> ModuleGuard {
    let is_said = Purpose::current().0 != Tag::Unknown;
    let purpose = (!is_said).then(|| Purpose::enter(Tag::Activation, KeyId::NONE));
    ModuleGuard { _site: Site::enter_module(path), _purpose: purpose }
}

/// Runs [`Tensor::backward`] with its allocations marked as gradients.
///
/// # Errors
/// The errors of [`Tensor::backward`].
pub fn backward(loss: &Tensor) -> Result<()> {
    let _site = Site::default().enter_backward(Name::of("backward"));
    let _purpose = Purpose::enter(Tag::Gradient, KeyId::NONE);
    loss.backward()
}

/// Runs [`backward`] for a loss whose own gradient is `grad` instead of 1.
pub(crate) fn backward_by(loss: &Tensor, grad: f64) -> Result<()> {
    let _site = Site::default().enter_backward(Name::of("backward"));
    let _purpose = Purpose::enter(Tag::Gradient, KeyId::NONE);
    let grad = autograd::no_grad(|| loss.full_like(grad))?;
    autograd::backward(&[loss], &[Some(&grad)], autograd::BackwardOptions::default())
}

/// Marks this thread's allocations as `tag` of the parameter or buffer `name`, for the operation `op`.
pub(crate) fn enter(tag: Tag, name: &str, op: &str) -> Purpose {
    let (module, role) = split(name);
    let key = Key { module: module.into(), op: op.into(), role: role.into(), occurrence: 0 };
    Purpose::enter(tag, KeyId::intern(key))
}

/// Splits the name of a parameter or buffer into its module's path and its name there.
pub(crate) fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}
