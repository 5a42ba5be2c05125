//! Gradient clipping: by the common norm or by value.

use tenure_tensor::{Access, DType, Device, Kernel, Number, Tensor, autograd, ops, threads};

use super::cuda;
use crate::{Parameter, Result};

/// The kernels that write the sum of the squares of each tensor's elements to a vector. The sums are in double
/// precision, which does not overflow for finite values of single precision. The tensors are contiguous, not empty, and
/// of one dtype.
pub static SUMS_OF_SQUARES: Kernel<SumsOfSquares> =
    kernels!("sums_of_squares", sums_of_squares, sums_of_squares_on_cuda);

/// A kernel of [`SUMS_OF_SQUARES`]. The vector is on the tensors' device.
pub type SumsOfSquares = fn(&Tensor, &[&Tensor]) -> tenure_tensor::Result<()>;

/// The kernels that write tensors multiplied by a factor. The tensors are contiguous and of one dtype; the factor is a
/// double on their device.
static SCALE: Kernel<Scale> = Kernel::new("scale_grads", &[of_each_dtype!(Cuda, scale_on_cuda)]);

type Scale = fn(&[&Tensor], &[&Tensor], &Tensor) -> tenure_tensor::Result<()>;

/// The size in bytes after which a launch of scaled gradients ends. Old and new gradients of a launch exist at the same
/// time.
const AT_ONCE: usize = 256 << 20;

/// Scales all gradients so that their common Euclidean norm is at most `max_norm`. Returns the norm before scaling, in
/// double precision on their device, without waiting for the device. If it is not finite, no gradient is changed.
/// PyTorch's `clip_grad_norm_`.
///
/// # Errors
/// No memory.
pub fn clip_grad_norm<'a>(
    parameters: impl IntoIterator<Item = &'a Parameter> + Clone,
    max_norm: f64,
) -> Result<Tensor> {
    let clip = Clip::new(&autograd::no_grad(|| squares(parameters.clone()))?, max_norm)?;
    clip.scale(parameters)?;
    Ok(clip.norm)
}

/// The norm of gradients, and the factor that limits it.
pub(crate) struct Clip {
    norm: Tensor,
    factor: Factor,
}

enum Factor {
    /// The gradients are unchanged.
    One,
    Of(f64),
    OnDevice(Tensor),
}

impl Clip {
    /// Computes the factor from the sum of the squares of all elements.
    pub(crate) fn new(squares: &Tensor, max_norm: f64) -> Result<Self> {
        let norm = squares.sqrt()?;
        let factor = if norm.device().is_cpu() {
            let value = norm.item::<f64>()?;
            let scale = max_norm / (value + 1e-6);
            if value.is_finite() && scale < 1.0 { Factor::Of(scale) } else { Factor::One }
        } else {
            let factor = norm.add(1e-6)?.reciprocal()?.mul(max_norm)?.clamp_max(1.0)?;
            Factor::OnDevice(norm.isfinite()?.where_(&factor, 1.0)?)
        };
        Ok(Self { norm, factor })
    }

    /// Scales the gradients of some parameters.
    pub(crate) fn scale<'a>(&self, parameters: impl IntoIterator<Item = &'a Parameter>) -> Result<()> {
        match &self.factor {
            Factor::One => Ok(()),
            Factor::Of(scale) => scale_grads(parameters, *scale),
            Factor::OnDevice(factor) => scale_grads_by(parameters, factor),
        }
    }
}

/// Clamps every element of every gradient to `-max`..`max`. PyTorch's `clip_grad_value_`.
///
/// # Errors
/// No memory.
pub fn clip_grad_value<'a>(parameters: impl IntoIterator<Item = &'a Parameter>, max: f64) -> Result<()> {
    change_grads(parameters, |grad| grad.clamp(-max, max))
}

/// Returns the sum of the squares of all elements of all gradients, on the last gradient's device.
pub(super) fn squares<'a>(parameters: impl IntoIterator<Item = &'a Parameter>) -> tenure_tensor::Result<Tensor> {
    let grads = parameters.into_iter().filter_map(|parameter| parameter.grad());
    let mut grads: Vec<Tensor> = grads.map(|grad| grad.contiguous()).collect::<tenure_tensor::Result<_>>()?;
    grads.sort_by_key(kind);
    let sums = grads.chunk_by(|left, right| kind(left) == kind(right)).map(squares_of_each);
    total_of(&sums.collect::<tenure_tensor::Result<Vec<_>>>()?)
}

/// Returns the sum of the squares of each gradient. The gradients are contiguous and of one [kind]. A gradient's sum
/// does not depend on the others.
pub(crate) fn squares_of_each(grads: &[Tensor]) -> tenure_tensor::Result<Tensor> {
    let grads: Vec<&Tensor> = grads.iter().filter(|grad| grad.numel() > 0).collect();
    let device = grads.first().map_or(Device::CPU, |grad| grad.device());
    let sums = Tensor::empty(&[grads.len()], DType::F64, device)?;
    if let Some(first) = grads.first() {
        SUMS_OF_SQUARES.find(device.kind(), first.dtype())?(&sums, &grads)?;
    }
    Ok(sums)
}

/// Returns the total of sums of squares, on the last tensor's device.
pub(crate) fn total_of(sums: &[Tensor]) -> tenure_tensor::Result<Tensor> {
    let Some(device) = sums.last().map(Tensor::device) else { return Tensor::zeros(&[], DType::F64, Device::CPU) };
    let sums: Vec<Tensor> = sums.iter().map(|sums| sums.to_device(device)).collect::<tenure_tensor::Result<_>>()?;
    ops::cat(&sums.iter().collect::<Vec<_>>(), 0)?.sum_all()
}

/// Multiplies all gradients by a number that is on a device.
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

/// The properties that all tensors of a launch share: the device and the dtype.
pub(crate) type LaunchKind = (bool, u8, u8);

pub(crate) fn kind(tensor: &Tensor) -> LaunchKind {
    (tensor.device().is_cpu(), tensor.device().index(), tensor.dtype() as u8)
}

fn scale_alike(ready: Vec<(&Parameter, Tensor)>, factor: &Tensor) -> Result<()> {
    let Some((_, first)) = ready.first() else { return Ok(()) };
    let device = first.device();
    let dtype = first.dtype();
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

/// Multiplies all gradients by a number.
pub(super) fn scale_grads<'a>(parameters: impl IntoIterator<Item = &'a Parameter>, scale: f64) -> Result<()> {
    change_grads(parameters, |grad| grad.mul(scale))
}

/// Replaces gradients one after the other. It does not write in place, since a gradient that was set may also belong to
/// the caller or to two parameters.
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

fn sums_of_squares_on_cuda<T: Number>(sums: &Tensor, tensors: &[&Tensor]) -> tenure_tensor::Result<()> {
    cuda::sums_of_squares(T::DTYPE, sums, tensors, sums_of_squares::<T>)
}

fn sums_of_squares<T: Number>(sums: &Tensor, tensors: &[&Tensor]) -> tenure_tensor::Result<()> {
    let of_each = tensors.iter().map(|tensor| sum_of_one::<T>(tensor)).collect::<tenure_tensor::Result<Vec<_>>>()?;
    Access::new("sums_of_squares", &[sums], &[])?.slice_mut::<f64>(0)?.copy_from_slice(&of_each);
    Ok(())
}

#[inline(always)]
fn square<T: Number>(value: T) -> f64 {
    let value = value.to_scalar().to_f64();
    value * value
}

fn sum_of_one<T: Number>(dense: &Tensor) -> tenure_tensor::Result<f64> {
    const GRAIN: usize = 64 * 1024;
    const LANES: usize = 16;
    let access = Access::new("sums_of_squares", &[], &[dense])?;
    let elements = access.slice::<T>(0)?;
    let sums: Vec<parking_lot::Mutex<f64>> = elements.chunks(GRAIN).map(|_| parking_lot::Mutex::new(0.0)).collect();
    threads::for_each_part(sums.len(), |part| {
        let chunk = &elements[part * GRAIN..elements.len().min((part + 1) * GRAIN)];
        let sum = tenure_tensor::vectorized(
            #[inline(always)]
            || {
                let mut lanes = [0.0; LANES];
                let mut rows = chunk.chunks_exact(LANES);
                for row in &mut rows {
                    (0..LANES).for_each(|lane| lanes[lane] += square(row[lane]));
                }
                lanes.iter().sum::<f64>() + rows.remainder().iter().map(|value| square(*value)).sum::<f64>()
            },
        );
        *sums[part].lock() = sum;
    });
    Ok(sums.iter().map(|sum| *sum.lock()).sum())
}
