//! Gradients are kept from being too large.

use tenure_tensor::{Access, DType, Device, DeviceKind, Entry, Kernel, Number, Tensor, autograd, threads};

use super::cuda::{self, on_cuda};
use crate::{Parameter, Result};

/// Adds the squares of the elements of tensors, which are contiguous and of one dtype, to a number in double precision,
/// which does not overflow for what is finite in single precision.
pub static SUM_OF_SQUARES: Kernel<SumOfSquares> = Kernel::new("sum_of_squares", &[CPU, CUDA]);

/// A kernel of [`SUM_OF_SQUARES`]: the number has no dimension, and is on the tensors' device.
pub type SumOfSquares = fn(&Tensor, &[&Tensor]) -> tenure_tensor::Result<()>;

const CPU: &[Entry<SumOfSquares>] = &[
    (DeviceKind::Cpu, DType::F16, sum_of_squares::<half::f16>),
    (DeviceKind::Cpu, DType::BF16, sum_of_squares::<half::bf16>),
    (DeviceKind::Cpu, DType::F32, sum_of_squares::<f32>),
    (DeviceKind::Cpu, DType::F64, sum_of_squares::<f64>),
];
const CUDA: &[Entry<SumOfSquares>] = on_cuda!(sum_of_squares_on_cuda);

/// Writes tensors, which are contiguous and of one dtype, times a number that is on their device, in double precision.
static SCALE: Kernel<Scale> = Kernel::new("scale_grads", &[on_cuda!(scale_on_cuda)]);

type Scale = fn(&[&Tensor], &[&Tensor], &Tensor) -> tenure_tensor::Result<()>;

/// Bytes of gradients that are scaled at once: those before are there as long as those after.
const AT_ONCE: usize = 256 << 20;

/// Scales all gradients so that their common Euclidean norm is at most `max_norm`. Returns the norm that they had, in
/// double precision on their device, which nobody waits for; if it is not finite, no gradient is changed. PyTorch's
/// `clip_grad_norm_`.
///
/// # Errors
/// No memory.
pub fn clip_grad_norm<'a>(
    parameters: impl IntoIterator<Item = &'a Parameter> + Clone,
    max_norm: f64,
) -> Result<Tensor> {
    let sum = autograd::no_grad(|| squares(parameters.clone()))?;
    let norm = sum.sqrt()?;
    if norm.device().is_cpu() {
        let value = norm.item::<f64>()?;
        let scale = max_norm / (value + 1e-6);
        if value.is_finite() && scale < 1.0 {
            scale_grads(parameters, scale)?;
        }
    } else {
        let factor = norm.add(1e-6)?.reciprocal()?.mul(max_norm)?.clamp_max(1.0)?;
        scale_grads_by(parameters, &norm.isfinite()?.where_(&factor, 1.0)?)?;
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

/// The sum of the squares of all elements of all gradients, on the device of the last.
pub(super) fn squares<'a>(parameters: impl IntoIterator<Item = &'a Parameter>) -> tenure_tensor::Result<Tensor> {
    let grads = parameters.into_iter().filter_map(|parameter| parameter.grad());
    let mut grads: Vec<Tensor> = grads.map(|grad| grad.contiguous()).collect::<tenure_tensor::Result<_>>()?;
    if grads.iter().any(|grad| !grad.device().is_cpu()) {
        grads.sort_by_key(kind);
    }
    let device = grads.first().map_or(Device::CPU, Tensor::device);
    let mut total = Tensor::zeros(&[], DType::F64, device)?;
    for alike in grads.chunk_by(|left, right| kind(left) == kind(right)) {
        total = total.to_device(alike[0].device())?;
        let kernel = SUM_OF_SQUARES.find(total.device().kind(), alike[0].dtype())?;
        kernel(&total, &alike.iter().collect::<Vec<_>>())?;
    }
    Ok(total)
}

/// Multiplies all gradients by a number on a device.
fn scale_grads_by<'a>(parameters: impl IntoIterator<Item = &'a Parameter>, factor: &Tensor) -> Result<()> {
    let grads = parameters.into_iter().filter_map(|parameter| Some((parameter, parameter.grad()?)));
    let mut grads: Vec<(&Parameter, Tensor)> = grads.collect();
    grads.sort_by_key(|(_, grad)| kind(grad));
    let mut ready = Vec::new();
    let mut bytes = 0;
    for (parameter, grad) in grads {
        if bytes > AT_ONCE || ready.last().is_some_and(|(_, last)| kind(last) != kind(&grad)) {
            scale_alike(std::mem::take(&mut ready), factor)?;
            bytes = 0;
        }
        bytes += grad.numel() * grad.dtype().size();
        ready.push((parameter, grad));
    }
    scale_alike(ready, factor)
}

/// What tensors of one launch have in common: the device, and the dtype.
fn kind(tensor: &Tensor) -> (bool, u8, u8) {
    (tensor.device().is_cpu(), tensor.device().index(), tensor.dtype() as u8)
}

fn scale_alike(ready: Vec<(&Parameter, Tensor)>, factor: &Tensor) -> Result<()> {
    let Some((_, first)) = ready.first() else { return Ok(()) };
    let (device, dtype) = (first.device(), first.dtype());
    let factor = factor.to_device(device)?;
    autograd::no_grad(|| {
        if device.is_cpu() {
            return scale_grads(ready.iter().map(|(parameter, _)| *parameter), factor.item::<f64>()?);
        }
        let dense: Vec<Tensor> =
            ready.iter().map(|(_, grad)| grad.contiguous()).collect::<tenure_tensor::Result<_>>()?;
        let out: Vec<Tensor> = dense.iter().map(Tensor::empty_like).collect::<tenure_tensor::Result<_>>()?;
        let kernel = SCALE.find(device.kind(), dtype)?;
        kernel(&out.iter().collect::<Vec<_>>(), &dense.iter().collect::<Vec<_>>(), &factor)?;
        for ((parameter, _), scaled) in ready.iter().zip(out) {
            parameter.set_grad(Some(scaled))?;
        }
        Ok(())
    })
}

fn scale_on_cuda<T: Number>(out: &[&Tensor], grads: &[&Tensor], factor: &Tensor) -> tenure_tensor::Result<()> {
    cuda::scale(T::DTYPE, out, grads, factor, |out, grads, factor| {
        let factor = factor.item::<f64>()?;
        out.iter().zip(grads).try_for_each(|(out, grad)| out.copy_(&grad.mul(factor)?))
    })
}

/// Multiplies all gradients.
pub(super) fn scale_grads<'a>(parameters: impl IntoIterator<Item = &'a Parameter>, scale: f64) -> Result<()> {
    change_grads(parameters, |grad| grad.mul(scale))
}

/// Replaces gradients, one after the other. Not in place: one that was set may be somebody's, or two parameters'.
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

fn sum_of_squares_on_cuda<T: Number>(total: &Tensor, tensors: &[&Tensor]) -> tenure_tensor::Result<()> {
    cuda::add_squares(T::DTYPE, total, tensors, sum_of_squares::<T>)
}

fn sum_of_squares<T: Number>(total: &Tensor, tensors: &[&Tensor]) -> tenure_tensor::Result<()> {
    let mut sum = total.item::<f64>()?;
    for tensor in tensors {
        sum += sum_of_one::<T>(tensor)?;
    }
    Access::new("sum_of_squares", &[total], &[])?.slice_mut::<f64>(0)?[0] = sum;
    Ok(())
}

fn sum_of_one<T: Number>(dense: &Tensor) -> tenure_tensor::Result<f64> {
    const GRAIN: usize = 64 * 1024;
    const LANES: usize = 16;
    let access = Access::new("sum_of_squares", &[], &[dense])?;
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
