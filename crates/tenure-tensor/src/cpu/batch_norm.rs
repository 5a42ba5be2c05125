//! Channels normalised over a batch. What there is once a channel is computed by operations one after the other.

use super::math::Math;
use super::norm::normalize;
use crate::autograd::no_grad;
use crate::kernel::on_cpu;
use crate::ops::weighted;
use crate::{Element, Elementwise, Entry, Float, Result, Tensor};

/// What is known of each channel once its moments are. All are `[channels]`.
#[derive(Clone, Copy)]
pub(crate) struct Settled<'a> {
    /// In what is computed in, as `squares`, `rstd` and `scale` are.
    pub(crate) mean: &'a Tensor,
    /// Sums of squared deviations.
    pub(crate) squares: &'a Tensor,
    pub(crate) weight: Option<&'a Tensor>,
    /// Running mean and variance, which are moved.
    pub(crate) running: Option<(&'a Tensor, &'a Tensor)>,
    /// Written: one over the standard deviation.
    pub(crate) rstd: &'a Tensor,
    /// Written: `rstd` times the weight, if there is one.
    pub(crate) scale: &'a Tensor,
}

/// What the gradient of each channel is made with. All are `[channels]`.
#[derive(Clone, Copy)]
pub(crate) struct ChannelGradients<'a> {
    /// Sums of the output's gradient, and of its products with deviations; in what is computed in, as `rstd`, `slope` and
    /// `shift` are.
    pub(crate) grads: &'a Tensor,
    pub(crate) products: &'a Tensor,
    pub(crate) rstd: &'a Tensor,
    pub(crate) weight: Option<&'a Tensor>,
    /// Written: what the gradient loses along the deviations, and with the mean.
    pub(crate) slope: &'a Tensor,
    pub(crate) shift: &'a Tensor,
    /// Written, each in its own dtype.
    pub(crate) to_weight: Option<&'a Tensor>,
    pub(crate) to_bias: Option<&'a Tensor>,
}

/// What each channel is normalised by, of sizes that broadcast: `(x - mean) * scale + shift`.
#[derive(Clone, Copy)]
pub(crate) struct By<'a> {
    pub(crate) mean: &'a Tensor,
    pub(crate) scale: Scale<'a>,
    pub(crate) shift: &'a Tensor,
}

#[derive(Clone, Copy)]
pub(crate) enum Scale<'a> {
    Is(&'a Tensor),
    /// The weight over the root of the variance with `eps`.
    Of {
        variance: &'a Tensor,
        weight: &'a Tensor,
        eps: f64,
    },
}

/// What follows.
#[derive(Clone, Copy)]
pub(crate) enum Then<'a> {
    Nothing,
    /// What is above 0.
    Relu,
    /// What is above 0 of the sum with a tensor of the same sizes and dtype.
    AddRelu(&'a Tensor),
}

impl<'a> Then<'a> {
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

/// Of the elements of a channel, their count; momentum; what is added to variances.
pub(crate) type Settle = fn(Settled<'_>, f64, f64, f64) -> Result<()>;
/// Writes an input as it is normalised, and what follows.
pub(crate) type Normalize = fn(&Tensor, &Tensor, By<'_>, Then<'_>) -> Result<()>;
/// Of the count of elements of a channel.
pub(crate) type Gradients = fn(ChannelGradients<'_>, f64) -> Result<()>;

pub(crate) const SETTLE: &[Entry<Settle>] = on_cpu!(floats: settle);
pub(crate) const NORMALIZE: &[Entry<Normalize>] = on_cpu!(floats: normalize_channels::<T>);
pub(crate) const GRADIENTS: &[Entry<Gradients>] = on_cpu!(floats: gradients);

fn settle(settled: Settled<'_>, count: f64, momentum: f64, eps: f64) -> Result<()> {
    let Settled { mean, squares, weight, running, rstd, scale } = settled;
    no_grad(|| {
        let variance = squares.div(count)?;
        rstd.copy_raw(&variance.add(eps)?.rsqrt()?)?;
        if let Some(weight) = weight {
            scale.copy_raw(&weighted(rstd, Some(weight))?)?;
        }
        let Some((running_mean, running_variance)) = running else { return Ok(()) };
        let follow = |average: &Tensor, statistic: &Tensor| {
            average.copy_raw(&average.mul(1.0 - momentum)?.add(&statistic.mul(momentum)?)?)
        };
        follow(running_mean, mean)?;
        follow(running_variance, &variance.mul(count / (count - 1.0))?)
    })
}

fn normalize_channels<T: Float<Compute: Math>>(out: &Tensor, x: &Tensor, by: By<'_>, then: Then<'_>) -> Result<()> {
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
        if let Then::AddRelu(carried) = then {
            out.add_raw(carried)?;
        }
        if matches!(then, Then::Nothing) { Ok(()) } else { out.relu_() }
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
