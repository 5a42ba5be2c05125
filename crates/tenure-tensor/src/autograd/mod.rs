//! Automatic differentiation over a graph that operations record as they run.
//!
//! An operation on tensors that require a gradient [attaches](attach) a [`Node`] to its output. The node has the
//! formula of the gradient, the tensors that the formula needs (*saved* tensors), and for each input an edge to the
//! node that made the input. A *leaf*, which no operation made, has a node that adds the gradients it gets to
//! [`Tensor::grad`](crate::Tensor::grad). [`backward`] visits the nodes from last to first.
//!
//! Formulas call the same operations, so that they have gradients themselves if the graph is kept
//! ([`BackwardOptions::create_graph`]). Nothing here is `unsafe`.
//!
//! The behaviour is that of PyTorch's `torch/csrc/autograd`, on one thread: the one that calls `backward`. On a device,
//! a node's formula runs on the stream that its operation ran on. Where a gradient goes from one stream to another, the
//! second stream waits on the device. Gradients are added to leaves on the stream that is current where `backward` is
//! called.

mod accumulate;
mod attach;
mod checkpoint;
mod device_stream;
mod engine;
mod gradcheck;
mod hooks;
mod meta;
mod mode;
mod node;
pub(crate) mod recipe;
mod saved;
mod views;

pub(crate) use accumulate::{add_to, into_leaf_grad};
pub use attach::{SavedHandle, Saver, attach, attach_all};
pub use checkpoint::{checkpoint, is_recomputing, rehearse};
pub use engine::{BackwardOptions, backward, grad};
pub use gradcheck::{Gradcheck, gradcheck, gradgradcheck};
pub use hooks::{HookHandle, SavedHooks, SavedId};
pub(crate) use meta::{Meta, TensorKind, View};
pub use mode::{Anomaly, GradMode, is_grad_enabled, no_grad, set_grad_enabled, with_grad};
pub(crate) use node::Edge;
pub use node::{Context, Grads, Node};
pub use recipe::{Ingredient, Recipe, RecipeBook, Recipes};
pub(crate) use views::{attach_in_place, view_edge};
