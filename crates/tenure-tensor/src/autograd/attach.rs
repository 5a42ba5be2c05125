//! Attaching a node to an operation's outputs.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::meta::TensorKind;
use super::mode::{is_grad_enabled, no_grad};
use super::node::{Context, Edge, Formula, Grads, Inputs, Node};
use super::saved::SavedTensor;
use crate::{Result, Tensor};

/// Makes `output` the result of the operation `name` on `inputs`, if one of them requires a gradient and gradients are
/// on in this thread. `save` saves the tensors that the formula needs and returns the formula.
///
/// A formula returns one gradient for each input. As in PyTorch, a gradient whose sizes the input broadcasts to is
/// summed to the input's sizes, and a gradient of another dtype is converted to the input's. So a formula need not
/// handle broadcasting or type promotion, and a gradient that is too large by mistake is no error.
///
/// ```
/// use tenure_tensor::{Tensor, autograd};
///
/// /// x³, with a formula of its own.
/// fn cube(x: &Tensor) -> tenure_tensor::Result<Tensor> {
///     let cubed = autograd::no_grad(|| x.mul(x)?.mul(x))?;
///     autograd::attach(cubed, "cube", &[x], |saver| {
///         let x = saver.save(x)?;
///         Ok(move |context: &autograd::Context<'_>| {
///             let x = context.unpack(x)?;
///             Ok([Some(context.grad(0)?.mul(&x.mul(&x)?.mul(3.0)?)?)].into_iter().collect())
///         })
///     })
/// }
///
/// let x = Tensor::from_slice(&[2.0_f64], &[])?.requires_grad_(true)?;
/// cube(&x)?.backward()?;
/// assert_eq!(x.grad().expect("a leaf").item::<f64>()?, 12.0);
/// # Ok::<(), tenure_tensor::TensorError>(())
/// ```
///
/// # Errors
/// The errors of `save`.
pub fn attach<F>(
    output: Tensor,
    name: impl Into<Cow<'static, str>>,
    inputs: &[&Tensor],
    save: impl FnOnce(&mut Saver) -> Result<F>,
) -> Result<Tensor>
where
    F: Fn(&Context<'_>) -> Result<Grads> + Send + Sync + 'static,
{
    attach_all(&[&output], name, inputs, save)?;
    Ok(output)
}

/// Makes several fresh `outputs` the results of one operation, as [`attach`] does for one.
///
/// # Errors
/// The errors of `save`.
pub fn attach_all<F>(
    outputs: &[&Tensor],
    name: impl Into<Cow<'static, str>>,
    inputs: &[&Tensor],
    save: impl FnOnce(&mut Saver) -> Result<F>,
) -> Result<()>
where
    F: Fn(&Context<'_>) -> Result<Grads> + Send + Sync + 'static,
{
    attach_erased(outputs, name.into(), inputs, &mut erased(save))
}

/// A function that saves the tensors that a formula needs, and returns the formula. It is called at most once.
pub(super) type Save<'a> = dyn FnMut(&mut Saver) -> Result<Formula> + 'a;

/// Converts one operation's `save` to the type [`Save`], so that the functions that take it are compiled once, not for
/// each operation.
pub(super) fn erased<F>(save: impl FnOnce(&mut Saver) -> Result<F>) -> impl FnMut(&mut Saver) -> Result<Formula>
where
    F: Fn(&Context<'_>) -> Result<Grads> + Send + Sync + 'static,
{
    let mut save = Some(save);
    move |saver| {
        let save = save.take().expect("it is called at most once");
        Ok(Box::new(save(saver)?))
    }
}

fn attach_erased(outputs: &[&Tensor], name: Cow<'static, str>, inputs: &[&Tensor], save: &mut Save<'_>) -> Result<()> {
    if !is_grad_enabled() || !inputs.iter().any(|input| input.requires_grad()) {
        return Ok(());
    }
    let node = NodeDraft::new(name, inputs, None, save)?.finish(outputs)?;
    for (output, tensor) in outputs.iter().enumerate().filter(|(_, tensor)| tensor.dtype().is_floating()) {
        tensor.set_edge(Edge { node: Arc::clone(&node), output });
    }
    Ok(())
}

/// A handle to a saved tensor: its index among the node's saved tensors.
#[derive(Clone, Copy, Debug)]
pub struct SavedHandle(usize);

impl SavedHandle {
    pub(super) fn index(self) -> usize {
        self.0
    }
}

/// Saves the tensors that an operation's gradient formula needs. [`attach`] passes it to its `save` argument.
pub struct Saver {
    /// The saved tensors so far. `None` for an output that is still to be written.
    saved: Vec<Option<SavedTensor>>,
    /// Whether each input requires a gradient.
    needs: SmallVec<[bool; 3]>,
    /// The tensor that the operation is about to write to in place.
    target: Option<Tensor>,
}

impl Saver {
    /// Returns whether this input requires a gradient.
    pub fn needs(&self, input: usize) -> bool {
        self.needs[input]
    }

    /// Saves a tensor that is not an output of the operation. If the operation is about to overwrite the tensor, a copy
    /// is saved.
    ///
    /// # Errors
    /// The errors of [`SavedHooks`](super::SavedHooks).
    pub fn save(&mut self, tensor: &Tensor) -> Result<SavedHandle> {
        let saved = if self.target.as_ref().is_some_and(|target| target.storage().is_alias_of(tensor.storage())) {
            let copy = no_grad(|| tensor.copy())?;
            SavedTensor::input(&tensor.gradient_edge().map_or(copy.clone(), |edge| copy.with_edge(edge)))?
        } else {
            SavedTensor::input(tensor)?
        };
        self.saved.push(Some(saved));
        Ok(SavedHandle(self.saved.len() - 1))
    }

    /// Saves a tensor if `is_needed`.
    ///
    /// # Errors
    /// The errors of [`SavedHooks`](super::SavedHooks).
    pub fn save_if(&mut self, is_needed: bool, tensor: &Tensor) -> Result<Option<SavedHandle>> {
        if is_needed { self.save(tensor).map(Some) } else { Ok(None) }
    }

    /// Saves the operation's output number `output`.
    ///
    /// # Errors
    /// The errors of [`SavedHooks`](super::SavedHooks).
    pub fn save_output(&mut self, tensor: &Tensor, output: usize) -> Result<SavedHandle> {
        let is_computed = self.target.is_none();
        let saved = if is_computed { Some(SavedTensor::output(tensor, output)?) } else { None };
        self.saved.push(saved);
        Ok(SavedHandle(self.saved.len() - 1))
    }
}

/// A node of an operation whose outputs are not computed yet.
pub(super) struct NodeDraft {
    name: Cow<'static, str>,
    inputs: Inputs,
    saver: Saver,
    formula: Formula,
}

impl NodeDraft {
    /// Calls `save`, which saves the tensors that the formula needs. `target` is the tensor that the operation will
    /// write to in place, if any.
    pub(super) fn new(
        name: Cow<'static, str>,
        inputs: &[&Tensor],
        target: Option<&Tensor>,
        save: &mut Save<'_>,
    ) -> Result<Self> {
        let edges: SmallVec<[Option<Edge>; 2]> = inputs.iter().map(|input| input.gradient_edge()).collect();
        let needs = edges.iter().map(Option::is_some).collect();
        let mut saver = Saver { saved: Vec::new(), needs, target: target.cloned() };
        let formula = save(&mut saver)?;
        let kinds = inputs.iter().map(|input| TensorKind::of(input)).collect();
        Ok(Self { name, inputs: (edges, kinds), saver, formula })
    }

    /// Makes the node, after the operation computed `outputs`.
    pub(super) fn finish(self, outputs: &[&Tensor]) -> Result<Arc<Node>> {
        let saved = self.saver.saved.into_iter().map(|saved| match saved {
            Some(saved) => Ok(saved),
            // Only the target of an operation in place is saved after the operation.
            None => SavedTensor::output(outputs[0], 0),
        });
        Ok(Node::formula(self.name, self.inputs, outputs, saved.collect::<Result<_>>()?, self.formula))
    }
}
