//! The CPU loop of all rules.

use std::array;

use parking_lot::Mutex;
use tenure_tensor::{Access, Float, Number, Result, Tensor, threads};

use super::Stepped;

/// The number of elements that one thread steps at a time.
const GRAIN: usize = 32 * 1024;

/// Replaces the values of each element of all parameters by `element(values, gradient)`. There are `N` values: the
/// parameter's, then the slots'.
pub(super) fn for_each<T: Float, const N: usize>(
    op: &'static str,
    parameters: &[Stepped<'_>],
    element: impl Fn([T::Compute; N], T::Compute) -> [T::Compute; N] + Sync + Copy,
) -> Result<()> {
    parameters.iter().try_for_each(|parameter| one::<T, N>(op, parameter, element))
}

fn one<T: Float, const N: usize>(
    op: &'static str,
    stepped: &Stepped<'_>,
    element: impl Fn([T::Compute; N], T::Compute) -> [T::Compute; N] + Sync + Copy,
) -> Result<()> {
    let written: Vec<&Tensor> = std::iter::once(stepped.parameter).chain(stepped.slots).take(N).collect();
    let mut access = Access::new(op, &written, &[stepped.grad])?;
    let ([grads], values) = access.split::<T, T, 1, N>()?;
    let mut chunks = values.map(|values| values.chunks_mut(GRAIN));
    let parts = grads.chunks(GRAIN).map(|grad| {
        let values: [&mut [T]; N] = array::from_fn(|slot| chunks[slot].next().unwrap_or_default());
        Mutex::new((values, grad))
    });
    let parts: Vec<_> = parts.collect();
    threads::for_each_part(parts.len(), |part| {
        let mut part = parts[part].lock();
        let (values, grad) = &mut *part;
        tenure_tensor::vectorized(
            #[inline(always)]
            || {
                let n = grad.len();
                let values = values.each_mut().map(|values| &mut values[..n]);
                for i in 0..n {
                    // A loop rather than a function on arrays, which the compiler might not inline.
                    let mut before = [Number::ZERO; N];
                    for slot in 0..N {
                        before[slot] = values[slot][i].widen();
                    }
                    let stepped = element(before, grad[i].widen());
                    for slot in 0..N {
                        values[slot][i] = T::narrow(stepped[slot]);
                    }
                }
            },
        );
    });
    Ok(())
}
