//! Loss scaling, which keeps half-precision gradients from vanishing.

use serde::{Deserialize, Serialize};
use tenure_tensor::cuda::is_capturing;
use tenure_tensor::{Tensor, TensorError, autograd};

use super::{Optimizer, clip};
use crate::{Parameter, Result};

/// Scales a loss up before `backward` and its gradients down afterwards, and skips a step whose gradients are not
/// finite. PyTorch's `torch.amp.GradScaler` for one optimizer, with `update` as part of [`step`](Self::step).
#[derive(Clone, Debug)]
pub struct GradScaler {
    /// The state between steps, which belongs in a checkpoint.
    pub state: ScalerState,
    /// The factor by which the scale grows.
    pub growth_factor: f64,
    /// The factor by which the scale shrinks after a skipped step.
    pub backoff_factor: f64,
    /// The number of consecutive steps after which the scale grows.
    pub growth_interval: u64,
}

/// The state of a [`GradScaler`] between steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalerState {
    /// The factor of the loss.
    pub scale: f64,
    /// The number of steps since the scale changed.
    pub steps: u64,
}

impl Default for GradScaler {
    fn default() -> Self {
        let state = ScalerState { scale: 65_536.0, steps: 0 };
        Self { state, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2_000 }
    }
}

impl GradScaler {
    /// Returns the scaled loss, on which to call `backward`.
    ///
    /// # Errors
    /// The scale is not above 0 and finite; no memory.
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        self.check()?;
        Ok(loss.mul(self.state.scale)?)
    }

    /// Scales the gradients down, so that they can be clipped or inspected before [`step`](Self::step), which otherwise
    /// does this itself. Returns whether all are finite. If not, none was changed.
    ///
    /// # Errors
    /// The gradients were already scaled down for this step; the scale is not above 0 and finite; no memory.
    pub fn unscale(&self, optimizer: &mut Optimizer) -> Result<bool> {
        self.check()?;
        if optimizer.unscaled.is_some() {
            let reason = "the gradients were scaled down already: call it once, then GradScaler::step";
            return Err(TensorError::argument("GradScaler::unscale", reason).into());
        }
        let is_finite = unscale_grads(optimizer.parameters(), self.state.scale)?;
        optimizer.unscaled = Some(is_finite);
        Ok(is_finite)
    }

    /// Steps if the gradients are finite, and adapts the scale. Returns whether it stepped.
    ///
    /// # Errors
    /// The errors of [`Optimizer::step`].
    pub fn step(&mut self, optimizer: &mut Optimizer) -> Result<bool> {
        let is_finite = match optimizer.unscaled {
            Some(is_finite) => is_finite,
            None => self.unscale(optimizer)?,
        };
        if is_finite {
            optimizer.step()?;
            self.state.steps += 1;
        } else {
            optimizer.unscaled = None;
            self.state = ScalerState { scale: self.state.scale * self.backoff_factor, steps: 0 };
        }
        if self.state.steps == self.growth_interval {
            self.state = ScalerState { scale: self.state.scale * self.growth_factor, steps: 0 };
        }
        Ok(is_finite)
    }

    fn check(&self) -> Result<()> {
        if is_capturing() {
            let reason = "whether gradients are finite is read from the device, which cannot be captured: capture the \
                          forward and backward pass alone, or train in bfloat16, which needs no scaling";
            return Err(TensorError::argument("GradScaler", reason).into());
        }
        let scale = self.state.scale;
        if scale.is_finite() && scale > 0.0 {
            return Ok(());
        }
        Err(TensorError::argument("GradScaler", format!("the scale is {scale}: a number above 0 is expected")).into())
    }
}

/// Divides the gradients of parameters by `scale`. Returns whether all are finite. If not, none was changed.
///
/// # Errors
/// No memory.
pub fn unscale_grads<'a>(parameters: impl Iterator<Item = &'a Parameter> + Clone, scale: f64) -> Result<bool> {
    let is_finite = autograd::no_grad(|| clip::squares(parameters.clone())?.item::<f64>())?.is_finite();
    if is_finite {
        clip::scale_grads(parameters, 1.0 / scale)?;
    }
    Ok(is_finite)
}
