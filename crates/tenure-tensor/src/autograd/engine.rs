//! The way back through a graph. PyTorch's `Engine`, on the calling thread.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;
use tenure_core::Site;

use super::accumulate::add_to;
use super::lane::Lane;
use super::mode::GradMode;
use super::node::{Edge, Grads, Node};
use crate::autocast::Autocast;
use crate::error::AutogradError;
use crate::{Result, Tensor};

/// How to go back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What the graph saved stays, to go back once more.
    pub retain_graph: bool,
    /// The gradients are differentiable themselves. Retains the graph too.
    pub create_graph: bool,
    /// [`grad`] gives none for an input that nothing depends on, rather than an error.
    pub allow_unused: bool,
}

/// Adds the gradients of `outputs` to [`Tensor::grad`] of the leaves that they were computed from. `grads` are those of
/// `outputs`; none stands for 1 where there is one element. PyTorch's `torch.autograd.backward`.
///
/// # Errors
/// An output that was not computed from what requires a gradient; a gradient of other sizes; saved tensors that were
/// freed or modified; those of formulas and hooks. Leaves may have got their gradients by then.
pub fn backward(outputs: &[&Tensor], grads: &[Option<&Tensor>], options: Options) -> Result<()> {
    Pass::new(roots(outputs, grads, options)?, None, options).run().map(drop)
}

/// The gradients of `outputs` with respect to `inputs`, and nothing else: no leaf's gradient changes. PyTorch's
/// `torch.autograd.grad`.
///
/// # Errors
/// Those of [`backward`], an input that requires no gradient, and [`AutogradError::Unused`].
pub fn grad(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    grads: &[Option<&Tensor>],
    options: Options,
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

fn roots(outputs: &[&Tensor], grads: &[Option<&Tensor>], options: Options) -> Result<Vec<(Edge, Tensor)>> {
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

type Id = *const Node;

/// One way back.
struct Pass {
    roots: Vec<(Edge, Tensor)>,
    /// What is to be found, if not the leaves' gradients.
    wanted: Option<Vec<Edge>>,
    options: Options,
    /// How many edges into a node are still to bring something.
    awaited: HashMap<Id, usize>,
    /// What has arrived.
    arrived: HashMap<Id, SmallVec<[Option<Tensor>; 2]>>,
    /// Nodes that all has arrived for, the latest first. The second number tells leaves apart.
    ready: BTreeMap<(u64, usize), Arc<Node>>,
    /// The nodes that lead to what is wanted.
    useful: HashSet<Id>,
}

impl Pass {
    fn new(roots: Vec<(Edge, Tensor)>, wanted: Option<Vec<Edge>>, options: Options) -> Self {
        let mut pass = Self {
            roots,
            wanted,
            options,
            awaited: HashMap::new(),
            arrived: HashMap::new(),
            ready: BTreeMap::new(),
            useful: HashSet::new(),
        };
        pass.explore();
        pass
    }

    /// Counts the edges into every node, and finds the useful ones.
    fn explore(&mut self) {
        let mut found: Vec<Arc<Node>> = Vec::new();
        let mut seen: HashSet<Id> = HashSet::new();
        let mut waiting: Vec<Arc<Node>> = self.roots.iter().map(|(edge, _)| Arc::clone(&edge.node)).collect();
        while let Some(node) = waiting.pop() {
            if !seen.insert(Arc::as_ptr(&node)) {
                continue;
            }
            for edge in node.edges().iter().flatten() {
                *self.awaited.entry(Arc::as_ptr(&edge.node)).or_default() += 1;
                waiting.push(Arc::clone(&edge.node));
            }
            found.push(node);
        }
        if let Some(wanted) = &self.wanted {
            self.useful.extend(wanted.iter().map(|edge| Arc::as_ptr(&edge.node)));
            // A node comes after all that it leads to were made, so the earliest first.
            found.sort_unstable_by_key(|node| node.leaf().map_or_else(|| node.sequence() + 1, |_| 0));
            for node in &found {
                if node.edges().iter().flatten().any(|edge| self.useful.contains(&Arc::as_ptr(&edge.node))) {
                    self.useful.insert(Arc::as_ptr(node));
                }
            }
        }
    }

    fn run(mut self) -> Result<Vec<Option<Tensor>>> {
        // Of a program without passes, each way back is one: its keys are the same every time.
        let _pass = Site::begin_pass();
        let _mode = GradMode::enter(self.options.create_graph);
        let _autocast = Autocast::enter(None);
        let mut captured: Vec<Option<Tensor>> = vec![None; self.wanted.as_ref().map_or(0, Vec::len)];
        for (edge, grad) in std::mem::take(&mut self.roots) {
            let id = Arc::as_ptr(&edge.node);
            let given_on = Lane::current(grad.device());
            self.add(&edge, grad, &given_on)?;
            if self.awaited.get(&id).copied().unwrap_or(0) == 0 {
                self.make_ready(edge.node);
            }
        }
        let mut leading = Vec::new();
        while let Some((_, node)) = self.ready.pop_last() {
            let id = Arc::as_ptr(&node);
            let mut grads = self.arrived.remove(&id).unwrap_or_default();
            grads.resize(node.outputs(), None);
            let lane = self.lane(&node);
            lane.run(|| node.run_hooks(&mut grads))?;
            if let Some(wanted) = &self.wanted {
                for (edge, found) in wanted.iter().zip(&mut captured) {
                    if Arc::as_ptr(&edge.node) == id {
                        found.clone_from(&grads[edge.output]);
                        leading.push(lane.clone());
                    }
                }
            }
            self.step(&node, grads, &lane)?;
        }
        leading.iter().try_for_each(Lane::lead_here)?;
        Ok(captured)
    }

    /// Runs a node and sends on what it gives.
    fn step(&mut self, node: &Arc<Node>, grads: SmallVec<[Option<Tensor>; 2]>, lane: &Lane) -> Result<()> {
        let _site = node.enter_site();
        if let Some(leaf) = node.leaf() {
            return match grads.into_iter().next().flatten() {
                Some(grad) if self.wanted.is_none() => lane.run(|| {
                    leaf.accumulate_grad(grad)?;
                    leaf.accumulated()
                }),
                _ => Ok(()),
            };
        }
        let leads = |edge: &Option<Edge>| edge.as_ref().is_some_and(|edge| self.is_useful(&edge.node));
        let needs: SmallVec<[bool; 3]> = node.edges().iter().map(leads).collect();
        let has_grad = grads.iter().any(Option::is_some);
        let given = if has_grad && needs.contains(&true) {
            let keeps = self.options.retain_graph || self.options.create_graph;
            let mut sums = self.lend(node, &needs, lane);
            let given = lane.run(|| node.run(&grads, &mut sums, &needs, keeps))?;
            self.put_back(node, sums);
            given
        } else {
            Grads::from_elem(None, node.edges().len())
        };
        drop(grads);
        for (edge, grad) in node.edges().iter().zip(given) {
            let Some(edge) = edge else { continue };
            if let Some(grad) = grad {
                self.add(edge, grad, lane)?;
            }
            let awaited = self.awaited.entry(Arc::as_ptr(&edge.node)).or_default();
            *awaited -= 1;
            if *awaited == 0 {
                self.make_ready(Arc::clone(&edge.node));
            }
        }
        Ok(())
    }

    /// What has arrived so far where a node's gradients go, if it lies on the node's own lane, for the node to add to.
    fn lend(&mut self, node: &Node, needs: &[bool], from: &Lane) -> Grads {
        if self.options.create_graph {
            return Grads::from_elem(None, needs.len());
        }
        let lent = node.edges().iter().zip(needs).map(|(edge, is_needed)| {
            let edge = edge.as_ref().filter(|edge| *is_needed && self.lane(&edge.node) == *from)?;
            self.arrived.get_mut(&Arc::as_ptr(&edge.node))?.get_mut(edge.output)?.take()
        });
        lent.collect()
    }

    /// Brings back what the node did not add to.
    fn put_back(&mut self, node: &Node, sums: Grads) {
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

    /// Brings a gradient, computed on a lane, to where it is used.
    fn add(&mut self, edge: &Edge, grad: Tensor, from: &Lane) -> Result<()> {
        let lane = self.lane(&edge.node);
        from.giving_to(&lane).lead_to(&lane)?;
        let arrived = self.arrived.entry(Arc::as_ptr(&edge.node)).or_default();
        if arrived.len() <= edge.output {
            arrived.resize(edge.output + 1, None);
        }
        match &mut arrived[edge.output] {
            Some(sum) => lane.run(|| add_to(sum, grad)),
            empty => {
                *empty = Some(grad);
                Ok(())
            }
        }
    }

    /// Where a node's gradients are needed: where its operation ran. Those that nothing is computed from are added up
    /// where the pass was asked for, so that nothing is left to wait for after it, and a capture of it is left by none.
    fn lane(&self, node: &Node) -> Lane {
        match node.leaf() {
            Some(leaf) => Lane::current(leaf.device()),
            None if node.edges().iter().flatten().any(|edge| self.is_useful(&edge.node)) => node.lane().clone(),
            None => node.lane().here(),
        }
    }

    fn is_useful(&self, node: &Arc<Node>) -> bool {
        self.wanted.is_none() || self.useful.contains(&Arc::as_ptr(node))
    }
}
