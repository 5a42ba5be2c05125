//! Functions that a program hangs into the graph.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::meta::Kind;
use crate::error::AutogradError;
use crate::scopes::Scopes;
use crate::{Result, Tensor};

/// Gets a gradient, and may give another in its place.
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
    /// Called after all others.
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

    /// What the hooks make of a gradient: another of the same sizes, dtype and device. `of` says whose hooks they are.
    pub(crate) fn run(&self, of: impl Fn() -> String, mut grad: Tensor) -> Result<Tensor> {
        // Not locked while they run: a hook may add or remove one.
        let hooks: Vec<GradHook> = {
            let list = self.list.lock();
            list.hooks.iter().map(|(_, hook)| hook).chain(&list.last).cloned().collect()
        };
        for hook in hooks {
            let Some(other) = hook(&grad)? else { continue };
            let (found, expected) = (Kind::of(&other), Kind::of(&grad));
            if found != expected {
                let reason = format!("a hook of {} gave a gradient of {found} for one of {expected}", of());
                return Err(AutogradError::Other { node: "register_hook".into(), reason }.into());
            }
            grad = other;
        }
        Ok(grad)
    }
}

/// A hook of a tensor. It stays when this is dropped.
#[derive(Clone, Debug)]
pub struct HookHandle {
    hooks: Weak<Hooks>,
    id: u64,
}

impl HookHandle {
    /// Takes the hook away.
    pub fn remove(&self) {
        if let Some(hooks) = self.hooks.upgrade() {
            hooks.list.lock().hooks.retain(|(id, _)| *id != self.id);
        }
    }
}

/// Makes something of a tensor that is saved for backward, such as a place on a disk.
pub(crate) type Pack = Arc<dyn Fn(&Tensor, SavedId) -> Result<Box<dyn Any + Send + Sync>> + Send + Sync>;
/// Makes the tensor of it again, as often as it is asked to.
pub(crate) type Unpack = Arc<dyn Fn(&(dyn Any + Send + Sync)) -> Result<Tensor> + Send + Sync>;

/// Which bytes a saved tensor is in, and when: two tensors of one id, layout and dtype have the same values. The
/// generation of a storage, unlike an address, is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SavedId {
    /// Of the storage.
    pub generation: tenure_core::Generation,
    /// How often the storage had been written to in place.
    pub version: u64,
}

impl SavedId {
    /// Of a tensor as it is now.
    pub fn of(tensor: &Tensor) -> Self {
        Self { generation: tensor.storage().generation(), version: tensor.version() }
    }
}

thread_local! {
    static SAVED_HOOKS: Scopes<(Pack, Unpack)> = const { Scopes::new() };
}

/// While it lives, what this thread saves for backward goes through `pack`, and through `unpack` when it is needed. The
/// latest that is alive applies. PyTorch's `saved_tensors_hooks`.
///
/// `pack` may not modify the tensor that it is given, which the program goes on to use: that is an error.
///
/// Parameters, and views of them, come too: whoever moves bytes leaves those that stay anyway where they are, told by
/// their storage. `unpack` may be called several times for one `pack`, if the graph is retained. Where what it would give was
/// [modified](AutogradError::Modified) since, it can say so with no node: the error then tells of the one that needs it.
#[must_use = "it holds for as long as it lives"]
pub struct SavedHooks {
    scope: u64,
    thread: PhantomData<*const ()>,
}

impl SavedHooks {
    /// Begins.
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

/// The pair that applies.
pub(crate) fn saved_hooks() -> Option<(Pack, Unpack)> {
    Scopes::latest(&SAVED_HOOKS)
}
