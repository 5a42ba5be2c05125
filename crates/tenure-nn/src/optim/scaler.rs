//! Losses are scaled so that gradients of half precision do not vanish.

use serde::{Deserialize, Serialize};
use tenure_tensor::cuda::is_capturing;
use tenure_tensor::{Tensor, TensorError, autograd};

use super::{Optimizer, clip};
use crate::Result;

/// Scales a loss up before `backward` and gradients down after it, and leaves a step out whose gradients are not
/// finite. PyTorch's `torch.amp.GradScaler` for one optimizer, whose `update` is part of [`step`](Self::step).
#[derive(Clone, Debug)]
pub struct GradScaler {
    /// What it keeps between steps, to be kept in a checkpoint.
    pub state: ScalerState,
    /// By how much the scale grows.
    pub growth_factor: f64,
    /// By how much it shrinks after a step was left out.
    pub backoff_factor: f64,
    /// After how many steps in a row it grows.
    pub growth_interval: u64,
}

/// What a [`GradScaler`] keeps between steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalerState {
    /// What losses are multiplied by.
    pub scale: f64,
    /// Steps made since it changed.
    pub steps: u64,
}

impl Default for GradScaler {
    fn default() -> Self {
        let state = ScalerState { scale: 65_536.0, steps: 0 };
        Self { state, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2_000 }
    }
}

impl GradScaler {
    /// The loss to call `backward` of.
    ///
    /// # Errors
    /// The scale is not above 0 and finite; no memory.
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        self.check()?;
        Ok(loss.mul(self.state.scale)?)
    }

    /// Scales the gradients down, for them to be clipped or looked at before [`step`](Self::step), which does it itself
    /// otherwise. Returns whether all are finite; if not, none was changed.
    ///
    /// # Errors
    /// They were scaled down already for this step; the scale is not above 0 and finite; no memory.
    pub fn unscale(&self, optimizer: &mut Optimizer) -> Result<bool> {
        self.check()?;
        if optimizer.unscaled.is_some() {
            let reason = "the gradients were scaled down already: call it once, then GradScaler::step";
            return Err(TensorError::argument("GradScaler::unscale", reason).into());
        }
        let is_finite = autograd::no_grad(|| clip::squares(optimizer.parameters())?.item::<f64>())?.is_finite();
        if is_finite {
            clip::scale_grads(optimizer.parameters(), 1.0 / self.state.scale)?;
        }
        optimizer.unscaled = Some(is_finite);
        Ok(is_finite)
    }

    /// Steps, if the gradients are finite, and adapts the scale. Returns whether it stepped.
    ///
    /// # Errors
    /// Those of [`Optimizer::step`].
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
