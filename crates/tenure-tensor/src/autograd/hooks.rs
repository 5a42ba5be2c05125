//! Hooks: the user's functions that run on gradients and on saved tensors.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::meta::TensorKind;
use crate::error::AutogradError;
use crate::scopes::Scopes;
use crate::{Result, Tensor};

/// A function that gets a gradient and may return another in its place.
pub(crate) type GradHook = Arc<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;

/// The hooks of a tensor, in the order in which they were added.
#[derive(Default)]
pub(crate) struct Hooks {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    added: u64,
    hooks: Vec<(u64, GradHook)>,
    /// A hook that is called after all others.
    last: Option<GradHook>,
}

impl Hooks {
    pub(crate) fn add(self: &Arc<Self>, hook: GradHook) -> HookHandle {
        let mut list = self.list.lock();
        list.added += 1;
        let id = list.added;
        list.hooks.push((id, hook));
        HookHandle { hooks: Arc::downgrade(self), id }
    }

    pub(crate) fn set_last(&self, hook: GradHook) {
        self.list.lock().last = Some(hook);
    }

    pub(crate) fn take_last(&self) -> Option<GradHook> {
        self.list.lock().last.take()
    }

    /// Runs the hooks on a gradient and returns the result, which has the same sizes, dtype and device. `of` describes
    /// the hooks' tensor in errors.
    pub(crate) fn run(&self, of: impl Fn() -> String, mut grad: Tensor) -> Result<Tensor> {
        // The list is not locked while hooks run, since a hook may add or remove a hook.
        let hooks: Vec<GradHook> = {
            let list = self.list.lock();
            list.hooks.iter().map(|(_, hook)| hook).chain(&list.last).cloned().collect()
        };
        for hook in hooks {
            let Some(other) = hook(&grad)? else { continue };
            let found = TensorKind::of(&other);
            let expected = TensorKind::of(&grad);
            if found != expected {
                let reason = format!("a hook of {} gave a gradient of {found} for one of {expected}", of());
                return Err(AutogradError::Other { node: "register_hook".into(), reason }.into());
            }
            grad = other;
        }
        Ok(grad)
    }
}

/// A handle that can remove a hook of a tensor. Dropping it leaves the hook in place.
#[derive(Clone, Debug)]
pub struct HookHandle {
    hooks: Weak<Hooks>,
    id: u64,
}

impl HookHandle {
    /// Removes the hook.
    pub fn remove(&self) {
        if let Some(hooks) = self.hooks.upgrade() {
            hooks.list.lock().hooks.retain(|(id, _)| *id != self.id);
        }
    }
}

/// A function that converts a tensor saved for backward into another form, for example a file on disk.
pub(crate) type Pack = Arc<dyn Fn(&Tensor, SavedId) -> Result<Box<dyn Any + Send + Sync>> + Send + Sync>;
/// A function that converts the packed form back into the tensor. It can be called any number of times.
pub(crate) type Unpack = Arc<dyn Fn(&(dyn Any + Send + Sync)) -> Result<Tensor> + Send + Sync>;

/// The identity of a storage's contents at one version. Two tensors with the same id, layout and dtype have the same
/// values. The generation of a storage, unlike an address, is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SavedId {
    /// The storage's generation.
    pub generation: tenure_core::Generation,
    /// The number of writes in place to the storage so far.
    pub version: u64,
}

impl SavedId {
    /// Returns the id of a tensor as it is now.
    pub fn of(tensor: &Tensor) -> Self {
        Self { generation: tensor.storage().generation(), version: tensor.version() }
    }
}

thread_local! {
    static SAVED_HOOKS: Scopes<(Pack, Unpack)> = const { Scopes::new() };
}

/// A scope in which this thread's saved tensors go through `pack` when they are saved, and through `unpack` when they
/// are needed. The latest scope that is alive applies. PyTorch's `saved_tensors_hooks`.
///
/// `pack` must not modify its tensor, which the program goes on to use: that is an error.
///
/// Parameters and views of parameters are packed too. A hook that moves saved bytes elsewhere should not move those; it
/// recognises them by their storage. `unpack` may be called several times for one `pack`, if the graph is retained. If
/// the tensor was [modified](AutogradError::Modified) since, `unpack` can return that error with an empty node name:
/// the node that needs the tensor is then filled in.
#[must_use = "it holds for as long as it lives"]
pub struct SavedHooks {
    scope: u64,
    /// A scope belongs to the thread that entered it.
    thread: PhantomData<*const ()>,
}

impl SavedHooks {
    /// Begins the scope.
    pub fn enter<P: Send + Sync + 'static>(
        pack: impl Fn(&Tensor, SavedId) -> Result<P> + Send + Sync + 'static,
        unpack: impl Fn(&P) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Self {
        let pack: Pack = Arc::new(move |tensor, id| Ok(Box::new(pack(tensor, id)?) as Box<dyn Any + Send + Sync>));
        let unpack: Unpack = Arc::new(move |packed| {
            let packed = packed.downcast_ref::<P>();
            unpack(packed.expect("what one pair packs, it unpacks"))
        });
        Self { scope: Scopes::enter(&SAVED_HOOKS, (pack, unpack)), thread: PhantomData }
    }
}

impl Drop for SavedHooks {
    fn drop(&mut self) {
        Scopes::leave(&SAVED_HOOKS, self.scope);
    }
}

/// Returns the pack and unpack functions of this thread's latest [`SavedHooks`] scope, if any.
pub(crate) fn saved_hooks() -> Option<(Pack, Unpack)> {
    Scopes::latest(&SAVED_HOOKS)
}
