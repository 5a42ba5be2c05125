//! Batch normalisation. Values per channel are computed by ordinary operations, one after the other.

use super::math::Math;
use super::norm::normalize;
use crate::autograd::no_grad;
use crate::kernel::on_cpu;
use crate::{Element, Elementwise, Entry, Float, Result, Tensor};

/// The statistics of each channel, and the tensors that [`FinishStatistics`] writes from them. All are `[channels]`.
#[derive(Clone, Copy)]
pub(crate) struct ChannelStatistics<'a> {
    /// The mean, in the dtype to compute in, as are `squares`, `rstd` and `scale`.
    pub(crate) mean: &'a Tensor,
    /// The sum of squared deviations.
    pub(crate) squares: &'a Tensor,
    pub(crate) weight: Option<&'a Tensor>,
    /// The running mean and variance, which are updated.
    pub(crate) running: Option<(&'a Tensor, &'a Tensor)>,
    /// Written: one over the standard deviation.
    pub(crate) rstd: &'a Tensor,
    /// Written if there is a weight: `rstd` times the weight.
    pub(crate) scale: &'a Tensor,
}

/// The inputs and outputs of the computation of each channel's gradient. All are `[channels]`.
#[derive(Clone, Copy)]
pub(crate) struct ChannelGradients<'a> {
    /// The sum of the output's gradient. `products` has the sums of its products with deviations. They have the dtype
    /// to compute in, as have `rstd`, `slope` and `shift`.
    pub(crate) grads: &'a Tensor,
    pub(crate) products: &'a Tensor,
    pub(crate) rstd: &'a Tensor,
    pub(crate) weight: Option<&'a Tensor>,
    /// Written: the factor of the deviations, and the constant, in the input's gradient.
    pub(crate) slope: &'a Tensor,
    pub(crate) shift: &'a Tensor,
    /// Written: the gradients of weight and bias, each in its own dtype.
    pub(crate) to_weight: Option<&'a Tensor>,
    pub(crate) to_bias: Option<&'a Tensor>,
}

/// The coefficients of each channel's normalisation `(x - mean) * scale + shift`, of sizes that broadcast.
#[derive(Clone, Copy)]
pub(crate) struct ChannelCoefficients<'a> {
    pub(crate) mean: &'a Tensor,
    pub(crate) scale: Scale<'a>,
    pub(crate) shift: &'a Tensor,
}

#[derive(Clone, Copy)]
pub(crate) enum Scale<'a> {
    Is(&'a Tensor),
    /// The weight divided by the root of the variance plus `eps`.
    Of {
        variance: &'a Tensor,
        weight: &'a Tensor,
        eps: f64,
    },
}

/// The function applied to the normalised value.
#[derive(Clone, Copy)]
pub(crate) enum FusedActivation<'a> {
    Nothing,
    /// ReLU.
    Relu,
    /// ReLU of the sum with a tensor of the same sizes and dtype.
    AddRelu(&'a Tensor),
}

impl<'a> FusedActivation<'a> {
    pub(crate) fn of(is_above: bool, carried: Option<&'a Tensor>) -> Self {
        match carried {
            Some(carried) => Self::AddRelu(carried),
            None if is_above => Self::Relu,
            None => Self::Nothing,
        }
    }

    pub(crate) fn carried(self) -> Option<&'a Tensor> {
        if let Self::AddRelu(carried) = self { Some(carried) } else { None }
    }
}

/// A kernel that writes the last tensors of [`ChannelStatistics`] and updates the running averages, from the number of
/// elements in a channel, the momentum, and the number added to variances.
pub(crate) type FinishStatistics = fn(ChannelStatistics<'_>, f64, f64, f64) -> Result<()>;
/// A kernel that writes the normalised input, with the function applied after it.
pub(crate) type NormalizeChannels = fn(&Tensor, &Tensor, ChannelCoefficients<'_>, FusedActivation<'_>) -> Result<()>;
/// A kernel that computes [`ChannelGradients`], from the number of elements in a channel.
pub(crate) type Gradients = fn(ChannelGradients<'_>, f64) -> Result<()>;

pub(crate) const FINISH_STATISTICS: &[Entry<FinishStatistics>] = on_cpu!(floats: finish_statistics);
pub(crate) const NORMALIZE: &[Entry<NormalizeChannels>] = on_cpu!(floats: normalize_channels::<T>);
pub(crate) const GRADIENTS: &[Entry<Gradients>] = on_cpu!(floats: gradients);

fn finish_statistics(statistics: ChannelStatistics<'_>, count: f64, momentum: f64, eps: f64) -> Result<()> {
    let ChannelStatistics { mean, squares, weight, running, rstd, scale } = statistics;
    no_grad(|| {
        let variance = squares.div(count)?;
        rstd.copy_raw(&variance.add(eps)?.rsqrt()?)?;
        if let Some(weight) = weight {
            scale.copy_raw(&weighted(rstd, Some(weight))?)?;
        }
        let Some((running_mean, running_variance)) = running else { return Ok(()) };
        follow(running_mean, mean, momentum)?;
        follow(running_variance, &variance.mul(count / (count - 1.0))?, momentum)
    })
}

fn normalize_channels<T: Float<Compute: Math>>(
    out: &Tensor,
    x: &Tensor,
    by: ChannelCoefficients<'_>,
    then: FusedActivation<'_>,
) -> Result<()> {
    let compute = <T::Compute as Element>::DTYPE;
    no_grad(|| {
        let scale = match by.scale {
            Scale::Is(scale) => scale.clone(),
            Scale::Of { variance, weight, eps } => {
                variance.to_dtype(compute)?.add(eps)?.rsqrt()?.mul(&weight.to_dtype(compute)?)?
            }
        };
        let mean = by.mean.to_dtype(compute)?;
        normalize::<T::Compute>(&Elementwise::new("batch_norm", &[out], &[x, &mean, &scale, by.shift])?)?;
        if let FusedActivation::AddRelu(carried) = then {
            out.add_raw(carried)?;
        }
        if matches!(then, FusedActivation::Nothing) { Ok(()) } else { out.relu_() }
    })
}

fn gradients(gradients: ChannelGradients<'_>, count: f64) -> Result<()> {
    let ChannelGradients { grads, products, rstd, weight, slope, shift, to_weight, to_bias } = gradients;
    no_grad(|| {
        let lost = |sums: &Tensor| weighted(sums, weight)?.mul(rstd)?.mul(-1.0 / count);
        shift.copy_raw(&lost(grads)?)?;
        slope.copy_raw(&lost(products)?.mul(rstd)?.mul(rstd)?)?;
        if let Some(to_weight) = to_weight {
            to_weight.copy_raw(&products.mul(rstd)?)?;
        }
        to_bias.map_or(Ok(()), |to_bias| to_bias.copy_raw(grads))
    })
}

/// Multiplies with the weight, if there is one, in the tensor's dtype.
pub(crate) fn weighted(tensor: &Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
    weight.map_or_else(|| Ok(tensor.clone()), |weight| tensor.mul(&weight.to_dtype(tensor.dtype())?))
}

/// Moves a running average towards a statistic.
fn follow(average: &Tensor, statistic: &Tensor, momentum: f64) -> Result<()> {
    average.copy_raw(&average.mul(1.0 - momentum)?.add(&statistic.mul(momentum)?)?)
}
