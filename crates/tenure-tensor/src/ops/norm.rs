//! Layer, RMS and group normalisation.

use tenure_core::{Device, DeviceKind};

use super::entered;
use super::pointwise::{output, wide};
use super::reduce::floating;
use super::view::signed;
use crate::autocast::{raise, raises};
use crate::autograd::{Context, Grads, attach, is_grad_enabled, no_grad, recipe};
use crate::cpu;
use crate::cpu::batch_norm::weighted;
use crate::cpu::norm::{
    NormRows, NormalizeBackward, NormalizeKernel, NormalizeRows, NormalizeRowsBackward, NormalizeSums,
};
use crate::element::computed;
use crate::operation::operations;
use crate::{Elementwise, Kernel, Result, Tensor, TensorError, cuda};

static NORMALIZE_ROWS: Kernel<NormalizeRows> =
    Kernel::new("layer_norm", &[cpu::norm::NORMALIZE_ROWS, cuda::norm::NORMALIZE_ROWS]);
static NORMALIZE_ROWS_BACKWARD: Kernel<NormalizeRowsBackward> =
    Kernel::new("layer_norm_backward", &[cpu::norm::NORMALIZE_ROWS_BACKWARD, cuda::norm::NORMALIZE_ROWS_BACKWARD]);
static NORMALIZE: Kernel<NormalizeKernel> = Kernel::new("norm", &[cpu::norm::NORMALIZE, cuda::norm::NORMALIZE]);
pub(super) static NORMALIZE_BACKWARD: Kernel<NormalizeBackward> =
    Kernel::new("norm_backward", &[cpu::norm::NORMALIZE_BACKWARD, cuda::norm::NORMALIZE_BACKWARD]);
pub(super) static NORMALIZE_SUMS: Kernel<NormalizeSums> =
    Kernel::new("norm_backward", &[cpu::norm::NORMALIZE_SUMS, cuda::norm::NORMALIZE_SUMS]);

operations! {
    static OPERATIONS;
    Method for all {
        /// Normalises over the last dimensions, whose sizes are `normalized_shape`: subtracts the mean, divides by the standard
        /// deviation (`eps` is added to the variance), multiplies with `weight` and adds `bias`, which have these sizes.
        /// PyTorch's `layer_norm`.
        ///
        /// # Errors
        /// An integer dtype; last dimensions, a weight or a bias of other sizes.
        layer_norm(input: Tensor, normalized_shape: Sizes, weight: Option<Tensor> = None, bias: Option<Tensor> = None, eps: Float = 1e-5) -> Tensor;

        /// Divides by the root mean square over the last dimensions (`eps` is added to the mean square), and multiplies
        /// with `weight`. PyTorch's `rms_norm`.
        ///
        /// # Errors
        /// The errors of [`layer_norm`](Self::layer_norm).
        rms_norm(input: Tensor, normalized_shape: Sizes, weight: Option<Tensor> = None, eps: Float = 1e-6) -> Tensor;

        /// Normalises each of `num_groups` groups of channels of `[batch, channels, ...]`, with a weight and bias for each
        /// channel. PyTorch's `group_norm`; with as many groups as channels, `instance_norm`.
        ///
        /// # Errors
        /// An integer dtype, fewer than two dimensions, channels that are no multiple of `num_groups`, a weight or bias of
        /// other sizes.
        group_norm(input: Tensor, num_groups: Size, weight: Option<Tensor> = None, bias: Option<Tensor> = None, eps: Float = 1e-5) -> Tensor;
    }
}

fn layer_norm(
    input: &Tensor,
    normalized: &[usize],
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let _op = entered("layer_norm");
    if raises(&[input]) {
        return raise(input)?.layer_norm(normalized, weight, bias, eps);
    }
    input.normalize_rows("layer_norm", normalized, weight, bias, eps)
}

fn rms_norm(input: &Tensor, normalized: &[usize], weight: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let _op = entered("rms_norm");
    if raises(&[input]) {
        return raise(input)?.rms_norm(normalized, weight, eps);
    }
    input.normalize_rows("rms_norm", normalized, weight, None, eps)
}

fn group_norm(
    input: &Tensor,
    groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let _op = entered("group_norm");
    if raises(&[input]) {
        return raise(input)?.group_norm(groups, weight, bias, eps);
    }
    let channels = channels("group_norm", input, weight, bias)?;
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(TensorError::shape("group_norm", format!("{channels} channels do not divide in {groups} groups")));
    }
    let batch = input.sizes()[0];
    let depth = channels / groups;
    let length = input.sizes()[2..].iter().product();
    let grouped = input.reshape(&signed(&[batch, groups, depth, length]))?;
    let affine = signed(&[1, groups, depth, 1]);
    let weight = shaped(weight, &affine)?;
    let bias = shaped(bias, &affine)?;
    by_groups(&grouped, weight.as_ref(), bias.as_ref(), eps)?.reshape(&signed(input.sizes()))
}

impl Tensor {
    fn normalize_rows(
        &self,
        op: &'static str,
        normalized: &[usize],
        weight: Option<&Self>,
        bias: Option<&Self>,
        eps: f64,
    ) -> Result<Self> {
        floating(op, self)?;
        if normalized.is_empty() || !self.sizes().ends_with(normalized) {
            let reason = format!("the last dimensions of sizes {:?} are not {normalized:?}", self.sizes());
            return Err(TensorError::shape(op, reason));
        }
        for (what, tensor) in [("the weight", weight), ("the bias", bias)] {
            tensor.map_or(Ok(()), |tensor| expect_sizes(op, what, tensor, normalized))?;
        }
        let has_mean = op == "layer_norm";
        let input = self.contiguous()?;
        let weight = converted(weight, self)?;
        let bias = converted(bias, self)?;
        let kept = [&self.sizes()[..self.rank() - normalized.len()], &vec![1; normalized.len()]].concat();
        let statistic = || Self::empty(&kept, computed(self.dtype()), self.device());
        let mean = if has_mean { Some(statistic()?) } else { None };
        let rstd = statistic()?;
        let out = Self::empty(self.sizes(), self.dtype(), self.device())?;
        let detached_weight = dense(&weight)?;
        let detached_bias = dense(&bias)?;
        let rows = NormRows {
            input: &input,
            weight: detached_weight.as_ref(),
            bias: detached_bias.as_ref(),
            mean: mean.as_ref(),
            rstd: &rstd,
        };
        NORMALIZE_ROWS.find(self.device().kind(), self.dtype())?(&out, rows, eps)?;
        recipe::note(&out, op, [&input], [weight.as_ref(), bias.as_ref()], || {
            let normalized = normalized.to_vec();
            move |[x], [weight, bias]| x.normalize_rows(op, &normalized, weight, bias, eps)
        });
        let dims: Vec<isize> = (1..=normalized.len() as isize).map(|dim| -dim).collect();
        let inputs: Vec<&Self> = [&input].into_iter().chain(&weight).chain(&bias).collect();
        attach(out, op, &inputs, |saver| {
            let saved = saver.save(&input)?;
            let rstd = saver.save(&rstd)?;
            let mean = mean.map(|mean| saver.save(&mean)).transpose()?;
            let has_weight = weight.is_some();
            let has_bias = bias.is_some();
            let weight = weight.as_ref().map(|weight| saver.save(weight)).transpose()?;
            Ok(move |context: &Context<'_>| {
                let grad = context.grad(0)?;
                let x = context.unpack(saved)?;
                let rstd = context.unpack(rstd)?;
                let weight = weight.map(|weight| context.unpack(weight)).transpose()?;
                if is_grad_enabled() {
                    return composed(&grad, &x, weight.as_ref(), has_bias, has_mean, &dims, eps);
                }
                let mean = mean.map(|mean| context.unpack(mean)).transpose()?;
                let grad = grad.contiguous()?;
                let weight = dense(&weight)?;
                let rows =
                    NormRows { input: &x, weight: weight.as_ref(), bias: None, mean: mean.as_ref(), rstd: &rstd };
                let base = context.take_sum(0).map(|base| base.contiguous()).transpose()?;
                let to_x = Self::empty(x.sizes(), x.dtype(), x.device())?;
                let normalized = &x.sizes()[x.rank() - dims.len()..];
                let n = normalized.iter().product();
                // The number of partial sums: enough for each thread or block, but small beside the input.
                let parts = match x.device().kind() {
                    DeviceKind::Cpu => (rstd.numel() / 16).clamp(1, 32),
                    DeviceKind::Cuda => (rstd.numel() / 4).clamp(1, cuda::norm::PARTS),
                };
                let parts = Self::empty(&[parts, 2, n], rstd.dtype(), x.device())?;
                NORMALIZE_ROWS_BACKWARD.find(x.device().kind(), x.dtype())?(&to_x, &parts, &grad, rows, base.as_ref())?;
                let sums = if has_weight || has_bias { Some(parts.sum(&[0], false)?) } else { None };
                let sum = |number: usize| -> Result<Option<Self>> {
                    let Some(sums) = &sums else { return Ok(None) };
                    sums.narrow(0, number, 1)?.reshape(&signed(normalized)).map(Some)
                };
                let mut grads: Grads = [Some(to_x)].into_iter().collect();
                if has_weight {
                    grads.push(sum(0)?);
                }
                if has_bias {
                    grads.push(sum(1)?);
                }
                Ok(grads)
            })
        })
    }
}

/// Normalises each group of `[batch, groups, channels of a group, length]`; weight and bias broadcast.
fn by_groups(x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    /// The dimensions of a group.
    const DIMS: [isize; 2] = [2, 3];
    let (mean, rstd) = no_grad(|| {
        let (variance, mean) = x.moments("norm", &DIMS, 0.0)?;
        Ok::<_, TensorError>((mean, variance.add(eps)?.rsqrt()?))
    })?;
    let out = no_grad(|| normalized(x, weight, bias, &mean, &rstd))?;
    recipe::note(&out, "group_norm", [x], [weight, bias], || {
        move |[x], [weight, bias]| by_groups(x, weight, bias, eps)
    });
    let inputs: Vec<&Tensor> = [x].into_iter().chain(weight).chain(bias).collect();
    attach(out, "group_norm", &inputs, |saver| {
        let saved = saver.save(x)?;
        let mean = saver.save(&mean)?;
        let rstd = saver.save(&rstd)?;
        let has_bias = bias.is_some();
        let weight = weight.map(|weight| saver.save(weight)).transpose()?;
        Ok(move |context: &Context<'_>| {
            let grad = context.grad(0)?;
            let x = context.unpack(saved)?;
            let weight = weight.map(|weight| context.unpack(weight)).transpose()?;
            if is_grad_enabled() {
                return composed(&grad, &x, weight.as_ref(), has_bias, true, &DIMS, eps);
            }
            let mean = context.unpack(mean)?;
            let rstd = context.unpack(rstd)?;
            let [to_bias, products] = sums_of_channels(&grad, &x, &mean)?;
            let to_x = context.give(0, || {
                let scale = weighted(&rstd, weight.as_ref())?;
                // The parts of the gradient along the mean and along the deviations are subtracted.
                let count = x.numel() as f64 / rstd.numel() as f64;
                let lost = |sums: &Tensor| -> Result<Tensor> {
                    weighted(sums, weight.as_ref())?.sum_to(rstd.sizes())?.mul(&rstd)?.mul(-1.0 / count)
                };
                let shift = lost(&to_bias)?;
                let slope = lost(&products)?.mul(&rstd)?.mul(&rstd)?;
                let out = output(x.sizes(), x.dtype(), &[&x])?;
                let inputs = [&grad, &x, &mean, &scale, &slope, &shift];
                let iter = Elementwise::new("norm_backward", &[&out], &inputs)?;
                NORMALIZE_BACKWARD.find(x.device().kind(), x.dtype())?(&iter)?;
                drop(iter);
                Ok(out)
            })?;
            let mut grads: Grads = [to_x].into_iter().collect();
            if weight.is_some() {
                grads.push(Some(products.mul(&rstd)?));
            }
            if has_bias {
                grads.push(Some(to_bias));
            }
            Ok(grads)
        })
    })
}

/// Computes `(x - mean) * rstd * weight + bias`.
fn normalized(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    mean: &Tensor,
    rstd: &Tensor,
) -> Result<Tensor> {
    let scale = weighted(rstd, weight)?;
    let zero = Tensor::zeros(&[], rstd.dtype(), Device::CPU)?;
    let out = output(x.sizes(), x.dtype(), &[x])?;
    let iter = Elementwise::new("norm", &[&out], &[x, mean, &scale, bias.unwrap_or(&zero)])?;
    NORMALIZE.find(x.device().kind(), x.dtype())?(&iter)?;
    drop(iter);
    Ok(out)
}

/// Sums a gradient, and its products with the deviations from a group's mean, over the length.
fn sums_of_channels(grad: &Tensor, x: &Tensor, mean: &Tensor) -> Result<[Tensor; 2]> {
    let sizes = [&x.sizes()[..3], &[1]].concat();
    let mean = mean.expand(&signed(&sizes))?.contiguous()?;
    let out = [mean.empty_like()?, mean.empty_like()?];
    NORMALIZE_SUMS.find(x.device().kind(), x.dtype())?([&out[0], &out[1]], grad, x, &mean, None)?;
    Ok(out)
}

/// Computes the gradients of input, weight and bias with operations that have gradients themselves; for 16-bit floats
/// in `f32`.
pub(super) fn composed(
    grad: &Tensor,
    x: &Tensor,
    weight: Option<&Tensor>,
    has_bias: bool,
    has_mean: bool,
    dims: &[isize],
    eps: f64,
) -> Result<Grads> {
    let grad = wide(grad)?;
    let x = wide(x)?;
    let deviations = if has_mean { x.sub(&x.mean(dims, true)?)? } else { x };
    let rstd = deviations.square()?.mean(dims, true)?.add(eps)?.rsqrt()?;
    let unit = deviations.mul(&rstd)?;
    let weighted = weight.map_or_else(|| Ok(grad.clone()), |weight| grad.mul(weight))?;
    let along = unit.mul(&weighted.mul(&unit)?.mean(dims, true)?)?;
    let across = if has_mean { weighted.sub(&weighted.mean(dims, true)?)? } else { weighted };
    let mut grads: Grads = [Some(across.sub(&along)?.mul(&rstd)?)].into_iter().collect();
    if let Some(weight) = weight {
        grads.push(Some(grad.mul(&unit)?.sum_to(weight.sizes())?));
    }
    if has_bias {
        grads.push(Some(grad));
    }
    Ok(grads)
}

/// Returns the number of channels, after checking that weight and bias have one element for each.
pub(super) fn channels(op: &'static str, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<usize> {
    floating(op, x)?;
    let &[_, channels, ..] = x.sizes() else {
        let reason = format!("sizes [batch, channels, ...] are needed, got {:?}", x.sizes());
        return Err(TensorError::shape(op, reason));
    };
    for (what, tensor) in [("the weight", weight), ("the bias", bias)] {
        tensor.map_or(Ok(()), |tensor| expect_sizes(op, what, tensor, &[channels]))?;
    }
    Ok(channels)
}

pub(super) fn expect_sizes(op: &'static str, what: &str, tensor: &Tensor, sizes: &[usize]) -> Result<()> {
    if tensor.sizes() == sizes {
        return Ok(());
    }
    Err(TensorError::shape(op, format!("{what} must have sizes {sizes:?}, got {:?}", tensor.sizes())))
}

pub(super) fn shaped(tensor: Option<&Tensor>, sizes: &[isize]) -> Result<Option<Tensor>> {
    tensor.map(|tensor| tensor.reshape(sizes)).transpose()
}

fn converted(tensor: Option<&Tensor>, like: &Tensor) -> Result<Option<Tensor>> {
    tensor.map(|tensor| tensor.to_dtype(like.dtype())).transpose()
}

fn dense(tensor: &Option<Tensor>) -> Result<Option<Tensor>> {
    no_grad(|| tensor.as_ref().map(Tensor::contiguous).transpose())
}
