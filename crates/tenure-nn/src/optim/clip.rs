//! Gradients are kept from being too large.

use tenure_tensor::{Access, DType, DeviceKind, Entry, Kernel, Number, Tensor, autograd, threads};

use crate::{Parameter, Result};

/// The sum of the squares of a tensor's elements, in double precision, which does not overflow for what is finite in
/// single precision.
pub static SUM_OF_SQUARES: Kernel<SumOfSquares> = Kernel::new("sum_of_squares", &[CPU]);

/// A kernel of [`SUM_OF_SQUARES`].
pub type SumOfSquares = fn(&Tensor) -> tenure_tensor::Result<f64>;

const CPU: &[Entry<SumOfSquares>] = &[
    (DeviceKind::Cpu, DType::F16, sum_of_squares::<half::f16>),
    (DeviceKind::Cpu, DType::BF16, sum_of_squares::<half::bf16>),
    (DeviceKind::Cpu, DType::F32, sum_of_squares::<f32>),
    (DeviceKind::Cpu, DType::F64, sum_of_squares::<f64>),
];

/// Scales all gradients so that their common Euclidean norm is at most `max_norm`. Returns the norm that they had; if
/// it is not finite, no gradient was changed. PyTorch's `clip_grad_norm_`.
///
/// # Errors
/// No memory.
pub fn clip_grad_norm<'a>(parameters: impl IntoIterator<Item = &'a Parameter> + Clone, max_norm: f64) -> Result<f64> {
    let mut sum = 0.0;
    for grad in parameters.clone().into_iter().filter_map(|parameter| parameter.grad()) {
        sum += squares(&grad)?;
    }
    let norm = sum.sqrt();
    let scale = max_norm / (norm + 1e-6);
    if norm.is_finite() && scale < 1.0 {
        scale_grads(parameters, scale)?;
    }
    Ok(norm)
}

/// Brings every element of every gradient between `-max` and `max`. PyTorch's `clip_grad_value_`.
///
/// # Errors
/// No memory.
pub fn clip_grad_value<'a>(parameters: impl IntoIterator<Item = &'a Parameter>, max: f64) -> Result<()> {
    change_grads(parameters, |grad| grad.clamp(-max, max))
}

/// The sum of the squares of all elements.
pub(super) fn squares(tensor: &Tensor) -> tenure_tensor::Result<f64> {
    SUM_OF_SQUARES.find(tensor.device().kind(), tensor.dtype())?(tensor)
}

/// Multiplies all gradients.
pub(super) fn scale_grads<'a>(parameters: impl IntoIterator<Item = &'a Parameter>, scale: f64) -> Result<()> {
    change_grads(parameters, |grad| grad.mul(scale))
}

/// Replaces gradients, one after the other. Not in place: two parameters may have one gradient, as those of a sum do.
fn change_grads<'a>(
    parameters: impl IntoIterator<Item = &'a Parameter>,
    change: impl Fn(&Tensor) -> tenure_tensor::Result<Tensor>,
) -> Result<()> {
    for parameter in parameters {
        if let Some(grad) = parameter.grad() {
            parameter.set_grad(Some(autograd::no_grad(|| change(&grad))?))?;
        }
    }
    Ok(())
}

fn sum_of_squares<T: Number>(tensor: &Tensor) -> tenure_tensor::Result<f64> {
    const GRAIN: usize = 64 * 1024;
    const LANES: usize = 16;
    let dense = tensor.contiguous()?;
    let access = Access::new("sum_of_squares", &[], &[&dense])?;
    let elements = access.slice::<T>(0)?;
    let sums: Vec<parking_lot::Mutex<f64>> = elements.chunks(GRAIN).map(|_| parking_lot::Mutex::new(0.0)).collect();
    threads::for_each_part(sums.len(), |part| {
        let chunk = &elements[part * GRAIN..elements.len().min((part + 1) * GRAIN)];
        let sum = tenure_tensor::vectorized(
            #[inline(always)]
            || {
                let square = |value: &T| {
                    let value = value.to_scalar().to_f64();
                    value * value
                };
                let mut lanes = [0.0; LANES];
                let mut rows = chunk.chunks_exact(LANES);
                for row in &mut rows {
                    (0..LANES).for_each(|lane| lanes[lane] += square(&row[lane]));
                }
                lanes.iter().sum::<f64>() + rows.remainder().iter().map(square).sum::<f64>()
            },
        );
        *sums[part].lock() = sum;
    });
    Ok(sums.iter().map(|sum| *sum.lock()).sum())
}
