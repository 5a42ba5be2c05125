//! What a step's allocations are for.

use tenure_core::{Key, KeyId, Name, Purpose, Site, SiteGuard, Tag};
use tenure_tensor::{Result, Tensor, autograd};

/// Runs `forward` and says that what it allocates are activations. It is a pass ([`Site::begin_pass`]): what is called
/// several times in it is told apart.
pub fn forward<R>(forward: impl FnOnce() -> R) -> R {
    let _pass = Site::begin_pass();
    let _purpose = Purpose::enter(Tag::Activation, KeyId::NONE);
    forward()
}

/// Keeps a thread in a module while it lives.
#[must_use = "it holds for as long as it lives"]
pub struct ModuleGuard {
    _site: SiteGuard,
    /// Nobody had said what for.
    _purpose: Option<Purpose>,
}

/// Says that what this thread does is done by the module of that path: what it allocates are activations, unless somebody
/// said otherwise, and their keys follow from the path.
pub fn module(path: Name) -> ModuleGuard {
    let is_said = Purpose::current().0 != Tag::Unknown;
    let purpose = (!is_said).then(|| Purpose::enter(Tag::Activation, KeyId::NONE));
    ModuleGuard { _site: Site::enter_module(path), _purpose: purpose }
}

/// [`Tensor::backward`], of which what is allocated are gradients.
///
/// # Errors
/// Those of [`Tensor::backward`].
pub fn backward(loss: &Tensor) -> Result<()> {
    let _site = Site::default().enter_backward(Name::of("backward"));
    let _purpose = Purpose::enter(Tag::Gradient, KeyId::NONE);
    loss.backward()
}

/// The same of a loss whose gradient is not 1.
pub(crate) fn backward_by(loss: &Tensor, grad: f64) -> Result<()> {
    let _site = Site::default().enter_backward(Name::of("backward"));
    let _purpose = Purpose::enter(Tag::Gradient, KeyId::NONE);
    let grad = autograd::no_grad(|| loss.full_like(grad))?;
    autograd::backward(&[loss], &[Some(&grad)], autograd::Options::default())
}

/// Says that this thread allocates `tag` for the parameter or buffer `name`, for the operation `op`.
pub(crate) fn enter(tag: Tag, name: &str, op: &str) -> Purpose {
    let (module, role) = split(name);
    let key = Key { module: module.into(), op: op.into(), role: role.into(), occurrence: 0 };
    Purpose::enter(tag, KeyId::intern(key))
}

/// The path of the module that has the parameter or buffer `name`, and its name there.
pub(crate) fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}
