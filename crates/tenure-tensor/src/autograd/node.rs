//! Nodes of the graph: one for each recorded operation.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tenure_core::{Name, Site, SiteGuard};

use super::attach::SavedHandle;
use super::device_stream::DeviceStream;
use super::hooks::Hooks;
use super::meta::TensorKind;
use super::mode::Anomaly;
use super::saved::SavedTensor;
use crate::error::AutogradError;
use crate::{Device, Result, Tensor, TensorError};

/// The gradients of a node's inputs, in their order. `None` where the gradient is not needed, or no output depends on
/// the input.
pub type Grads = SmallVec<[Option<Tensor>; 3]>;

/// A recorded operation. It computes the gradients of its inputs from the gradients of its outputs.
pub struct Node {
    name: Cow<'static, str>,
    /// A number that grows from node to node in the order in which they are made. A leaf's is `u64::MAX`.
    sequence: u64,
    edges: InputEdges,
    inputs: SmallVec<[TensorKind; 2]>,
    outputs: SmallVec<[TensorKind; 1]>,
    /// The stream that the operation ran on.
    stream: DeviceStream,
    /// The program location where the operation was called.
    site: Site,
    work: NodeWork,
    /// The hooks of output tensors, each with the output's number.
    hooks: Mutex<OutputHooks>,
    /// The backtrace of the call that made the node, if anomaly mode was on.
    forward_backtrace: Option<String>,
}

/// The node that a gradient goes to, and the index of the node's output that it is the gradient of.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(crate) node: Arc<Node>,
    pub(crate) output: usize,
}

type InputEdges = SmallVec<[Option<Edge>; 2]>;
/// An operation's inputs: the edges that their gradients go to, and their kinds.
pub(super) type Inputs = (InputEdges, SmallVec<[TensorKind; 2]>);
type OutputHooks = SmallVec<[(usize, Arc<Hooks>); 1]>;
/// A function that computes the gradients of an operation's inputs.
pub(super) type Formula = Box<dyn Fn(&Context<'_>) -> Result<Grads> + Send + Sync>;

enum NodeWork {
    /// Adds gradients to the gradient of this leaf.
    Accumulate(Tensor),
    Formula {
        /// The saved tensors. `None` after they were freed.
        saved: Mutex<Option<Arc<Vec<SavedTensor>>>>,
        formula: Option<Formula>,
    },
}

/// The argument of a gradient formula: the gradients of the operation's outputs, and its saved tensors.
pub struct Context<'a> {
    node: &'a Arc<Node>,
    grads: &'a [Option<Tensor>],
    /// For each input, the sum of the gradients that other nodes computed for it so far, if it was handed out.
    sums: RefCell<&'a mut Grads>,
    saved: &'a [SavedTensor],
    needs: &'a [bool],
}

impl Context<'_> {
    /// Returns the gradient of an output, or `None` if nothing depends on that output.
    pub fn grad_if_any(&self, output: usize) -> Option<&Tensor> {
        self.grads[output].as_ref()
    }

    /// Returns the gradient of an output, or zeros if nothing depends on it.
    ///
    /// # Errors
    /// No memory is left for the zeros.
    pub fn grad(&self, output: usize) -> Result<Tensor> {
        match &self.grads[output] {
            Some(grad) => Ok(grad.clone()),
            None => {
                let TensorKind { sizes, dtype, device } = &self.node.outputs[output];
                Tensor::zeros(sizes, *dtype, *device)
            }
        }
    }

    /// Returns whether the gradient of an input is needed.
    pub fn needs(&self, input: usize) -> bool {
        self.needs[input]
    }

    /// Returns `gradient()` if the gradient of `input` is needed, else `None`.
    ///
    /// # Errors
    /// The errors of `gradient`.
    pub fn give(&self, input: usize, gradient: impl FnOnce() -> Result<Tensor>) -> Result<Option<Tensor>> {
        if self.needs(input) { gradient().map(Some) } else { Ok(None) }
    }

    /// Takes the sum of the gradients that other operations computed for `input` so far, if there is one. The formula
    /// must add it to the gradient that it returns, which saves a pass over memory, and must not write to it.
    pub(crate) fn take_sum(&self, input: usize) -> Option<Tensor> {
        self.sums.borrow_mut()[input].take()
    }

    /// Returns zeros as the gradient of `input`, if that gradient is needed.
    ///
    /// # Errors
    /// No memory is left for the zeros.
    pub fn zeros(&self, input: usize) -> Result<Option<Tensor>> {
        let TensorKind { sizes, dtype, device } = &self.node.inputs[input];
        self.give(input, || Tensor::zeros(sizes, *dtype, *device))
    }

    /// Returns a saved tensor.
    ///
    /// # Errors
    /// The tensor was modified since ([`Modified`](AutogradError::Modified)); the errors of
    /// [`SavedHooks`](super::SavedHooks).
    pub fn unpack(&self, saved: impl Into<Option<SavedHandle>>) -> Result<Tensor> {
        let Some(saved) = saved.into() else {
            let reason = "a tensor is needed that was not saved".to_owned();
            return Err(AutogradError::Other { node: self.node.name.to_string(), reason }.into());
        };
        self.saved[saved.index()].unpack(&self.node.name, Some(self.node))
    }
}

impl Node {
    /// Returns the name of the operation.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns, for each input, the node that its gradient goes to and the index of that node's output. `None` for
    /// inputs that require no gradient. PyTorch's `next_functions`.
    pub fn next(&self) -> impl Iterator<Item = Option<(&Arc<Self>, usize)>> {
        self.edges.iter().map(|edge| edge.as_ref().map(|edge| (&edge.node, edge.output)))
    }

    /// Makes the node of a leaf.
    pub(super) fn accumulate(leaf: &Tensor) -> Arc<Self> {
        Arc::new(Self {
            name: Cow::Borrowed("AccumulateGrad"),
            sequence: u64::MAX,
            edges: SmallVec::new(),
            inputs: SmallVec::new(),
            outputs: std::iter::once(TensorKind::of(leaf)).collect(),
            stream: DeviceStream::current(leaf.device()),
            site: Site::current(),
            work: NodeWork::Accumulate(leaf.clone()),
            hooks: Mutex::default(),
            forward_backtrace: None,
        })
    }

    /// Makes the node of an operation: `inputs` has the edges and kinds of its inputs.
    pub(super) fn formula(
        name: Cow<'static, str>,
        inputs: Inputs,
        outputs: &[&Tensor],
        saved: Vec<SavedTensor>,
        formula: Formula,
    ) -> Arc<Self> {
        static SEQUENCE: AtomicU64 = AtomicU64::new(0);
        let (edges, inputs) = inputs;
        Arc::new(Self {
            name,
            sequence: SEQUENCE.fetch_add(1, Ordering::Relaxed),
            edges,
            inputs,
            outputs: outputs.iter().map(|output| TensorKind::of(output)).collect(),
            stream: DeviceStream::current(outputs.first().map_or(Device::CPU, |output| output.device())),
            site: Site::current(),
            work: NodeWork::Formula { saved: Mutex::new(Some(Arc::new(saved))), formula: Some(formula) },
            hooks: Mutex::default(),
            forward_backtrace: Anomaly::is_on().then(|| std::backtrace::Backtrace::force_capture().to_string()),
        })
    }

    pub(super) fn edges(&self) -> &[Option<Edge>] {
        &self.edges
    }

    pub(super) fn output_count(&self) -> usize {
        self.outputs.len()
    }

    /// Returns a number that grows from node to node in the order in which they are made. A leaf's is `u64::MAX`.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the stream that the operation ran on; for a leaf, the stream that was current when its node was made.
    pub(super) fn stream(&self) -> &DeviceStream {
        &self.stream
    }

    /// Attributes the allocations of this thread to the backward of this node's operation.
    pub(super) fn enter_site(&self) -> SiteGuard {
        let op = match &self.name {
            Cow::Borrowed(name) => Name::of(name),
            Cow::Owned(name) => Name::new(name),
        };
        self.site.enter_backward(op)
    }

    /// Returns the leaf, if this is the node of one.
    pub(super) fn leaf(&self) -> Option<&Tensor> {
        match &self.work {
            NodeWork::Accumulate(leaf) => Some(leaf),
            NodeWork::Formula { .. } => None,
        }
    }

    pub(super) fn add_hooks(&self, output: usize, hooks: Arc<Hooks>) {
        self.hooks.lock().push((output, hooks));
    }

    /// Runs the hooks of the output tensors on their gradients, and replaces the gradients by the hooks' results.
    pub(super) fn run_hooks(&self, grads: &mut [Option<Tensor>]) -> Result<()> {
        let hooks = self.hooks.lock().clone();
        for (output, hooks) in hooks {
            if let Some(grad) = grads[output].take() {
                grads[output] = Some(hooks.run(
                    || match self.leaf() {
                        Some(_) => "a leaf".to_owned(),
                        None => format!("output {output} of {}", self.name),
                    },
                    grad,
                )?);
            }
        }
        Ok(())
    }

    /// Checks that `grad`, number `index` of the gradients passed to `backward`, has the sizes of this node's output
    /// `output`, and converts it to the output's dtype.
    pub(super) fn check_root(&self, output: usize, index: usize, grad: Tensor) -> Result<Tensor> {
        let kind = &self.outputs[output];
        if grad.sizes() != &kind.sizes[..] {
            let found = grad.sizes().to_vec();
            let expected = kind.sizes.to_vec();
            return Err(AutogradError::GradientSizes { node: "backward".into(), index, found, expected }.into());
        }
        convert_to_kind(&self.name, output, kind, grad)
    }

    /// Computes the gradients of the inputs. If the formula takes an input's sum from `sums`, the gradient includes
    /// that sum. Frees the saved tensors unless `keeps_saved`.
    pub(super) fn run(
        self: &Arc<Self>,
        grads: &[Option<Tensor>],
        sums: &mut Grads,
        needs: &[bool],
        keeps_saved: bool,
    ) -> Result<Grads> {
        let NodeWork::Formula { saved, formula: Some(formula) } = &self.work else { return Ok(Grads::new()) };
        let present = {
            let mut saved = saved.lock();
            // A node without saved tensors can run any number of times.
            let frees = !keeps_saved && saved.as_ref().is_some_and(|saved| !saved.is_empty());
            if frees { saved.take() } else { saved.clone() }
        };
        let saved = present.ok_or_else(|| AutogradError::Freed { node: self.name.to_string() })?;
        let given = formula(&Context { node: self, grads, sums: RefCell::new(sums), saved: &saved, needs })?;
        if given.len() != self.edges.len() {
            let found = given.len();
            let expected = self.edges.len();
            return Err(AutogradError::GradientCount { node: self.name.to_string(), found, expected }.into());
        }
        let fitted = given.into_iter().enumerate().map(|(input, grad)| match grad {
            Some(grad) if needs[input] => convert_to_kind(&self.name, input, &self.inputs[input], grad).map(Some),
            _ => Ok(None),
        });
        let fitted: Grads = fitted.collect::<Result<_>>()?;
        if Anomaly::is_on() {
            self.look_for_nan(&fitted)?;
        }
        Ok(fitted)
    }

    fn look_for_nan(&self, grads: &[Option<Tensor>]) -> Result<()> {
        for (index, grad) in grads.iter().enumerate() {
            let Some(grad) = grad else { continue };
            if super::no_grad(|| grad.isnan()?.any(&[], false)?.item::<bool>())? {
                let forward = self
                    .forward_backtrace
                    .as_ref()
                    .map_or_else(String::new, |at| format!("; the operation was called at\n{at}"));
                return Err(AutogradError::NotANumber { node: self.name.to_string(), index, forward }.into());
            }
        }
        Ok(())
    }
}

/// Converts a gradient to the sizes and dtype in `kind`, those of the tensor that it belongs to. Sums the dimensions
/// that were broadcast. `node` and `index` are for errors.
fn convert_to_kind(node: &str, index: usize, kind: &TensorKind, mut grad: Tensor) -> Result<Tensor> {
    if grad.sizes() != &kind.sizes[..] {
        let fits = grad.rank() >= kind.sizes.len()
            && kind.sizes.iter().rev().zip(grad.sizes().iter().rev()).all(|(to, from)| to == from || *to == 1);
        if !fits {
            let found = grad.sizes().to_vec();
            let expected = kind.sizes.to_vec();
            return Err(AutogradError::GradientSizes { node: node.to_owned(), index, found, expected }.into());
        }
        grad = grad.sum_to(&kind.sizes)?;
    }
    if grad.dtype() != kind.dtype {
        grad = grad.to_dtype(kind.dtype)?;
    }
    // A scalar on the CPU may take part in operations on any device.
    if grad.rank() == 0 && kind.device.is_cpu() {
        grad = grad.to_device(kind.device)?;
    }
    if grad.device() != kind.device {
        return Err(TensorError::Device { op: "backward", left: kind.device, right: grad.device() });
    }
    Ok(grad)
}

/// The edges, formula and saved tensors of a dropped node, which are dropped next.
type NodeContents = (InputEdges, Option<Formula>, Option<Arc<Vec<SavedTensor>>>);

impl Drop for Node {
    /// Drops nodes one after the other rather than recursively: a graph may be deeper than the stack.
    fn drop(&mut self) {
        thread_local! {
            static TO_DROP: RefCell<Option<Vec<NodeContents>>> = const { RefCell::new(None) };
        }
        let NodeWork::Formula { saved, formula } = &mut self.work else { return };
        let contents = (std::mem::take(&mut self.edges), formula.take(), saved.get_mut().take());
        let is_outermost = TO_DROP.try_with(|to_drop| {
            let mut to_drop = to_drop.borrow_mut();
            let is_outermost = to_drop.is_none();
            to_drop.get_or_insert_default().push(contents);
            is_outermost
        });
        // While a thread ends, its list may be gone already. Then nodes are dropped recursively.
        if is_outermost.unwrap_or(false) {
            while let Some(next) = TO_DROP.with_borrow_mut(|to_drop| to_drop.as_mut().and_then(Vec::pop)) {
                drop(next);
            }
            TO_DROP.set(None);
        }
    }
}
