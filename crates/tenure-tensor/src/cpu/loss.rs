//! Cross entropy.

use super::elementwise::GRAIN;
use super::math::Math;
use super::shared_memory::{DisjointSlice, unbound};
use super::softmax::{largest, sum_exp};
use super::vectorized;
use crate::kernel::on_cpu;
use crate::{Access, Entry, Float, Number, Result, Tensor, threads};

/// The scores and the targets of a cross entropy.
#[derive(Clone, Copy)]
pub(crate) struct Targets<'a> {
    /// `[rows, classes]`, contiguous.
    pub(crate) scores: &'a Tensor,
    /// A class for each row, `int64`, in range unless it is the ignored one.
    pub(crate) classes: &'a Tensor,
    /// A weight for each class, in the dtype to compute in.
    pub(crate) weight: Option<&'a Tensor>,
    /// The ignored class: its rows do not count.
    pub(crate) ignored: i64,
    /// The label smoothing: the fraction of a row's target that is spread over all classes.
    pub(crate) smoothing: f64,
}

/// A kernel that writes each row's loss, logarithm of the sum of exponentials, and weight, in the dtype to compute in.
pub(crate) type CrossEntropyKernel = fn([&Tensor; 3], Targets<'_>) -> Result<()>;
/// A kernel that writes the gradient of the scores, from the gradients of the losses and the logarithms of
/// [`CrossEntropyKernel`].
pub(crate) type CrossEntropyBackward = fn(&Tensor, &Tensor, &Tensor, Targets<'_>) -> Result<()>;

pub(crate) const CROSS_ENTROPY: &[Entry<CrossEntropyKernel>] = on_cpu!(floats: cross_entropy::<T>);
pub(crate) const CROSS_ENTROPY_BACKWARD: &[Entry<CrossEntropyBackward>] = on_cpu!(floats: cross_entropy_backward::<T>);

fn cross_entropy<T: Float<Compute: Math>>(out: [&Tensor; 3], targets: Targets<'_>) -> Result<()> {
    let reads: Vec<&Tensor> = [targets.scores, targets.classes].into_iter().chain(targets.weight).collect();
    let mut access = Access::new("cross_entropy", &out, &reads)?;
    // SAFETY: `access` has locked the tensors that are read, and `slice` checks that they are not written through it.
    let (x, classes) = unsafe { (unbound(access.slice::<T>(0)?), unbound(access.slice::<i64>(1)?)) };
    let weight = match targets.weight {
        // SAFETY: as above.
        Some(_) => Some(unsafe { unbound(access.slice::<T::Compute>(2)?) }),
        None => None,
    };
    let [losses, logs, weights] = [0, 1, 2].map(|out| access.slice_mut::<T::Compute>(out).map(DisjointSlice::new));
    let losses = losses?;
    let logs = logs?;
    let weights = weights?;
    let n = targets.scores.sizes()[1];
    let share = T::Compute::of(targets.smoothing / n as f64);
    let rest = T::Compute::of(1.0 - targets.smoothing);
    threads::for_each_range(classes.len(), GRAIN.checked_div(n).unwrap_or(1), |rows| {
        for row in rows {
            let x = &x[row * n..][..n];
            let class = classes[row];
            // SAFETY: each row is taken once.
            let [loss, log, own] = unsafe { [&losses, &logs, &weights].map(|out| &mut out.range(row..row + 1)[0]) };
            if class == targets.ignored {
                [*loss, *log, *own] = [T::Compute::ZERO; 3];
                continue;
            }
            let class = class as usize;
            vectorized!({
                let largest = largest(x);
                let sum_log = sum_exp(x, largest).log();
                *log = largest + sum_log;
                *own = weight.map_or(T::Compute::ONE, |weight| weight[class]);
                let unlikely = |x: T| sum_log - (x.widen() - largest);
                *loss = rest * *own * unlikely(x[class]);
                if targets.smoothing != 0.0 {
                    let mut all = T::Compute::ZERO;
                    for (i, x) in x.iter().enumerate() {
                        all = all + weight.map_or(T::Compute::ONE, |weight| weight[i]) * unlikely(*x);
                    }
                    *loss = *loss + share * all;
                }
            });
        }
    });
    Ok(())
}

fn cross_entropy_backward<T: Float<Compute: Math>>(
    out: &Tensor,
    grad: &Tensor,
    logs: &Tensor,
    targets: Targets<'_>,
) -> Result<()> {
    let reads: Vec<&Tensor> = [targets.scores, targets.classes, grad, logs].into_iter().chain(targets.weight).collect();
    let mut access = Access::new("cross_entropy_backward", &[out], &reads)?;
    // SAFETY: `access` has locked the tensors that are read, and `slice` checks that they are not written through it.
    let (x, classes, grads, logs) = unsafe {
        (
            unbound(access.slice::<T>(0)?),
            unbound(access.slice::<i64>(1)?),
            unbound(access.slice::<T::Compute>(2)?),
            unbound(access.slice::<T::Compute>(3)?),
        )
    };
    let weight = match targets.weight {
        // SAFETY: as above.
        Some(_) => Some(unsafe { unbound(access.slice::<T::Compute>(4)?) }),
        None => None,
    };
    let out = DisjointSlice::new(access.slice_mut::<T>(0)?);
    let n = targets.scores.sizes()[1];
    let share = T::Compute::of(targets.smoothing / n as f64);
    let rest = T::Compute::of(1.0 - targets.smoothing);
    let all = match weight {
        Some(weight) => weight.iter().fold(T::Compute::ZERO, |sum, weight| sum + *weight),
        None => T::Compute::of(n as f64),
    };
    threads::for_each_range(classes.len(), GRAIN.checked_div(n).unwrap_or(1), |rows| {
        for row in rows {
            let x = &x[row * n..][..n];
            let class = classes[row];
            // SAFETY: each row is taken once.
            let out = unsafe { out.range(row * n..(row + 1) * n) };
            if class == targets.ignored {
                out.fill(T::ZERO);
                continue;
            }
            let class = class as usize;
            let grad = grads[row];
            let log = logs[row];
            let own = rest * weight.map_or(T::Compute::ONE, |weight| weight[class]);
            let total = grad * (own + share * all);
            let share = grad * share;
            vectorized!(match weight {
                None => {
                    for (out, x) in out.iter_mut().zip(x) {
                        *out = T::narrow(total * (x.widen() - log).exp() - share);
                    }
                }
                Some(weight) => {
                    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                        *out = T::narrow(total * (x.widen() - log).exp() - share * *weight);
                    }
                }
            });
            let shared = share * weight.map_or(T::Compute::ONE, |weight| weight[class]);
            out[class] = T::narrow(total * (x[class].widen() - log).exp() - shared - grad * own);
        }
    });
    Ok(())
}
