//! The autograd state of a tensor.

use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tenure_core::{DType, Device};

use super::hooks::{GradHook, HookHandle, Hooks};
use super::node::{Edge, Node};
use crate::error::AutogradError;
use crate::{Result, Tensor};

/// The autograd state of a tensor: its edge, gradient and hooks. PyTorch's `c10::AutogradMeta`.
#[derive(Default)]
pub(crate) struct Meta {
    state: Mutex<MetaState>,
    /// Locked while a gradient is added to: several threads may run backward at once.
    grad_lock: Mutex<()>,
}

#[derive(Default)]
struct MetaState {
    requires_grad: bool,
    /// The node that made the tensor; `None` for a leaf.
    edge: Option<Edge>,
    grad: Option<Tensor>,
    /// A leaf's node, while a graph refers to it.
    leaf_node: Weak<Node>,
    /// The hooks on the tensor's gradient, shared with the tensor's node. `None` until a hook is added.
    hooks: Option<Arc<Hooks>>,
    retains_grad: bool,
    /// Hooks that are called after a gradient was added to a leaf's gradient.
    post_accumulate: Option<Arc<Hooks>>,
    view: Option<View>,
}

/// The base of a view.
#[derive(Clone)]
pub(crate) struct View {
    /// A tensor that is no view itself.
    pub(crate) base: Tensor,
    /// The version of the storage that the view's edge was made for. If the storage has a later version, the base or
    /// another view may have been written to, and the edge has to be made anew from the base's.
    version: u64,
    /// Whether the view was made while gradients were off, so that its base's graph does not include it.
    pub(crate) in_no_grad: bool,
}

/// The sizes, dtype and device of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorKind {
    pub(crate) sizes: SmallVec<[usize; 5]>,
    pub(crate) dtype: DType,
    pub(crate) device: Device,
}

impl TensorKind {
    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self { sizes: tensor.sizes().into(), dtype: tensor.dtype(), device: tensor.device() }
    }
}

impl fmt::Display for TensorKind {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} {:?} on {}", self.dtype, self.sizes, self.device)
    }
}

impl Meta {
    pub(crate) fn requires_grad(&self) -> bool {
        let state = self.state.lock();
        state.requires_grad || state.edge.is_some()
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.state.lock().edge.is_none()
    }

    pub(crate) fn set_requires_grad(&self, dtype: DType, requires_grad: bool) -> Result<()> {
        let mut state = self.state.lock();
        if state.edge.is_some() {
            return if requires_grad { Ok(()) } else { Err(AutogradError::NotLeaf.into()) };
        }
        if requires_grad && !dtype.is_floating() {
            return Err(AutogradError::NotFloating { dtype }.into());
        }
        state.requires_grad = requires_grad;
        Ok(())
    }

    pub(crate) fn edge(&self) -> Option<Edge> {
        self.state.lock().edge.clone()
    }

    /// Makes the tensor, at this version, the result of a node. Hooks stay with the node that made it before, except
    /// the hook that retains the gradient.
    pub(crate) fn set_edge(&self, edge: Edge, version: u64) {
        let mut state = self.state.lock();
        let retain = state.hooks.take().and_then(|hooks| hooks.take_last());
        if let Some(retain) = retain {
            let hooks = Arc::new(Hooks::default());
            hooks.set_last(retain);
            edge.node.add_hooks(edge.output, Arc::clone(&hooks));
            state.hooks = Some(hooks);
        }
        if let Some(view) = &mut state.view {
            view.version = version;
        }
        let replaced = state.edge.replace(edge);
        drop(state);
        // Dropping a graph may take long, and locks other tensors.
        drop(replaced);
    }

    /// Returns the edge that gradients of the tensor go to: the node that made it, or the node of a leaf, which is made
    /// if needed. `None` if the tensor requires no gradient.
    pub(crate) fn gradient_edge(&self, tensor: &Tensor) -> Option<Edge> {
        let mut state = self.state.lock();
        if let Some(edge) = &state.edge {
            return Some(edge.clone());
        }
        if !state.requires_grad {
            return None;
        }
        let node = state.leaf_node.upgrade().unwrap_or_else(|| {
            let node = Node::accumulate(tensor);
            if let Some(hooks) = &state.hooks {
                node.add_hooks(0, Arc::clone(hooks));
            }
            state.leaf_node = Arc::downgrade(&node);
            node
        });
        Some(Edge { node, output: 0 })
    }

    pub(crate) fn grad(&self) -> Option<Tensor> {
        self.state.lock().grad.clone()
    }

    pub(crate) fn set_grad(&self, grad: Option<Tensor>) -> Option<Tensor> {
        std::mem::replace(&mut self.state.lock().grad, grad)
    }

    /// Locks the gradient while it is added to.
    pub(crate) fn lock_grad(&self) -> MutexGuard<'_, ()> {
        self.grad_lock.lock()
    }

    pub(crate) fn add_hook(&self, hook: GradHook) -> HookHandle {
        self.hooks().add(hook)
    }

    /// Sets the hook that is called after all others. Unlike other hooks, it stays with the tensor after a write in
    /// place. Only the first call has an effect.
    pub(crate) fn retain_grad(&self, hook: GradHook) {
        if !std::mem::replace(&mut self.state.lock().retains_grad, true) {
            self.hooks().set_last(hook);
        }
    }

    pub(crate) fn add_post_accumulate_hook(&self, hook: GradHook) -> HookHandle {
        self.state.lock().post_accumulate.get_or_insert_default().add(hook)
    }

    /// Returns the hooks that are called after a gradient was added to a leaf's gradient.
    pub(crate) fn post_accumulate_hooks(&self) -> Option<Arc<Hooks>> {
        self.state.lock().post_accumulate.clone()
    }

    /// Returns the tensor's hooks, which are made and given to its node if there were none.
    fn hooks(&self) -> Arc<Hooks> {
        let mut state = self.state.lock();
        if let Some(hooks) = &state.hooks {
            return Arc::clone(hooks);
        }
        let hooks = Arc::<Hooks>::default();
        let made_by = state.edge.clone().map(|edge| (edge.node, edge.output));
        if let Some((node, output)) = made_by.or_else(|| state.leaf_node.upgrade().map(|node| (node, 0))) {
            node.add_hooks(output, Arc::clone(&hooks));
        }
        state.hooks = Some(Arc::clone(&hooks));
        hooks
    }

    /// Records the base that the tensor, at this version, is a view of.
    pub(crate) fn set_view(&self, base: Tensor, version: u64, in_no_grad: bool) {
        self.state.lock().view = Some(View { base, version, in_no_grad });
    }

    pub(crate) fn view(&self) -> Option<View> {
        self.state.lock().view.clone()
    }

    /// Returns the base if the view's edge must be made anew: it was made for another version of the storage than
    /// `version`, and the view was not made while gradients were off. Then records `version` as the edge's.
    pub(crate) fn stale_base(&self, version: u64) -> Option<Tensor> {
        let mut state = self.state.lock();
        let view = state.view.as_mut().filter(|view| !view.in_no_grad && view.version != version)?;
        view.version = version;
        Some(view.base.clone())
    }
}
