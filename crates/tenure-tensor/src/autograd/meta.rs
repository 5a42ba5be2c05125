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

/// A tensor's part in graphs. C10's `AutogradMeta`.
#[derive(Default)]
pub(crate) struct Meta {
    state: Mutex<MetaState>,
    /// Locked while a gradient is added to: several threads may run backward at once.
    accumulating: Mutex<()>,
}

#[derive(Default)]
struct MetaState {
    requires_grad: bool,
    /// The node that made the tensor.
    edge: Option<Edge>,
    grad: Option<Tensor>,
    /// A leaf's node, while a graph refers to it.
    accumulate: Weak<Node>,
    /// `None` until a hook is added. The tensor's node shares them.
    hooks: Option<Arc<Hooks>>,
    retains_grad: bool,
    /// Hooks that are called after the gradient was added to.
    accumulated: Option<Arc<Hooks>>,
    view: Option<View>,
}

/// The base of a view.
#[derive(Clone)]
pub(crate) struct View {
    /// A tensor that is no view itself.
    pub(crate) base: Tensor,
    /// The version of the storage that the view's edge was made for. If the storage has a later version, the view may
    /// have been written through its base or another view, and the edge has to be made anew from the base's.
    version: u64,
    /// Whether the view was made while gradients were off: the base's graph does not know of it.
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
            edge.node.adopt_hooks(edge.output, Arc::clone(&hooks));
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

    /// Returns where gradients of the tensor go: to the node that made it, or to the node of a leaf.
    pub(crate) fn gradient_edge(&self, tensor: &Tensor) -> Option<Edge> {
        let mut state = self.state.lock();
        if let Some(edge) = &state.edge {
            return Some(edge.clone());
        }
        if !state.requires_grad {
            return None;
        }
        let node = state.accumulate.upgrade().unwrap_or_else(|| {
            let node = Node::accumulate(tensor);
            if let Some(hooks) = &state.hooks {
                node.adopt_hooks(0, Arc::clone(hooks));
            }
            state.accumulate = Arc::downgrade(&node);
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

    pub(crate) fn accumulating(&self) -> MutexGuard<'_, ()> {
        self.accumulating.lock()
    }

    pub(crate) fn add_hook(&self, hook: GradHook) -> HookHandle {
        self.hooks().add(hook)
    }

    /// Sets the hook that is called after all others; it stays with the tensor when that is written to. Only the first
    /// call has an effect.
    pub(crate) fn retain_grad(&self, hook: GradHook) {
        if !std::mem::replace(&mut self.state.lock().retains_grad, true) {
            self.hooks().set_last(hook);
        }
    }

    pub(crate) fn add_accumulated_hook(&self, hook: GradHook) -> HookHandle {
        self.state.lock().accumulated.get_or_insert_default().add(hook)
    }

    /// Returns the hooks that are called after a leaf's gradient was added to.
    pub(crate) fn accumulated_hooks(&self) -> Option<Arc<Hooks>> {
        self.state.lock().accumulated.clone()
    }

    fn hooks(&self) -> Arc<Hooks> {
        let mut state = self.state.lock();
        if let Some(hooks) = &state.hooks {
            return Arc::clone(hooks);
        }
        let hooks = Arc::<Hooks>::default();
        let made_by = state.edge.clone().map(|edge| (edge.node, edge.output));
        if let Some((node, output)) = made_by.or_else(|| state.accumulate.upgrade().map(|node| (node, 0))) {
            node.adopt_hooks(output, Arc::clone(&hooks));
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

    /// Returns the base if the view's edge is for another version than `version`, and sets the edge's version to
    /// `version`. A view that was made while gradients were off keeps its edge.
    pub(crate) fn stale_base(&self, version: u64) -> Option<Tensor> {
        let mut state = self.state.lock();
        let view = state.view.as_mut().filter(|view| !view.in_no_grad && view.version != version)?;
        view.version = version;
        Some(view.base.clone())
    }
}
