//! The CPU kernels: a whole cell in one pass, where separate operations make nine passes.

use half::{bf16, f16};
use num_traits::{Float as Math, one, zero};
use tenure_tensor::{Access, DType, DeviceKind, Entry, Float, Result, Tensor, threads};

use crate::op::{Backward, Forward};

pub(crate) const FORWARD: &[Entry<Forward>] = &[
    (DeviceKind::Cpu, DType::F16, forward::<f16>),
    (DeviceKind::Cpu, DType::BF16, forward::<bf16>),
    (DeviceKind::Cpu, DType::F32, forward::<f32>),
    (DeviceKind::Cpu, DType::F64, forward::<f64>),
];

pub(crate) const BACKWARD: &[Entry<Backward>] = &[
    (DeviceKind::Cpu, DType::F16, backward::<f16>),
    (DeviceKind::Cpu, DType::BF16, backward::<bf16>),
    (DeviceKind::Cpu, DType::F32, backward::<f32>),
    (DeviceKind::Cpu, DType::F64, backward::<f64>),
];

/// The least numbers of a state for which another thread is worth waking.
const GRAIN: usize = 2048;

// Work is divided by sizes alone, in rows of the batch, so that any number of threads gives the same bits.
fn forward<T: Float<Compute: Math>>(out: [&Tensor; 2], gates: &Tensor, cell: &Tensor) -> Result<()> {
    let state = cell.sizes()[1].max(1);
    let mut access = Access::new("lltm_cell", &out, &[gates, cell])?;
    let ([gates, cell], [hidden, new_cell]) = access.split::<T, T, _, _>()?;
    let mut rows: Vec<_> = hidden.chunks_mut(state).zip(new_cell.chunks_mut(state)).collect();
    threads::for_each_chunk(&mut rows, GRAIN.div_ceil(state), |first, rows| {
        for (row, (hidden, new_cell)) in (first..).zip(rows) {
            let (gates, cell) = (&gates[3 * row * state..][..3 * state], &cell[row * state..][..state]);
            for i in 0..state {
                let [input, output, candidate] = [0, 1, 2].map(|gate| gates[gate * state + i].widen());
                let value = cell[i].widen() + elu(candidate) * sigmoid(input);
                new_cell[i] = T::narrow(value);
                hidden[i] = T::narrow(value.tanh() * sigmoid(output));
            }
        }
    });
    Ok(())
}

fn backward<T: Float<Compute: Math>>(
    out: [&Tensor; 2],
    grads: [&Tensor; 2],
    gates: &Tensor,
    new_cell: &Tensor,
) -> Result<()> {
    let state = new_cell.sizes()[1].max(1);
    let mut access = Access::new("lltm_cell_backward", &out, &[grads[0], grads[1], gates, new_cell])?;
    let ([from_hidden, from_cell, gates, new_cell], [to_gates, to_cell]) = access.split::<T, T, _, _>()?;
    let mut rows: Vec<_> = to_gates.chunks_mut(3 * state).zip(to_cell.chunks_mut(state)).collect();
    threads::for_each_chunk(&mut rows, GRAIN.div_ceil(state), |first, rows| {
        for (row, (to_gates, to_cell)) in (first..).zip(rows) {
            let gates = &gates[3 * row * state..][..3 * state];
            for i in 0..state {
                let at = row * state + i;
                let [input, output, candidate] = [0, 1, 2].map(|gate| gates[gate * state + i].widen());
                let (input, output, tanh) = (sigmoid(input), sigmoid(output), new_cell[at].widen().tanh());
                let from_hidden = from_hidden[at].widen();
                let from_cell = from_cell[at].widen() + from_hidden * output * (one::<T::Compute>() - tanh * tanh);
                let to_input = from_cell * elu(candidate) * input * (one::<T::Compute>() - input);
                let to_output = from_hidden * tanh * output * (one::<T::Compute>() - output);
                let to_candidate = from_cell * input * candidate.min(zero()).exp();
                for (gate, value) in [to_input, to_output, to_candidate].into_iter().enumerate() {
                    to_gates[gate * state + i] = T::narrow(value);
                }
                to_cell[i] = T::narrow(from_cell);
            }
        }
    });
    Ok(())
}

fn sigmoid<C: Math>(x: C) -> C {
    C::one() / (C::one() + (-x).exp())
}

fn elu<C: Math>(x: C) -> C {
    if x > C::zero() { x } else { x.exp_m1() }
}
