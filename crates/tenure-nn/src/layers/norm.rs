//! Normalisation.

use tenure_tensor::{DType, Result, Tensor, TensorError, autograd, ops};

use super::Layer;
use crate::purpose::ModuleGuard;
use crate::{Buffer, Init, Mode, Parameter, Scope, module};

/// Normalises each channel over a batch, and in use by what was seen in training (Ioffe and Szegedy, 2015). PyTorch's
/// `nn.BatchNorm1d`, `nn.BatchNorm2d`, `nn.BatchNorm3d`. What a [checkpoint](autograd::checkpoint) computes again is seen
/// once.
pub struct BatchNorm<const D: usize> {
    /// `[channels]`.
    pub weight: Option<Parameter>,
    /// `[channels]`.
    pub bias: Option<Parameter>,
    /// What was seen in training.
    pub running: Option<Running>,
    mode: Mode,
    options: BatchNormOptions,
}
module!(BatchNorm<1> { weight, bias, running, mode });
module!(BatchNorm<2> { weight, bias, running, mode });
module!(BatchNorm<3> { weight, bias, running, mode });

/// Of `[batch, channels]` or `[batch, channels, length]`.
pub type BatchNorm1d = BatchNorm<1>;
/// Of `[batch, channels, height, width]`.
pub type BatchNorm2d = BatchNorm<2>;
/// Of `[batch, channels, depth, height, width]`.
pub type BatchNorm3d = BatchNorm<3>;

/// What a [`BatchNorm`] has, and computes with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormOptions {
    /// Added to variances.
    pub eps: f64,
    /// How far running averages move towards a batch's; with none, they are the averages of all batches.
    pub momentum: Option<f64>,
    /// It has a weight and a bias.
    pub affine: bool,
    /// It has running averages. One without normalises by the batch's own in use too.
    pub track_running_stats: bool,
}

impl Default for BatchNormOptions {
    /// PyTorch's.
    fn default() -> Self {
        Self { eps: 1e-5, momentum: Some(0.1), affine: true, track_running_stats: true }
    }
}

/// What a [`BatchNorm`] saw.
pub struct Running {
    /// The mean of each channel, as far as it was seen.
    pub running_mean: Buffer,
    /// The variance of each channel, as far as it was seen.
    pub running_var: Buffer,
    /// Batches seen.
    pub num_batches_tracked: Buffer,
}
module!(Running { running_mean, running_var, num_batches_tracked });

impl<const D: usize> BatchNorm<D> {
    /// A layer with PyTorch's options.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, channels: usize) -> Result<Self> {
        Self::with_options(scope, channels, BatchNormOptions::default())
    }

    /// A layer with others.
    ///
    /// # Errors
    /// No memory.
    pub fn with_options(scope: &Scope, channels: usize, options: BatchNormOptions) -> Result<Self> {
        let BatchNormOptions { affine, track_running_stats, .. } = options;
        Ok(Self {
            weight: parameter(scope, "weight", &[channels], Init::ONES, affine)?,
            bias: parameter(scope, "bias", &[channels], Init::ZEROS, affine)?,
            running: track_running_stats.then(|| Running::new(scope, channels)).transpose()?,
            mode: Mode::default(),
            options,
        })
    }

    /// What is above 0 of what the layer makes of an input, and of its sum with what is `carried` around it: as one
    /// operation, [`Tensor::batch_norm_relu`].
    ///
    /// # Errors
    /// Those of [`forward`](Layer::forward); sizes of `carried` that do not broadcast.
    pub fn forward_relu(&self, input: &Tensor, carried: Option<&Tensor>) -> Result<Tensor> {
        let _module = self.enter_module();
        self.normalise(input, |settings| input.batch_norm_relu(carried, &settings))
    }

    /// None if it has neither a parameter nor a buffer that says where it is.
    fn enter_module(&self) -> Option<ModuleGuard> {
        let seen = || self.running.as_ref().map(|running| running.running_mean.enter_module());
        self.weight.as_ref().map(Parameter::enter_module).or_else(seen)
    }

    /// Calls an operation with what this time's input is normalised with. Counts it.
    fn normalise(
        &self,
        input: &Tensor,
        operation: impl FnOnce(ops::BatchNorm<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        if input.rank() != D + 2 && !(D == 1 && input.rank() == 2) {
            let reason = format!("{} dimensions are expected, got sizes {:?}", D + 2, input.sizes());
            return Err(TensorError::shape("batch_norm", reason));
        }
        let (running, is_training) = (self.running.as_ref(), self.mode.is_training());
        let sees = is_training && !autograd::is_recomputing();
        let seeing = running.filter(|_| sees);
        if let Some(running) = seeing {
            autograd::no_grad(|| running.num_batches_tracked.add_(1))?;
        }
        // How many batches an average is of is known on the device alone: it takes the batch's own afterwards.
        let own = match seeing.filter(|_| self.options.momentum.is_none()) {
            Some(running) => Some((running, running.running_mean.zeros_like()?, running.running_var.zeros_like()?)),
            None => None,
        };
        let averages = running.filter(|_| sees || !is_training);
        let averages = averages.map(|running| (&*running.running_mean, &*running.running_var));
        let output = operation(ops::BatchNorm {
            running: own.as_ref().map(|(_, mean, variance)| (mean, variance)).or(averages),
            weight: self.weight.as_deref(),
            bias: self.bias.as_deref(),
            training: is_training || running.is_none(),
            momentum: self.options.momentum.unwrap_or(1.0),
            eps: self.options.eps,
        })?;
        if let Some((running, mean, variance)) = own {
            autograd::no_grad(|| running.average(&mean, &variance))?;
        }
        Ok(output)
    }
}

impl Running {
    fn new(scope: &Scope, channels: usize) -> Result<Self> {
        Ok(Self {
            running_mean: scope.buffer("running_mean", &[channels], 0, scope.dtype())?,
            running_var: scope.buffer("running_var", &[channels], 1, scope.dtype())?,
            num_batches_tracked: scope.buffer("num_batches_tracked", &[], 0, DType::I64)?,
        })
    }

    /// Makes averages of all batches of what they were without the last, which is counted.
    fn average(&self, mean: &Tensor, variance: &Tensor) -> Result<()> {
        for (running, last) in [(&self.running_mean, mean), (&self.running_var, variance)] {
            running.add_(&last.sub(running)?.div(&self.num_batches_tracked)?)?;
        }
        Ok(())
    }
}

macro_rules! layers {
    ($($dims:literal)*) => {$(
        impl Layer for BatchNorm<$dims> {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let _module = self.enter_module();
                self.normalise(input, |settings| {
                    let ops::BatchNorm { running, weight, bias, training, momentum, eps } = settings;
                    input.batch_norm(running, weight, bias, training, momentum, eps)
                })
            }
        }
    )*};
}
layers!(1 2 3);

/// What a [`LayerNorm`] or a [`GroupNorm`] has, and computes with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormOptions {
    /// Added to variances.
    pub eps: f64,
    /// It has a weight, and a bias too unless it is left out.
    pub affine: bool,
    /// The bias is not left out.
    pub bias: bool,
}

impl Default for NormOptions {
    /// PyTorch's.
    fn default() -> Self {
        Self { eps: 1e-5, affine: true, bias: true }
    }
}

/// Normalises over the last dimensions (Ba et al., 2016). PyTorch's `nn.LayerNorm`.
pub struct LayerNorm {
    /// Of the sizes that are normalised.
    pub weight: Option<Parameter>,
    /// The same.
    pub bias: Option<Parameter>,
    sizes: Vec<usize>,
    eps: f64,
}
module!(LayerNorm { weight, bias });

impl LayerNorm {
    /// A layer over dimensions of these sizes. PyTorch's ε is 10⁻⁵; BERT's is 10⁻¹².
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, sizes: &[usize], eps: f64) -> Result<Self> {
        Self::with_options(scope, sizes, NormOptions { eps, ..NormOptions::default() })
    }

    /// A layer with other options.
    ///
    /// # Errors
    /// No memory.
    pub fn with_options(scope: &Scope, sizes: &[usize], options: NormOptions) -> Result<Self> {
        Ok(Self {
            weight: parameter(scope, "weight", sizes, Init::ONES, options.affine)?,
            bias: parameter(scope, "bias", sizes, Init::ZEROS, options.affine && options.bias)?,
            sizes: sizes.to_vec(),
            eps: options.eps,
        })
    }
}

impl Layer for LayerNorm {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _module = self.weight.as_ref().map(Parameter::enter_module);
        input.layer_norm(&self.sizes, self.weight.as_deref(), self.bias.as_deref(), self.eps)
    }
}

/// What an [`RmsNorm`] has, and computes with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNormOptions {
    /// Added to the mean square; with none, the distance from 1 to the next number of what is computed in.
    pub eps: Option<f64>,
    /// It has a weight.
    pub affine: bool,
}

impl Default for RmsNormOptions {
    /// PyTorch's.
    fn default() -> Self {
        Self { eps: None, affine: true }
    }
}

/// Divides by the root of the mean square over the last dimensions (Zhang and Sennrich, 2019). PyTorch's `nn.RMSNorm`.
pub struct RmsNorm {
    /// Of the sizes that are normalised.
    pub weight: Option<Parameter>,
    sizes: Vec<usize>,
    eps: Option<f64>,
}
module!(RmsNorm { weight });

impl RmsNorm {
    /// A layer over dimensions of these sizes.
    ///
    /// # Errors
    /// `eps` is below 0; no memory.
    pub fn new(scope: &Scope, sizes: &[usize], eps: f64) -> Result<Self> {
        Self::with_options(scope, sizes, RmsNormOptions { eps: Some(eps), ..RmsNormOptions::default() })
    }

    /// A layer with other options.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_options(scope: &Scope, sizes: &[usize], options: RmsNormOptions) -> Result<Self> {
        let RmsNormOptions { eps, affine } = options;
        if let Some(eps) = eps.filter(|eps| eps.is_nan() || *eps < 0.0) {
            return Err(TensorError::argument("RmsNorm", format!("eps is {eps}: a number from 0 on is expected")));
        }
        Ok(Self { weight: parameter(scope, "weight", sizes, Init::ONES, affine)?, sizes: sizes.to_vec(), eps })
    }
}

impl Layer for RmsNorm {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _module = self.weight.as_ref().map(Parameter::enter_module);
        // Half precision is computed in single.
        let of_dtype = if input.dtype() == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() };
        input.rms_norm(&self.sizes, self.weight.as_deref(), self.eps.unwrap_or(of_dtype))
    }
}

/// Normalises groups of channels (Wu and He, 2018). PyTorch's `nn.GroupNorm`.
pub struct GroupNorm {
    /// `[channels]`.
    pub weight: Option<Parameter>,
    /// `[channels]`.
    pub bias: Option<Parameter>,
    groups: usize,
    eps: f64,
}
module!(GroupNorm { weight, bias });

impl GroupNorm {
    /// A layer with PyTorch's options.
    ///
    /// # Errors
    /// Groups that do not divide the channels; no memory.
    pub fn new(scope: &Scope, groups: usize, channels: usize) -> Result<Self> {
        Self::with_options(scope, groups, channels, NormOptions::default())
    }

    /// A layer with others.
    ///
    /// # Errors
    /// Groups that do not divide the channels; no memory.
    pub fn with_options(scope: &Scope, groups: usize, channels: usize, options: NormOptions) -> Result<Self> {
        if groups == 0 || !channels.is_multiple_of(groups) {
            return Err(TensorError::argument(
                "GroupNorm",
                format!("{groups} groups do not divide {channels} channels"),
            ));
        }
        Ok(Self {
            weight: parameter(scope, "weight", &[channels], Init::ONES, options.affine)?,
            bias: parameter(scope, "bias", &[channels], Init::ZEROS, options.affine && options.bias)?,
            groups,
            eps: options.eps,
        })
    }
}

impl Layer for GroupNorm {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _module = self.weight.as_ref().map(Parameter::enter_module);
        input.group_norm(self.groups, self.weight.as_deref(), self.bias.as_deref(), self.eps)
    }
}

/// A parameter, if the layer has it.
fn parameter(scope: &Scope, name: &str, sizes: &[usize], init: Init, is_there: bool) -> Result<Option<Parameter>> {
    is_there.then(|| scope.parameter(name, sizes, init)).transpose()
}
