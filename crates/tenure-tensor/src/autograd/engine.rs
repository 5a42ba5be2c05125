//! The backward pass through a graph, on the calling thread. PyTorch's `Engine`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;
use tenure_core::Site;

use super::accumulate::add_to;
use super::device_stream::DeviceStream;
use super::mode::GradMode;
use super::node::{Edge, Grads, Node};
use crate::autocast::Autocast;
use crate::error::AutogradError;
use crate::{Result, Tensor, observe};

/// Options of a backward pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackwardOptions {
    /// Whether the saved tensors are kept, so that another backward pass can go through the same graph.
    pub retain_graph: bool,
    /// Whether the gradients are differentiable themselves. Retains the graph too.
    pub create_graph: bool,
    /// Whether [`grad`] returns `None` for an input that no output depends on, rather than an error.
    pub allow_unused: bool,
}

/// Computes the gradients of the leaves that `outputs` were computed from, and adds them to their [`Tensor::grad`].
/// `grads` are the gradients of `outputs`; `None` stands for 1 if the output has one element. PyTorch's
/// `torch.autograd.backward`.
///
/// # Errors
/// An output does not depend on a tensor that requires a gradient; a gradient has other sizes; saved tensors were freed
/// or modified; a formula or a hook fails. Some leaves may have got their gradients before the error.
pub fn backward(outputs: &[&Tensor], grads: &[Option<&Tensor>], options: BackwardOptions) -> Result<()> {
    Pass::new(roots(outputs, grads, options)?, None, options).run().map(drop)
}

/// Computes the gradients of `outputs` with respect to `inputs`, and changes no leaf's gradient. PyTorch's
/// `torch.autograd.grad`.
///
/// # Errors
/// The errors of [`backward`], an input that requires no gradient, and [`AutogradError::Unused`].
pub fn grad(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    grads: &[Option<&Tensor>],
    options: BackwardOptions,
) -> Result<Vec<Option<Tensor>>> {
    let mut wanted = Vec::new();
    for (index, input) in inputs.iter().enumerate() {
        wanted.push(input.gradient_edge().ok_or_else(|| {
            let reason = format!(
                "input {index} does not require a gradient: say requires_grad_(true) before the outputs are computed of it"
            );
            AutogradError::Other { node: "grad".into(), reason }
        })?);
    }
    let found = Pass::new(roots(outputs, grads, options)?, Some(wanted), options).run()?;
    if !options.allow_unused
        && let Some(index) = found.iter().position(Option::is_none)
    {
        return Err(AutogradError::Unused { index }.into());
    }
    Ok(found)
}

/// Returns the edge and the gradient that the pass begins with, for each output.
fn roots(outputs: &[&Tensor], grads: &[Option<&Tensor>], options: BackwardOptions) -> Result<Vec<(Edge, Tensor)>> {
    let mut roots = Vec::with_capacity(outputs.len());
    for (index, output) in outputs.iter().enumerate() {
        let edge = output.gradient_edge().ok_or(AutogradError::NoGraph { index })?;
        let grad = match grads.get(index).copied().flatten() {
            Some(grad) if options.create_graph => grad.clone(),
            Some(grad) => grad.detach(),
            None if output.numel() == 1 => Tensor::ones(output.sizes(), output.dtype(), output.device())?,
            None => return Err(AutogradError::NotScalar { sizes: output.sizes().to_vec() }.into()),
        };
        let grad = edge.node.check_root(edge.output, index, grad)?;
        roots.push((edge, grad));
    }
    Ok(roots)
}

/// A node's address, as its key in maps.
type NodeId = *const Node;

/// One backward pass.
struct Pass {
    roots: Vec<(Edge, Tensor)>,
    /// The edges whose gradients are returned. If `None`, gradients are added to the leaves.
    wanted: Option<Vec<Edge>>,
    options: BackwardOptions,
    /// For each node, the number of edges into it whose gradients have not arrived yet.
    pending_edges: HashMap<NodeId, usize>,
    /// For each node, the sums of the gradients of its outputs that have arrived so far.
    arrived: HashMap<NodeId, SmallVec<[Option<Tensor>; 2]>>,
    /// Nodes whose gradients have all arrived, ordered by sequence number: the latest runs first. The second
    /// number, the node's address, tells leaves apart.
    ready: BTreeMap<(u64, usize), Arc<Node>>,
    /// The nodes that lead to a wanted edge. Used only if `wanted` is not `None`.
    useful: HashSet<NodeId>,
}

impl Pass {
    fn new(roots: Vec<(Edge, Tensor)>, wanted: Option<Vec<Edge>>, options: BackwardOptions) -> Self {
        let mut pass = Self {
            roots,
            wanted,
            options,
            pending_edges: HashMap::new(),
            arrived: HashMap::new(),
            ready: BTreeMap::new(),
            useful: HashSet::new(),
        };
        pass.count_edges();
        pass
    }

    /// Counts the edges into every node, and finds the useful nodes.
    fn count_edges(&mut self) {
        let mut found: Vec<Arc<Node>> = Vec::new();
        let mut seen: HashSet<NodeId> = HashSet::new();
        let mut waiting: Vec<Arc<Node>> = self.roots.iter().map(|(edge, _)| Arc::clone(&edge.node)).collect();
        while let Some(node) = waiting.pop() {
            if !seen.insert(Arc::as_ptr(&node)) {
                continue;
            }
            for edge in node.edges().iter().flatten() {
                *self.pending_edges.entry(Arc::as_ptr(&edge.node)).or_default() += 1;
                waiting.push(Arc::clone(&edge.node));
            }
            found.push(node);
        }
        if let Some(wanted) = &self.wanted {
            self.useful.extend(wanted.iter().map(|edge| Arc::as_ptr(&edge.node)));
            // A node is made after all nodes that its edges lead to: visit leaves first, then nodes in the order they
            // were made.
            found.sort_unstable_by_key(|node| node.leaf().map_or_else(|| node.sequence() + 1, |_| 0));
            for node in &found {
                if node.edges().iter().flatten().any(|edge| self.useful.contains(&Arc::as_ptr(&edge.node))) {
                    self.useful.insert(Arc::as_ptr(node));
                }
            }
        }
    }

    /// Runs the pass and returns the gradients of the wanted edges.
    fn run(mut self) -> Result<Vec<Option<Tensor>>> {
        // If the program marks no passes, each backward pass counts as one, so that its allocation keys are the same
        // every time.
        let _pass = Site::begin_pass();
        let _mode = GradMode::enter(self.options.create_graph);
        let _autocast = Autocast::enter(None);
        let mut captured: Vec<Option<Tensor>> = vec![None; self.wanted.as_ref().map_or(0, Vec::len)];
        for (edge, grad) in std::mem::take(&mut self.roots) {
            let id = Arc::as_ptr(&edge.node);
            let stream = DeviceStream::current(grad.device());
            self.add(&edge, grad, &stream)?;
            if self.pending_edges.get(&id).copied().unwrap_or(0) == 0 {
                self.make_ready(edge.node);
            }
        }
        let mut streams_of_captured = Vec::new();
        while let Some((_, node)) = self.ready.pop_last() {
            let id = Arc::as_ptr(&node);
            let mut grads = self.arrived.remove(&id).unwrap_or_default();
            grads.resize(node.output_count(), None);
            let stream = self.stream_of(&node);
            stream.run(|| node.run_hooks(&mut grads))?;
            if let Some(wanted) = &self.wanted {
                for (edge, found) in wanted.iter().zip(&mut captured) {
                    if Arc::as_ptr(&edge.node) == id {
                        found.clone_from(&grads[edge.output]);
                        streams_of_captured.push(stream.clone());
                    }
                }
            }
            self.run_node(&node, grads, &stream)?;
        }
        streams_of_captured.iter().try_for_each(DeviceStream::make_current_wait)?;
        Ok(captured)
    }

    /// Runs a node and passes its gradients on to the next nodes.
    fn run_node(
        &mut self,
        node: &Arc<Node>,
        grads: SmallVec<[Option<Tensor>; 2]>,
        stream: &DeviceStream,
    ) -> Result<()> {
        let _site = node.enter_site();
        if let Some(leaf) = node.leaf() {
            return match grads.into_iter().next().flatten() {
                Some(grad) if self.wanted.is_none() => stream.run(|| {
                    let _section = observe::backward(node);
                    leaf.accumulate_grad(grad)?;
                    leaf.run_post_accumulate_hooks()
                }),
                _ => Ok(()),
            };
        }
        let needs: SmallVec<[bool; 3]> =
            node.edges().iter().map(|edge| edge.as_ref().is_some_and(|edge| self.is_useful(&edge.node))).collect();
        let has_grad = grads.iter().any(Option::is_some);
        let given = if has_grad && needs.contains(&true) {
            let keeps_saved = self.options.retain_graph || self.options.create_graph;
            let mut sums = self.take_sums(node, &needs, stream);
            let given = stream.run(|| {
                let _section = observe::backward(node);
                node.run(&grads, &mut sums, &needs, keeps_saved)
            })?;
            self.return_sums(node, sums);
            given
        } else {
            Grads::from_elem(None, node.edges().len())
        };
        drop(grads);
        for (edge, grad) in node.edges().iter().zip(given) {
            let Some(edge) = edge else { continue };
            if let Some(grad) = grad {
                self.add(edge, grad, stream)?;
            }
            let pending = self.pending_edges.entry(Arc::as_ptr(&edge.node)).or_default();
            *pending -= 1;
            if *pending == 0 {
                self.make_ready(Arc::clone(&edge.node));
            }
        }
        Ok(())
    }

    /// Takes, for each input whose gradient is needed, the sum of the gradients that have arrived for it so far, so
    /// that the node's formula can add to it. Takes only sums on the node's own stream.
    fn take_sums(&mut self, node: &Node, needs: &[bool], from: &DeviceStream) -> Grads {
        if self.options.create_graph {
            return Grads::from_elem(None, needs.len());
        }
        let sums = node.edges().iter().zip(needs).map(|(edge, is_needed)| {
            let edge = edge.as_ref().filter(|edge| *is_needed && self.stream_of(&edge.node) == *from)?;
            self.arrived.get_mut(&Arc::as_ptr(&edge.node))?.get_mut(edge.output)?.take()
        });
        sums.collect()
    }

    /// Puts back the sums that the node's formula did not take.
    fn return_sums(&mut self, node: &Node, sums: Grads) {
        for (edge, sum) in node.edges().iter().zip(sums) {
            if let (Some(edge), Some(sum)) = (edge, sum)
                && let Some(arrived) = self.arrived.get_mut(&Arc::as_ptr(&edge.node))
            {
                arrived[edge.output] = Some(sum);
            }
        }
    }

    fn make_ready(&mut self, node: Arc<Node>) {
        self.ready.insert((node.sequence(), Arc::as_ptr(&node).addr()), node);
    }

    /// Adds a gradient that was computed on the stream `from` to the sum at the edge's node.
    fn add(&mut self, edge: &Edge, grad: Tensor, from: &DeviceStream) -> Result<()> {
        let stream = self.stream_of(&edge.node);
        from.source_for(&stream).make_wait(&stream)?;
        let arrived = self.arrived.entry(Arc::as_ptr(&edge.node)).or_default();
        if arrived.len() <= edge.output {
            arrived.resize(edge.output + 1, None);
        }
        match &mut arrived[edge.output] {
            Some(sum) => stream.run(|| add_to(sum, grad)),
            empty => {
                *empty = Some(grad);
                Ok(())
            }
        }
    }

    /// Returns the stream on which the gradients of a node's outputs are added up and its formula runs: the stream that
    /// its operation ran on. For leaves, and for nodes from which no further gradient is computed, this is the calling
    /// thread's current stream. So no other stream has work left after the pass, and a graph capture of the pass stays
    /// on its stream.
    fn stream_of(&self, node: &Node) -> DeviceStream {
        match node.leaf() {
            Some(leaf) => DeviceStream::current(leaf.device()),
            None if node.edges().iter().flatten().any(|edge| self.is_useful(&edge.node)) => node.stream().clone(),
            None => node.stream().current_of_same_device(),
        }
    }

    /// Returns whether the pass needs the gradients that go to this node.
    fn is_useful(&self, node: &Arc<Node>) -> bool {
        self.wanted.is_none() || self.useful.contains(&Arc::as_ptr(node))
    }
}
