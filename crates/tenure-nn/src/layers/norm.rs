//! Normalisation layers.

use tenure_tensor::{DType, Result, Tensor, TensorError, autograd, ops};

use super::Layer;
use crate::purpose::ModuleGuard;
use crate::{Buffer, Init, Mode, Parameter, Scope, module};

/// Normalises each channel over the batch in training, and by running averages of training in evaluation (Ioffe and
/// Szegedy, 2015). PyTorch's `nn.BatchNorm1d`, `nn.BatchNorm2d`, `nn.BatchNorm3d`. A batch that a
/// [checkpoint](autograd::checkpoint) recomputes is counted once.
pub struct BatchNorm<const D: usize> {
    /// `[channels]`.
    pub weight: Option<Parameter>,
    /// `[channels]`.
    pub bias: Option<Parameter>,
    /// The running averages of training.
    pub running: Option<Running>,
    mode: Mode,
    options: BatchNormOptions,
}
module!(BatchNorm<1> { weight, bias, running, mode });
module!(BatchNorm<2> { weight, bias, running, mode });
module!(BatchNorm<3> { weight, bias, running, mode });

/// Batch normalisation of `[batch, channels]` or `[batch, channels, length]`.
pub type BatchNorm1d = BatchNorm<1>;
/// Batch normalisation of `[batch, channels, height, width]`.
pub type BatchNorm2d = BatchNorm<2>;
/// Batch normalisation of `[batch, channels, depth, height, width]`.
pub type BatchNorm3d = BatchNorm<3>;

/// Settings of a [`BatchNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormOptions {
    /// The number that is added to variances.
    pub eps: f64,
    /// The weight of a new batch in the running averages. With `None` they are the averages of all batches.
    pub momentum: Option<f64>,
    /// Whether the layer has a weight and a bias.
    pub affine: bool,
    /// Whether the layer keeps running averages. A layer without them normalises by the batch in evaluation too.
    pub track_running_stats: bool,
}

impl Default for BatchNormOptions {
    /// PyTorch's defaults.
    fn default() -> Self {
        Self { eps: 1e-5, momentum: Some(0.1), affine: true, track_running_stats: true }
    }
}

/// The running averages of a [`BatchNorm`].
pub struct Running {
    /// The running mean of each channel.
    pub running_mean: Buffer,
    /// The running variance of each channel.
    pub running_var: Buffer,
    /// The number of batches seen.
    pub num_batches_tracked: Buffer,
}
module!(Running { running_mean, running_var, num_batches_tracked });

impl<const D: usize> BatchNorm<D> {
    /// Makes a layer with PyTorch's options.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, channels: usize) -> Result<Self> {
        Self::with_options(scope, channels, BatchNormOptions::default())
    }

    /// Makes a layer with other options.
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

    /// Normalises `input`, adds the residual `carried` if there is one, and applies ReLU, all in one operation,
    /// [`Tensor::batch_norm_relu`].
    ///
    /// # Errors
    /// The errors of [`forward`](Layer::forward); the sizes of `carried` do not broadcast.
    pub fn forward_relu(&self, input: &Tensor, carried: Option<&Tensor>) -> Result<Tensor> {
        let _module = self.enter_module();
        self.normalise(input, |settings| input.batch_norm_relu(carried, &settings))
    }

    /// Enters the module's path for its allocations. Returns `None` if the layer has neither a parameter nor a buffer
    /// that knows the path.
    fn enter_module(&self) -> Option<ModuleGuard> {
        self.weight
            .as_ref()
            .map(Parameter::enter_module)
            .or_else(|| self.running.as_ref().map(|running| running.running_mean.enter_module()))
    }

    /// Calls an operation with the settings for this input, and counts the batch.
    fn normalise(
        &self,
        input: &Tensor,
        operation: impl FnOnce(ops::BatchNormParameters<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        if input.rank() != D + 2 && !(D == 1 && input.rank() == 2) {
            let reason = format!("{} dimensions are expected, got sizes {:?}", D + 2, input.sizes());
            return Err(TensorError::shape("batch_norm", reason));
        }
        let running = self.running.as_ref();
        let is_training = self.mode.is_training();
        let sees = is_training && !autograd::is_recomputing();
        let seeing = running.filter(|_| sees);
        if let Some(running) = seeing {
            autograd::no_grad(|| running.num_batches_tracked.add_(1))?;
        }
        // The number of batches is known on the device alone. So the operation writes this batch's own statistics, and
        // the averages take them in afterwards.
        let own = match seeing.filter(|_| self.options.momentum.is_none()) {
            Some(running) => Some((running, running.running_mean.zeros_like()?, running.running_var.zeros_like()?)),
            None => None,
        };
        let averages = running.filter(|_| sees || !is_training);
        let averages = averages.map(|running| (&*running.running_mean, &*running.running_var));
        let output = operation(ops::BatchNormParameters {
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

    /// Updates the averages of all batches by the last batch, which is already counted.
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
                    let ops::BatchNormParameters { running, weight, bias, training, momentum, eps } = settings;
                    input.batch_norm(running, weight, bias, training, momentum, eps)
                })
            }
        }
    )*};
}
layers!(1 2 3);

/// Settings of a [`LayerNorm`] or a [`GroupNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormOptions {
    /// The number that is added to variances.
    pub eps: f64,
    /// Whether the layer has a weight, and also a bias if `bias` is true.
    pub affine: bool,
    /// Whether an affine layer has a bias.
    pub bias: bool,
}

impl Default for NormOptions {
    /// PyTorch's defaults.
    fn default() -> Self {
        Self { eps: 1e-5, affine: true, bias: true }
    }
}

/// Normalises over the last dimensions (Ba et al., 2016). PyTorch's `nn.LayerNorm`.
pub struct LayerNorm {
    /// The weight, of the sizes that are normalised.
    pub weight: Option<Parameter>,
    /// The bias, of the same sizes.
    pub bias: Option<Parameter>,
    sizes: Vec<usize>,
    eps: f64,
}
module!(LayerNorm { weight, bias });

impl LayerNorm {
    /// Makes a layer over dimensions of these sizes. PyTorch's ε is 10⁻⁵; BERT's is 10⁻¹².
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, sizes: &[usize], eps: f64) -> Result<Self> {
        Self::with_options(scope, sizes, NormOptions { eps, ..NormOptions::default() })
    }

    /// Makes a layer with other options.
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

/// Settings of an [`RmsNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNormOptions {
    /// The number that is added to the mean square. `None` takes the machine epsilon of the type that is computed in.
    pub eps: Option<f64>,
    /// Whether the layer has a weight.
    pub affine: bool,
}

impl Default for RmsNormOptions {
    /// PyTorch's defaults.
    fn default() -> Self {
        Self { eps: None, affine: true }
    }
}

/// Divides by the root mean square over the last dimensions (Zhang and Sennrich, 2019). PyTorch's `nn.RMSNorm`.
pub struct RmsNorm {
    /// The weight, of the sizes that are normalised.
    pub weight: Option<Parameter>,
    sizes: Vec<usize>,
    eps: Option<f64>,
}
module!(RmsNorm { weight });

impl RmsNorm {
    /// Makes a layer over dimensions of these sizes.
    ///
    /// # Errors
    /// `eps` is below 0; no memory.
    pub fn new(scope: &Scope, sizes: &[usize], eps: f64) -> Result<Self> {
        Self::with_options(scope, sizes, RmsNormOptions { eps: Some(eps), ..RmsNormOptions::default() })
    }

    /// Makes a layer with other options.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
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
        // Half-precision inputs are computed in single precision.
        let of_dtype = if input.dtype() == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() };
        input.rms_norm(&self.sizes, self.weight.as_deref(), self.eps.unwrap_or(of_dtype))
    }
}

/// Normalises each group of channels (Wu and He, 2018). PyTorch's `nn.GroupNorm`.
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
    /// Makes a layer with PyTorch's options.
    ///
    /// # Errors
    /// `groups` does not divide `channels`; no memory.
    pub fn new(scope: &Scope, groups: usize, channels: usize) -> Result<Self> {
        Self::with_options(scope, groups, channels, NormOptions::default())
    }

    /// Makes a layer with other options.
    ///
    /// # Errors
    /// `groups` does not divide `channels`; no memory.
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

/// Makes a parameter if the layer has it.
fn parameter(scope: &Scope, name: &str, sizes: &[usize], init: Init, is_there: bool) -> Result<Option<Parameter>> {
    is_there.then(|| scope.parameter(name, sizes, init)).transpose()
}
