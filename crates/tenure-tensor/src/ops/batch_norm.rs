//! Batch normalisation, fused with the addition and ReLU that mostly follow.

use tenure_core::Overlap;

use super::activation::relu_backward;
use super::entered;
use super::norm::{NORMALIZE_BACKWARD, NORMALIZE_SUMS, channels, composed, expect_sizes, shaped};
use super::pointwise::output;
use super::view::signed;
use crate::autograd::{Context, Grads, attach, is_grad_enabled, no_grad, recipe};
use crate::cpu::batch_norm::{
    ChannelCoefficients, ChannelGradients, ChannelStatistics, FinishStatistics, FusedActivation, Gradients,
    NormalizeChannels, Scale, weighted,
};
use crate::cpu::norm::NormalizeBackward;
use crate::element::computed;
use crate::geometry::along_channels;
use crate::observe::observed;
use crate::operation::{arguments, operations};
use crate::{Device, Elementwise, Kernel, Layout, Result, Tensor, TensorError, cpu, cuda};

static FINISH_STATISTICS: Kernel<FinishStatistics> =
    Kernel::new("batch_norm", &[cpu::batch_norm::FINISH_STATISTICS, cuda::batch_norm::FINISH_STATISTICS]);
static NORMALIZE: Kernel<NormalizeChannels> =
    Kernel::new("batch_norm", &[cpu::batch_norm::NORMALIZE, cuda::batch_norm::NORMALIZE]);
static GRADIENTS: Kernel<Gradients> =
    Kernel::new("batch_norm_backward", &[cpu::batch_norm::GRADIENTS, cuda::batch_norm::GRADIENTS]);
static RELU_BACKWARD: Kernel<NormalizeBackward> =
    Kernel::new("batch_norm_backward", &[cpu::norm::NORMALIZE_RELU_BACKWARD, cuda::norm::NORMALIZE_RELU_BACKWARD]);

/// The parameters of batch normalisation: see [`Tensor::batch_norm`].
#[derive(Clone, Copy, Debug)]
pub struct BatchNormParameters<'a> {
    /// The running means and variances, `[channels]` each.
    pub running: Option<(&'a Tensor, &'a Tensor)>,
    /// The scale of each channel, `[channels]`.
    pub weight: Option<&'a Tensor>,
    /// The shift of each channel, `[channels]`.
    pub bias: Option<&'a Tensor>,
    /// Whether the batch's own mean and variance are used.
    pub training: bool,
    /// The fraction by which running averages move towards the batch's.
    pub momentum: f64,
    /// A number that is added to variances.
    pub eps: f64,
}

operations! {
    static OPERATIONS;
    Function for front_ends {
        /// Normalises each channel of `[batch, channels, ...]` over all other dimensions: [`Tensor::batch_norm`].
        ///
        /// # Errors
        /// An integer dtype, fewer than two dimensions, a weight, bias or running average of other sizes; no running
        /// averages outside training, or only one; one element for each channel in training.
        batch_norm(
            input: Tensor, running_mean: Option<Tensor>, running_var: Option<Tensor>, weight: Option<Tensor> = None,
            bias: Option<Tensor> = None, training: Bool = false, momentum: Float = 0.1, eps: Float = 1e-5
        ) -> Tensor = |input: &Tensor, mean, variance, weight, bias, training, momentum, eps| {
            input.batch_norm(both("batch_norm", mean, variance)?, weight, bias, training, momentum, eps)
        };

        /// Computes the ReLU of `batch_norm`. If `carried` is given, it is added before the ReLU, as in a residual
        /// network: [`Tensor::batch_norm_relu`]. All is done in one pass. PyTorch has no such function.
        ///
        /// # Errors
        /// The errors of `batch_norm` and `add`.
        batch_norm_relu(
            input: Tensor, carried: Option<Tensor>, running_mean: Option<Tensor>, running_var: Option<Tensor>,
            weight: Option<Tensor> = None, bias: Option<Tensor> = None, training: Bool = false, momentum: Float = 0.1,
            eps: Float = 1e-5
        ) -> Tensor = |input: &Tensor, carried, mean, variance, weight, bias, training, momentum, eps| {
            let running = both("batch_norm_relu", mean, variance)?;
            input.batch_norm_relu(carried, &BatchNormParameters { running, weight, bias, training, momentum, eps })
        };
    }
}

/// Returns both running averages, or none.
fn both<'a>(
    op: &'static str,
    mean: Option<&'a Tensor>,
    variance: Option<&'a Tensor>,
) -> Result<Option<(&'a Tensor, &'a Tensor)>> {
    if mean.is_some() != variance.is_some() {
        return Err(TensorError::argument(op, "running_mean and running_var are needed both, or none of them"));
    }
    Ok(mean.zip(variance))
}

impl Tensor {
    /// Normalises each channel of `[batch, channels, ...]` over all other dimensions, with a weight and bias for each
    /// channel. In `training`, the batch's own mean and variance are used, and the `running` mean and variance, if
    /// there are any, move towards the batch's mean and unbiased variance by the fraction `momentum`. Otherwise the
    /// running averages are used. PyTorch's `batch_norm`.
    ///
    /// # Errors
    /// An integer dtype, fewer than two dimensions, a weight, bias or running average of other sizes; no running
    /// averages outside training; one element for each channel in training.
    pub fn batch_norm(
        &self,
        running: Option<(&Self, &Self)>,
        weight: Option<&Self>,
        bias: Option<&Self>,
        training: bool,
        momentum: f64,
        eps: f64,
    ) -> Result<Self> {
        let norm = BatchNormParameters { running, weight, bias, training, momentum, eps };
        let (mean, variance) = running.unzip();
        observed(
            "batch_norm",
            || arguments![self, mean, variance, weight, bias, training, momentum, eps],
            || norm.apply(self, FusedActivation::Nothing),
        )
    }

    /// Computes the ReLU of [`batch_norm`](Self::batch_norm) of this tensor. If `carried` is given, it is added before
    /// the ReLU, as in a residual network. All is done in one pass, unless `carried` has other sizes or another dtype
    /// than this tensor. On the CPU the bits are those of separate operations; on CUDA 16-bit floats are rounded once.
    ///
    /// # Errors
    /// The errors of `batch_norm` and [`add`](Self::add).
    pub fn batch_norm_relu(&self, carried: Option<&Self>, norm: &BatchNormParameters<'_>) -> Result<Self> {
        let BatchNormParameters { running, weight, bias, training, momentum, eps } = norm;
        let (mean, variance) = running.unzip();
        observed(
            "batch_norm_relu",
            || arguments![self, carried, mean, variance, weight, bias, training, momentum, eps],
            || norm.then_relu(self, carried),
        )
    }
}

impl BatchNormParameters<'_> {
    fn then_relu(&self, x: &Tensor, carried: Option<&Tensor>) -> Result<Tensor> {
        match carried {
            None => self.apply(x, FusedActivation::Relu),
            Some(carried) if carried.sizes() == x.sizes() && carried.dtype() == x.dtype() => {
                self.apply(x, FusedActivation::AddRelu(carried))
            }
            Some(carried) => self.apply(x, FusedActivation::Nothing)?.add(carried)?.relu(),
        }
    }

    fn apply(&self, x: &Tensor, then: FusedActivation<'_>) -> Result<Tensor> {
        let _op = entered("batch_norm");
        let op = "batch_norm";
        let channels = channels(op, x, self.weight, self.bias)?;
        for average in self.running.iter().flat_map(|(mean, variance)| [mean, variance]) {
            expect_sizes(op, "a running average", average, &[channels])?;
            if self.training && average.layout().overlap() != Overlap::No {
                let reason = "a running average, which is written, has elements that share memory: clone() it";
                return Err(TensorError::Overlap { op, reason: reason.to_owned() });
            }
        }
        if let FusedActivation::AddRelu(carried) = then
            && carried.device() != x.device()
        {
            return Err(TensorError::Device { op, left: x.device(), right: carried.device() });
        }
        if !self.training {
            let Some((mean, variance)) = self.running else {
                return Err(TensorError::argument(op, "running averages are needed outside training, got none"));
            };
            return self.by_averages(x, mean, variance, then);
        }
        let count = x.numel().checked_div(channels).unwrap_or(0);
        if count == 1 {
            let reason = format!("training needs more than one value for each channel, got sizes {:?}", x.sizes());
            return Err(TensorError::shape(op, reason));
        }
        self.by_batch(x, channels, count as f64, then)
    }

    /// Normalises by the input's own statistics.
    fn by_batch(&self, x: &Tensor, channels: usize, count: f64, then: FusedActivation<'_>) -> Result<Tensor> {
        let dims = others(x);
        let (squares, mean) = no_grad(|| x.squared_deviations("batch_norm", &dims))?;
        let flat = Layout::contiguous(&[channels])?;
        let rstd = Tensor::empty(&[channels], mean.dtype(), x.device())?;
        let scale = if self.weight.is_some() { rstd.empty_like()? } else { rstd.clone() };
        let statistics = ChannelStatistics {
            mean: &mean.alias(flat.clone()),
            squares: &squares.alias(flat),
            weight: self.weight,
            running: self.running,
            rstd: &rstd,
            scale: &scale,
        };
        FINISH_STATISTICS.find(x.device().kind(), x.dtype())?(statistics, count, self.momentum, self.eps)?;
        for average in self.running.iter().flat_map(|(mean, variance)| [mean, variance]) {
            average.bump_version("batch_norm");
        }
        let out = self.normalize(
            x,
            &along_channels(&mean.alias(rstd.layout().clone()), x)?,
            Scale::Is(&along_channels(&scale, x)?),
            then,
        )?;

        let eps = self.eps;
        let weight = self.weight;
        let bias = self.bias;
        recipe::note(&out, "batch_norm", [x], [weight, bias, then.carried()], || {
            let is_above = !matches!(then, FusedActivation::Nothing);
            move |[x], [weight, bias, carried]| {
                // The running averages are left out: they have moved.
                let norm = BatchNormParameters { running: None, weight, bias, training: true, momentum: 0.0, eps };
                norm.by_batch(x, channels, count, FusedActivation::of(is_above, carried))
            }
        });
        let has_weight = weight.is_some();
        let has_bias = bias.is_some();
        let bias_dtype = bias.map(Tensor::dtype);
        attach(out.clone(), "batch_norm", &self.inputs(x, then), |saver| {
            let saved = saver.save(x)?;
            let mean = saver.save(&mean)?;
            let rstd = saver.save(&rstd)?;
            let scale = if has_weight { saver.save(&scale)? } else { rstd };
            let weight = weight.map(|weight| saver.save(weight)).transpose()?;
            let is_carried = matches!(then, FusedActivation::AddRelu(_));
            let y = if matches!(then, FusedActivation::Nothing) { None } else { Some(saver.save_output(&out, 0)?) };
            Ok(move |context: &Context<'_>| {
                let mut grad = context.grad(0)?;
                let x = context.unpack(saved)?;
                let weight = weight.map(|weight| context.unpack(weight)).transpose()?;
                let mut y = y.map(|y| context.unpack(y)).transpose()?;
                // If a carried tensor was added, its gradient needs the gradient of the sum too.
                if let Some(sum) = y.take_if(|_| is_carried || is_grad_enabled()) {
                    grad = relu_backward(&grad, &sum)?;
                }
                let carried = is_carried.then(|| grad.clone());
                let mut grads = if is_grad_enabled() {
                    differentiable(&grad, &x, weight.as_ref(), has_bias, eps)?
                } else {
                    let mean = context.unpack(mean)?;
                    let rstd = context.unpack(rstd)?;
                    let scale = context.unpack(scale)?;
                    let sums = [mean.empty_like()?, mean.empty_like()?];
                    let out = [&sums[0], &sums[1]];
                    NORMALIZE_SUMS.find(x.device().kind(), x.dtype())?(out, &grad, &x, &mean, y.as_ref())?;
                    let new = |dtype| Tensor::empty(&[channels], dtype, x.device());
                    let slope = new(mean.dtype())?;
                    let shift = new(mean.dtype())?;
                    let to_weight = weight.as_ref().map(|weight| new(weight.dtype())).transpose()?;
                    let to_bias = bias_dtype.map(new).transpose()?;
                    let [grads, products] = sums.each_ref().map(|sum| sum.alias(rstd.layout().clone()));
                    let gradients = ChannelGradients {
                        grads: &grads,
                        products: &products,
                        rstd: &rstd,
                        weight: weight.as_ref(),
                        slope: &slope,
                        shift: &shift,
                        to_weight: to_weight.as_ref(),
                        to_bias: to_bias.as_ref(),
                    };
                    GRADIENTS.find(x.device().kind(), x.dtype())?(gradients, count)?;
                    let to_x = context.give(0, || {
                        let out = output(x.sizes(), x.dtype(), &[&x])?;
                        let scale = along_channels(&scale, &x)?;
                        let slope = along_channels(&slope, &x)?;
                        let shift = along_channels(&shift, &x)?;
                        let mut inputs = vec![&grad, &x, &mean, &scale, &slope, &shift];
                        inputs.extend(&y);
                        let kernel = if y.is_some() { &RELU_BACKWARD } else { &NORMALIZE_BACKWARD };
                        let iter = Elementwise::new("batch_norm_backward", &[&out], &inputs)?;
                        kernel.find(x.device().kind(), x.dtype())?(&iter)?;
                        drop(iter);
                        Ok(out)
                    })?;
                    let mut grads: Grads = [to_x].into_iter().collect();
                    grads.extend(to_weight.into_iter().chain(to_bias).map(Some));
                    grads
                };
                grads.extend(carried.map(Some));
                Ok(grads)
            })
        })
    }

    /// Normalises by averages that do not depend on the input.
    fn by_averages(
        &self,
        x: &Tensor,
        average: &Tensor,
        variance: &Tensor,
        then: FusedActivation<'_>,
    ) -> Result<Tensor> {
        let inputs = self.inputs(x, then);
        if !is_grad_enabled() || !inputs.iter().any(|input| input.requires_grad()) {
            let one;
            let weight = match self.weight {
                Some(weight) => &along_channels(weight, x)?,
                None => {
                    one = Tensor::ones(&[], computed(x.dtype()), Device::CPU)?;
                    &one
                }
            };
            let scale = Scale::Of { variance: &along_channels(variance, x)?, weight, eps: self.eps };
            return self.normalize(x, &along_channels(average, x)?, scale, then);
        }
        let affine = affine(x);
        let (out, mean, rstd) = self.by_scale(x, average, variance, then)?;
        let eps = self.eps;
        let weight = self.weight;
        let has_bias = self.bias.is_some();
        recipe::note(&out, "batch_norm", [x, average, variance], [weight, self.bias, then.carried()], || {
            let is_above = !matches!(then, FusedActivation::Nothing);
            move |[x, mean, variance], [weight, bias, carried]| {
                let norm = BatchNormParameters { running: None, weight, bias, training: false, momentum: 0.0, eps };
                Ok(norm.by_scale(x, mean, variance, FusedActivation::of(is_above, carried))?.0)
            }
        });
        let dims = others(x);
        attach(out.clone(), "batch_norm", &inputs, |saver| {
            let saved = saver.save_if(weight.is_some(), x)?;
            let mean = saver.save(&mean)?;
            let rstd = saver.save(&rstd)?;
            let weight = weight.map(|weight| saver.save(weight)).transpose()?;
            let is_carried = matches!(then, FusedActivation::AddRelu(_));
            let y = if matches!(then, FusedActivation::Nothing) { None } else { Some(saver.save_output(&out, 0)?) };
            Ok(move |context: &Context<'_>| {
                let mut grad = context.grad(0)?;
                let mean = context.unpack(mean)?;
                let rstd = context.unpack(rstd)?;
                if let Some(y) = y {
                    grad = relu_backward(&grad, &context.unpack(y)?)?;
                }
                let weight = weight.map(|weight| context.unpack(weight)).transpose()?;
                let to_x = context.give(0, || {
                    grad.mul(&weighted(&rstd, weight.as_ref())?.reshape(&affine)?)?.to_dtype(grad.dtype())
                })?;
                let mut grads: Grads = [to_x].into_iter().collect();
                if weight.is_some() {
                    let x = context.unpack(saved)?;
                    grads.push(context.give(1, || grad.mul(&x.sub(&mean)?)?.sum(&dims, false)?.mul(&rstd))?);
                }
                if has_bias {
                    grads.push(Some(grad.sum(&dims, false)?));
                }
                grads.extend(is_carried.then_some(Some(grad)));
                Ok(grads)
            })
        })
    }

    /// Normalises by averages. Returns the result and the tensors that gradients need: the mean, reshaped to broadcast,
    /// and one over the standard deviation.
    fn by_scale(
        &self,
        x: &Tensor,
        mean: &Tensor,
        variance: &Tensor,
        then: FusedActivation<'_>,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let compute = computed(x.dtype());
        let affine = affine(x);
        let (mean, rstd, scale) = no_grad(|| {
            let rstd = variance.to_dtype(compute)?.add(self.eps)?.rsqrt()?;
            let scale = weighted(&rstd, self.weight)?;
            Ok::<_, TensorError>((mean.to_dtype(compute)?.reshape(&affine)?, rstd, scale.reshape(&affine)?))
        })?;
        Ok((self.normalize(x, &mean, Scale::Is(&scale), then)?, mean, rstd))
    }

    /// Returns the inputs that may have a gradient.
    fn inputs<'b>(&'b self, x: &'b Tensor, then: FusedActivation<'b>) -> Vec<&'b Tensor> {
        [x].into_iter().chain(self.weight).chain(self.bias).chain(then.carried()).collect()
    }

    fn normalize(&self, x: &Tensor, mean: &Tensor, scale: Scale<'_>, then: FusedActivation<'_>) -> Result<Tensor> {
        let shift = match self.bias {
            Some(bias) => along_channels(bias, x)?,
            None => Tensor::zeros(&[], computed(x.dtype()), Device::CPU)?,
        };
        let out = output(x.sizes(), x.dtype(), &[x])?;
        NORMALIZE.find(x.device().kind(), x.dtype())?(
            &out,
            x,
            ChannelCoefficients { mean, scale, shift: &shift },
            then,
        )?;
        Ok(out)
    }
}

/// Computes the gradients of input, weight and bias with operations that have gradients themselves.
fn differentiable(grad: &Tensor, x: &Tensor, weight: Option<&Tensor>, has_bias: bool, eps: f64) -> Result<Grads> {
    let dims = others(x);
    let weight = shaped(weight, &affine(x))?;
    let mut grads = composed(grad, x, weight.as_ref(), has_bias, true, &dims, eps)?;
    for grad in grads[1..].iter_mut().flatten() {
        let sizes: Vec<usize> = affine(x).iter().map(|size| *size as usize).collect();
        *grad = grad.sum_to(&sizes)?.reshape(&[-1])?;
    }
    Ok(grads)
}

/// Returns all dimensions except that of channels.
fn others(x: &Tensor) -> Vec<isize> {
    (0..x.rank() as isize).filter(|dim| *dim != 1).collect()
}

/// Returns sizes with one element for each channel, which broadcast to those of `x`.
fn affine(x: &Tensor) -> Vec<isize> {
    let mut sizes = vec![1; x.rank()];
    sizes[1] = x.sizes()[1];
    signed(&sizes)
}
