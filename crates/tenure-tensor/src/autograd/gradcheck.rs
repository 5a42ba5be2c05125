//! Checks of gradients against finite differences. PyTorch's `gradcheck`.

use super::{BackwardOptions, grad, no_grad, with_grad};
use crate::error::AutogradError;
use crate::{DType, Result, Tensor};

/// The step and tolerances of [`gradcheck`]. A gradient `a` agrees with a finite difference `n` if `|a - n| <= absolute
/// + relative * |n|`.
#[derive(Clone, Copy, Debug)]
pub struct Gradcheck {
    /// The amount that is added to and subtracted from an element of an input.
    pub step: f64,
    /// The absolute tolerance.
    pub absolute: f64,
    /// The tolerance relative to the finite difference.
    pub relative: f64,
}

impl Default for Gradcheck {
    /// Returns PyTorch's defaults: a step of 1e-6, 1e-5 absolute, 1e-3 relative.
    fn default() -> Self {
        Self { step: 1e-6, absolute: 1e-5, relative: 1e-3 }
    }
}

/// Compares the gradients of `function`'s floating outputs with central differences, element by element, for each of
/// `inputs` that requires a gradient. Inputs are `f64` and may have any layout: each element of an expanded input is
/// changed on its own.
///
/// ```
/// use tenure_tensor::{Tensor, autograd};
///
/// let x = Tensor::from_slice(&[1.0, 2.0], &[2])?.requires_grad_(true)?;
/// autograd::gradcheck(|x| Ok(vec![x[0].mul(&x[0])?]), &[x], autograd::Gradcheck::default())?;
/// # Ok::<(), tenure_tensor::TensorError>(())
/// ```
///
/// # Errors
/// A gradient and its finite difference do not agree: the error says for which output and input, at which elements, and
/// both values. No input requires a gradient; one that does is not `f64`; the errors of `function`.
pub fn gradcheck(
    function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[Tensor],
    options: Gradcheck,
) -> Result<()> {
    check("gradcheck", &function, inputs, options)
}

/// Checks the gradients of the gradients: their derivatives with respect to the inputs and to the gradients of the
/// outputs. PyTorch's `gradgradcheck`.
///
/// # Errors
/// The errors of [`gradcheck`].
pub fn gradgradcheck(
    function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[Tensor],
    options: Gradcheck,
) -> Result<()> {
    let outputs = with_grad(|| differentiable(&function, &leaves(inputs)?))?;
    let upstream = outputs.iter().map(|output| {
        // Different numbers from -1 to 1.
        let values: Vec<f64> = (1..=output.numel()).map(|at| (at as f64 * 0.618_034).fract() * 2.0 - 1.0).collect();
        Tensor::from_slice(&values, output.sizes())?.requires_grad_(true)
    });
    let upstream = upstream.collect::<Result<Vec<_>>>()?;
    let all: Vec<Tensor> = inputs.iter().chain(&upstream).cloned().collect();
    check(
        "gradgradcheck",
        &|all: &[Tensor]| {
            let (given, upstream) = all.split_at(inputs.len());
            with_grad(|| {
                // Fresh leaves, so that they have a gradient also where differences are taken.
                let given: Vec<Tensor> =
                    given.iter().zip(inputs).map(|(tensor, input)| like_input(tensor, input)).collect::<Result<_>>()?;
                let outputs = differentiable(&function, &given)?;
                let wanted: Vec<&Tensor> = given.iter().filter(|tensor| tensor.requires_grad()).collect();
                gradients(&outputs, &wanted, upstream)
            })
        },
        &all,
        options,
    )
}

type CheckedFunction<'a> = &'a dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// Does the work of both checks; `op` names the check in errors.
fn check(op: &'static str, function: CheckedFunction<'_>, inputs: &[Tensor], options: Gradcheck) -> Result<()> {
    let fails = |reason: String| Err(AutogradError::Other { node: op.to_owned(), reason }.into());
    if !inputs.iter().any(Tensor::requires_grad) {
        return fails("no input requires a gradient".to_owned());
    }
    if let Some(input) = inputs.iter().find(|input| input.requires_grad() && input.dtype() != DType::F64) {
        return fails(format!("inputs must be float64 for differences to be exact enough, got {}", input.dtype()));
    }
    let leaves = leaves(inputs)?;
    let outputs = with_grad(|| function(&leaves))?;
    for (index, leaf) in leaves.iter().enumerate().filter(|(_, leaf)| leaf.requires_grad()) {
        let numerical = differences(function, inputs, index, options.step)?;
        let floating = outputs.iter().enumerate().filter(|(_, output)| output.dtype().is_floating());
        for ((number, output), numerical) in floating.zip(numerical) {
            if let Some(difference) = difference(output, leaf, &numerical, options)? {
                let Difference { output, input, by_formula, by_differences } = difference;
                return fails(format!(
                    "the derivative of output {number} at {output:?} with respect to input {index} at {input:?} is \
                     {by_formula} by its formula, but {by_differences} by differences"
                ));
            }
        }
    }
    Ok(())
}

/// An element of a Jacobian where the gradient and the finite difference do not agree.
struct Difference {
    output: Vec<usize>,
    input: Vec<usize>,
    by_formula: f64,
    by_differences: f64,
}

/// Finds the first derivative of an output that is not near `numerical[element of the leaf][element of the output]`.
fn difference(
    output: &Tensor,
    leaf: &Tensor,
    numerical: &[Vec<f64>],
    options: Gradcheck,
) -> Result<Option<Difference>> {
    for at in 0..output.numel() {
        let derivatives = jacobian_row(output, leaf, at)?;
        for (element, (by_formula, numerical)) in derivatives.into_iter().zip(numerical).enumerate() {
            let by_differences = numerical[at];
            let is_near =
                (by_formula - by_differences).abs() <= options.absolute + options.relative * by_differences.abs();
            if !is_near {
                let output = coordinates(at, output.sizes());
                let input = coordinates(element, leaf.sizes());
                return Ok(Some(Difference { output, input, by_formula, by_differences }));
            }
        }
    }
    Ok(None)
}

/// Returns the central difference of each floating output with respect to each element of an input: `[output][element
/// of the input]`, each with a number for each element of the output.
fn differences(
    function: CheckedFunction<'_>,
    inputs: &[Tensor],
    index: usize,
    step: f64,
) -> Result<Vec<Vec<Vec<f64>>>> {
    let values = inputs[index].to_vec::<f64>()?;
    let outputs_with_step = |element: usize, step: f64| {
        let mut values = values.clone();
        values[element] += step;
        let mut inputs: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
        let moved = Tensor::from_slice(&values, inputs[index].sizes())?.to_device(inputs[index].device())?;
        inputs[index] = moved;
        let outputs = no_grad(|| function(&inputs))?;
        let floating = outputs.iter().filter(|output| output.dtype().is_floating());
        floating.map(|output| output.to_dtype(DType::F64)?.to_vec::<f64>()).collect::<Result<Vec<_>>>()
    };
    let mut found: Vec<Vec<Vec<f64>>> = Vec::new();
    for element in 0..values.len() {
        let up = outputs_with_step(element, step)?;
        let down = outputs_with_step(element, -step)?;
        found.resize(up.len(), Vec::new());
        for (output, (up, down)) in found.iter_mut().zip(up.iter().zip(&down)) {
            output.push(up.iter().zip(down).map(|(up, down)| (up - down) / (2.0 * step)).collect());
        }
    }
    Ok(found)
}

/// Returns the derivatives of one element of an output with respect to all elements of a leaf.
fn jacobian_row(output: &Tensor, leaf: &Tensor, at: usize) -> Result<Vec<f64>> {
    if !output.requires_grad() {
        return Ok(vec![0.0; leaf.numel()]);
    }
    let mut one = vec![0.0; output.numel()];
    one[at] = 1.0;
    let one = Tensor::from_slice(&one, output.sizes())?.to_dtype(output.dtype())?.to_device(output.device())?;
    let options = BackwardOptions { retain_graph: true, allow_unused: true, ..BackwardOptions::default() };
    match grad(&[output], &[leaf], &[Some(&one)], options)?.remove(0) {
        Some(grad) => grad.to_vec(),
        None => Ok(vec![0.0; leaf.numel()]),
    }
}

/// Returns gradients that can be differentiated again, with zeros for inputs that no output depends on.
fn gradients(outputs: &[Tensor], inputs: &[&Tensor], upstream: &[Tensor]) -> Result<Vec<Tensor>> {
    let outputs: Vec<&Tensor> = outputs.iter().collect();
    let upstream: Vec<Option<&Tensor>> = upstream.iter().map(Some).collect();
    let options = BackwardOptions { create_graph: true, allow_unused: true, ..BackwardOptions::default() };
    let found = grad(&outputs, inputs, &upstream, options)?;
    let grads = found.into_iter().zip(inputs);
    grads
        .map(|(grad, input)| grad.map_or_else(|| Tensor::zeros(input.sizes(), input.dtype(), input.device()), Ok))
        .collect()
}

/// Returns the outputs of `function` that require a gradient.
fn differentiable(function: CheckedFunction<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(function(inputs)?.into_iter().filter(Tensor::requires_grad).collect())
}

/// Returns the inputs as new leaves.
fn leaves(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    inputs.iter().map(|input| input.detach().requires_grad_(input.requires_grad())).collect()
}

/// Returns `tensor` as a tensor that requires a gradient if, and only if, `input` does: itself, or a new leaf.
fn like_input(tensor: &Tensor, input: &Tensor) -> Result<Tensor> {
    if tensor.requires_grad() == input.requires_grad() {
        return Ok(tensor.clone());
    }
    tensor.detach().requires_grad_(input.requires_grad())
}

/// Returns the index in each dimension of element number `at`.
fn coordinates(mut at: usize, sizes: &[usize]) -> Vec<usize> {
    let mut coordinates = vec![0; sizes.len()];
    for (coordinate, size) in coordinates.iter_mut().zip(sizes).rev() {
        *coordinate = at % size;
        at /= size;
    }
    coordinates
}
