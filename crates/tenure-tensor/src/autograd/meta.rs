//! What autograd knows of a tensor.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tenure_core::{DType, Device, Layout};

use super::hooks::{GradHook, HookHandle, Hooks};
use super::node::{Edge, Node};
use crate::error::AutogradError;
use crate::{Result, Tensor};

/// A tensor's part in graphs. C10's `AutogradMeta`.
#[derive(Default)]
pub(crate) struct Meta {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    requires_grad: bool,
    /// What made it.
    edge: Option<Edge>,
    grad: Option<Tensor>,
    /// A leaf's node, while a graph has it.
    accumulate: Weak<Node>,
    hooks: Arc<Hooks>,
    retains_grad: bool,
    /// The tensor that it is a view of, and its own layout.
    view: Option<(Tensor, Layout)>,
}

/// Sizes, dtype and device of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) sizes: SmallVec<[usize; 5]>,
    pub(crate) dtype: DType,
    pub(crate) device: Device,
}

impl Kind {
    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self { sizes: tensor.sizes().into(), dtype: tensor.dtype(), device: tensor.device() }
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

    /// Makes the tensor the result of a node.
    pub(crate) fn set_edge(&self, edge: Edge) {
        let mut state = self.state.lock();
        edge.node.adopt_hooks(edge.output, Arc::clone(&state.hooks));
        let replaced = state.edge.replace(edge);
        drop(state);
        drop(replaced);
    }

    /// Where gradients of the tensor go: the node that made it, or that of a leaf.
    pub(crate) fn gradient_edge(&self, tensor: &Tensor) -> Option<Edge> {
        let mut state = self.state.lock();
        if let Some(edge) = &state.edge {
            return Some(edge.clone());
        }
        if !state.requires_grad {
            return None;
        }
        let node = state.accumulate.upgrade().unwrap_or_else(|| {
            let node = Node::accumulate(tensor, Arc::clone(&state.hooks));
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

    pub(crate) fn add_hook(&self, hook: GradHook) -> HookHandle {
        let hooks = Arc::clone(&self.state.lock().hooks);
        hooks.add(hook)
    }

    /// Whether this is the first time.
    pub(crate) fn retain_grad(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().retains_grad, true)
    }

    pub(crate) fn set_view(&self, base: Tensor, layout: Layout) {
        self.state.lock().view = Some((base, layout));
    }

    pub(crate) fn view(&self) -> Option<(Tensor, Layout)> {
        self.state.lock().view.clone()
    }
}
