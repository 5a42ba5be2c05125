//! Normalisation.

use tenure_tensor::{DType, Result, Tensor, TensorError, autograd};

use super::Layer;
use crate::{Buffer, Init, Mode, Parameter, Scope, module};

/// Normalises each channel over a batch, and in use by what was seen in training (Ioffe and Szegedy, 2015). PyTorch's
/// `nn.BatchNorm1d`, `nn.BatchNorm2d`, `nn.BatchNorm3d`.
pub struct BatchNorm<const D: usize> {
    /// `[channels]`.
    pub weight: Parameter,
    /// `[channels]`.
    pub bias: Parameter,
    /// The mean of each channel, as far as it was seen.
    pub running_mean: Buffer,
    /// The variance of each channel, as far as it was seen.
    pub running_var: Buffer,
    /// Batches seen.
    pub num_batches_tracked: Buffer,
    mode: Mode,
    momentum: f64,
    eps: f64,
}
module!(BatchNorm<1> { weight, bias, running_mean, running_var, num_batches_tracked, mode });
module!(BatchNorm<2> { weight, bias, running_mean, running_var, num_batches_tracked, mode });
module!(BatchNorm<3> { weight, bias, running_mean, running_var, num_batches_tracked, mode });

/// Of `[batch, channels]` or `[batch, channels, length]`.
pub type BatchNorm1d = BatchNorm<1>;
/// Of `[batch, channels, height, width]`.
pub type BatchNorm2d = BatchNorm<2>;
/// Of `[batch, channels, depth, height, width]`.
pub type BatchNorm3d = BatchNorm<3>;

impl<const D: usize> BatchNorm<D> {
    /// A layer with PyTorch's momentum 0.1 and ε 10⁻⁵.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, channels: usize) -> Result<Self> {
        Self::with_eps(scope, channels, 1e-5)
    }

    /// A layer with another ε.
    ///
    /// # Errors
    /// No memory.
    pub fn with_eps(scope: &Scope, channels: usize, eps: f64) -> Result<Self> {
        Ok(Self {
            weight: scope.parameter("weight", &[channels], Init::ONES)?,
            bias: scope.parameter("bias", &[channels], Init::ZEROS)?,
            running_mean: scope.buffer("running_mean", &[channels], 0, scope.dtype())?,
            running_var: scope.buffer("running_var", &[channels], 1, scope.dtype())?,
            num_batches_tracked: scope.buffer("num_batches_tracked", &[], 0, DType::I64)?,
            mode: Mode::default(),
            momentum: 0.1,
            eps,
        })
    }

    fn apply(&self, input: &Tensor) -> Result<Tensor> {
        if input.rank() != D + 2 && !(D == 1 && input.rank() == 2) {
            let reason = format!("{} dimensions are expected, got sizes {:?}", D + 2, input.sizes());
            return Err(TensorError::shape("batch_norm", reason));
        }
        let is_training = self.mode.is_training();
        if is_training {
            autograd::no_grad(|| self.num_batches_tracked.add_(1))?;
        }
        let running = Some((&*self.running_mean, &*self.running_var));
        input.batch_norm(running, Some(&self.weight), Some(&self.bias), is_training, self.momentum, self.eps)
    }
}

macro_rules! layers {
    ($($dims:literal)*) => {$(
        impl Layer for BatchNorm<$dims> {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                self.apply(input)
            }
        }
    )*};
}
layers!(1 2 3);

/// Normalises over the last dimensions (Ba et al., 2016). PyTorch's `nn.LayerNorm`.
pub struct LayerNorm {
    /// Of the sizes that are normalised.
    pub weight: Parameter,
    /// The same.
    pub bias: Parameter,
    eps: f64,
}
module!(LayerNorm { weight, bias });

impl LayerNorm {
    /// A layer over dimensions of these sizes. PyTorch's ε is 10⁻⁵; BERT's is 10⁻¹².
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, sizes: &[usize], eps: f64) -> Result<Self> {
        let weight = scope.parameter("weight", sizes, Init::ONES)?;
        let bias = scope.parameter("bias", sizes, Init::ZEROS)?;
        Ok(Self { weight, bias, eps })
    }
}

impl Layer for LayerNorm {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.layer_norm(self.weight.sizes(), Some(&self.weight), Some(&self.bias), self.eps)
    }
}

/// Divides by the root of the mean square over the last dimensions (Zhang and Sennrich, 2019). PyTorch's `nn.RMSNorm`.
pub struct RmsNorm {
    /// Of the sizes that are normalised.
    pub weight: Parameter,
    eps: f64,
}
module!(RmsNorm { weight });

impl RmsNorm {
    /// A layer over dimensions of these sizes.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, sizes: &[usize], eps: f64) -> Result<Self> {
        Ok(Self { weight: scope.parameter("weight", sizes, Init::ONES)?, eps })
    }
}

impl Layer for RmsNorm {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.rms_norm(self.weight.sizes(), Some(&self.weight), self.eps)
    }
}

/// Normalises groups of channels (Wu and He, 2018). PyTorch's `nn.GroupNorm`.
pub struct GroupNorm {
    /// `[channels]`.
    pub weight: Parameter,
    /// `[channels]`.
    pub bias: Parameter,
    groups: usize,
    eps: f64,
}
module!(GroupNorm { weight, bias });

impl GroupNorm {
    /// A layer with PyTorch's ε 10⁻⁵.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, groups: usize, channels: usize) -> Result<Self> {
        let weight = scope.parameter("weight", &[channels], Init::ONES)?;
        let bias = scope.parameter("bias", &[channels], Init::ZEROS)?;
        Ok(Self { weight, bias, groups, eps: 1e-5 })
    }
}

impl Layer for GroupNorm {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.group_norm(self.groups, Some(&self.weight), Some(&self.bias), self.eps)
    }
}
