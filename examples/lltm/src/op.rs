//! The operation: its checks, outputs, kernel and gradient formula.

use tenure_tensor::autograd::{self, Context, attach_all};
use tenure_tensor::{Kernel, Result, Tensor, TensorError, autocast, ops};

use crate::cpu;

/// A kernel that writes the new hidden state and cell `[batch, state]` from gates `[batch, 3 * state]` and the cell.
pub type Forward = fn([&Tensor; 2], &Tensor, &Tensor) -> Result<()>;

/// A kernel that writes the gradients of gates and cell, from those of hidden state and new cell, the gates and the new
/// cell.
pub type Backward = fn([&Tensor; 2], [&Tensor; 2], &Tensor, &Tensor) -> Result<()>;

/// The kernels of [`lltm_cell`]. A crate for another device registers its function here.
pub static FORWARD: Kernel<Forward> = Kernel::new("lltm_cell", &[cpu::FORWARD]);
/// The kernels of its gradients.
pub static BACKWARD: Kernel<Backward> = Kernel::new("lltm_cell_backward", &[cpu::BACKWARD]);

/// Returns the new hidden state and the new cell, `[batch, state]` both, from a cell `[batch, state]` and gates
/// `[batch, 3 * state]`, which are input, output and candidate:
///
/// ```text
/// new cell = cell + elu(candidate) * sigmoid(input)
/// hidden   = tanh(new cell) * sigmoid(output)
/// ```
///
/// # Errors
/// The sizes do not fit, the two dtypes or devices differ, the dtype is not floating, or there is no memory.
pub fn lltm_cell(gates: &Tensor, cell: &Tensor) -> Result<(Tensor, Tensor)> {
    check(gates, cell)?;
    // Under autocast, the gates come from a product in half precision, and the cell perhaps does not.
    let [gates, cell] = autocast::widest([gates, cell])?;
    check_dtypes(&gates, &cell)?;
    // A tensor that is not contiguous is copied, by an operation that has a gradient too.
    let (gates, cell) = (gates.contiguous()?, cell.contiguous()?);
    let (hidden, new_cell) = (cell.empty_like()?, cell.empty_like()?);
    FORWARD.find(cell.device().kind(), cell.dtype())?([&hidden, &new_cell], &gates, &cell)?;
    attach_all(&[&hidden, &new_cell], FORWARD.name(), &[&gates, &cell], |saver| {
        let (gates, new_cell) = (saver.save(&gates)?, saver.save_output(&new_cell, 1)?);
        Ok(move |context: &Context<'_>| {
            let grads = [context.grad(0)?, context.grad(1)?];
            let (gates, new_cell) = (context.unpack(gates)?, context.unpack(new_cell)?);
            // If the gradient must have a gradient itself, differentiable operations compute it.
            let differentiable = autograd::is_grad_enabled();
            let backward = if differentiable { backward_by_operations } else { backward_by_kernel };
            Ok(backward(grads, &gates, &new_cell)?.map(Some).into_iter().collect())
        })
    })?;
    Ok((hidden, new_cell))
}

fn check(gates: &Tensor, cell: &Tensor) -> Result<()> {
    let fits = matches!((gates.sizes(), cell.sizes()), ([b, g], [c, s]) if b == c && *g == 3 * s);
    if !fits {
        let (gates, cell) = (gates.sizes(), cell.sizes());
        let reason =
            format!("gates [batch, 3 * state] and a cell [batch, state] are needed, got {gates:?} and {cell:?}");
        return Err(TensorError::shape(FORWARD.name(), reason));
    }
    if gates.device() != cell.device() {
        return Err(TensorError::Device { op: FORWARD.name(), left: gates.device(), right: cell.device() });
    }
    Ok(())
}

fn check_dtypes(gates: &Tensor, cell: &Tensor) -> Result<()> {
    if gates.dtype() == cell.dtype() {
        return Ok(());
    }
    let expected = format!("{} as of the gates is needed: convert one with to_dtype()", gates.dtype());
    Err(TensorError::DType { op: FORWARD.name(), found: cell.dtype(), expected })
}

fn backward_by_kernel(grads: [Tensor; 2], gates: &Tensor, new_cell: &Tensor) -> Result<[Tensor; 2]> {
    let grads = [grads[0].contiguous()?, grads[1].contiguous()?];
    let (to_gates, to_cell) = (gates.empty_like()?, new_cell.empty_like()?);
    let kernel = BACKWARD.find(gates.device().kind(), gates.dtype())?;
    kernel([&to_gates, &to_cell], grads.each_ref(), gates, new_cell)?;
    Ok([to_gates, to_cell])
}

fn backward_by_operations(grads: [Tensor; 2], gates: &Tensor, new_cell: &Tensor) -> Result<[Tensor; 2]> {
    let [to_hidden, to_new_cell] = grads;
    let [input, output, candidate] = &gates.chunk(3, 1)?[..] else { unreachable!("three times the state's size") };
    let (input, output, tanh) = (input.sigmoid()?, output.sigmoid()?, new_cell.tanh()?);
    // The slope of sigmoid, from its value s.
    let slope = |s: &Tensor| s.mul(&s.neg()?.add(1)?);
    let to_cell = to_hidden.mul(&output)?.mul(&tanh.square()?.neg()?.add(1)?)?.add(&to_new_cell)?;
    let to_input = to_cell.mul(&candidate.elu(1.0)?)?.mul(&slope(&input)?)?;
    let to_output = to_hidden.mul(&tanh)?.mul(&slope(&output)?)?;
    // The slope of ELU: 1 above zero, the exponential below.
    let to_candidate = to_cell.mul(&input)?.mul(&candidate.clamp_max(0.0)?.exp()?)?;
    Ok([ops::cat(&[&to_input, &to_output, &to_candidate], 1)?, to_cell])
}
