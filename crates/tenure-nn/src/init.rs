//! Initial values of parameters. PyTorch's `torch.nn.init`.

use tenure_tensor::random::Generator;
use tenure_tensor::{Result, Tensor, TensorError, autograd};

/// A way to fill a tensor. The variants that depend on the number of inputs or outputs take a weight of sizes `[out,
/// in, kernel...]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// One value.
    Constant(f64),
    /// Uniform between `low` and `high`, `high` excluded.
    Uniform {
        /// The least.
        low: f64,
        /// The greatest.
        high: f64,
    },
    /// Normally distributed.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        deviation: f64,
    },
    /// Normally distributed. Values more than `cut` deviations from the mean are drawn again.
    TruncatedNormal {
        /// The mean.
        mean: f64,
        /// The standard deviation before the cut.
        deviation: f64,
        /// The cut in deviations, at least 0.5. PyTorch's bounds are absolute: ±2 by default.
        cut: f64,
    },
    /// Uniform, with a variance that layers with a leaky ReLU of slope `a` preserve (He et al., 2015).
    KaimingUniform {
        /// The slope; 0 for ReLU.
        a: f64,
        /// The direction in which the variance is preserved.
        fan: Fan,
    },
    /// Normal, with the same variance as `KaimingUniform`.
    KaimingNormal {
        /// The slope; 0 for ReLU.
        a: f64,
        /// The direction in which the variance is preserved.
        fan: Fan,
    },
    /// Uniform, with a variance that is a compromise of both directions (Glorot and Bengio, 2010). `gain` scales the
    /// values.
    XavierUniform {
        /// The activation's gain: 1 for none.
        gain: f64,
    },
    /// Normal, with the same variance as `XavierUniform`.
    XavierNormal {
        /// The activation's gain: 1 for none.
        gain: f64,
    },
}

/// The count that a variance is scaled by: the inputs of one output, or the outputs of one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// Inputs: the forward pass preserves the variance.
    In,
    /// Outputs: the backward pass preserves the variance.
    Out,
}

impl Init {
    /// Zeros.
    pub const ZEROS: Self = Self::Constant(0.0);

    /// Ones.
    pub const ONES: Self = Self::Constant(1.0);

    /// The default weights of PyTorch's `Linear` and `Conv`: Kaiming's uniform with a = √5.
    pub fn default_weight() -> Self {
        Self::KaimingUniform { a: 5.0_f64.sqrt(), fan: Fan::In }
    }

    /// The default biases of PyTorch's `Linear` and `Conv`: uniform within ±1 / √`fan_in`.
    pub fn default_bias(fan_in: usize) -> Self {
        let bound = if fan_in == 0 { 0.0 } else { 1.0 / (fan_in as f64).sqrt() };
        Self::Uniform { low: -bound, high: bound }
    }

    /// Fills a tensor.
    ///
    /// # Errors
    /// The tensor has fewer than two dimensions, and the variant depends on them; a value is out of range; the dtype is
    /// not floating-point.
    pub fn fill(self, tensor: &Tensor, generator: &Generator) -> Result<()> {
        autograd::no_grad(|| match self {
            Self::Constant(value) => tensor.fill_(value),
            // An empty range is refused, so one value is filled in.
            Self::Uniform { low, high } if low == high => tensor.fill_(low),
            Self::Uniform { low, high } => tensor.uniform_(low, high, generator),
            Self::Normal { mean, deviation } => tensor.normal_(mean, deviation, generator),
            Self::TruncatedNormal { mean, deviation, cut } => truncated(tensor, mean, deviation, cut, generator),
            Self::KaimingUniform { a, fan } => uniform(tensor, kaiming(tensor, a, fan)?, generator),
            Self::KaimingNormal { a, fan } => tensor.normal_(0.0, kaiming(tensor, a, fan)?, generator),
            Self::XavierUniform { gain } => uniform(tensor, xavier(tensor, gain)?, generator),
            Self::XavierNormal { gain } => tensor.normal_(0.0, xavier(tensor, gain)?, generator),
        })
    }
}

/// Fills a tensor with uniformly distributed values of this standard deviation.
fn uniform(tensor: &Tensor, deviation: f64, generator: &Generator) -> Result<()> {
    let bound = 3.0_f64.sqrt() * deviation;
    tensor.uniform_(-bound, bound, generator)
}

/// Returns the numbers of inputs of one output and of outputs of one input of a weight.
fn fans(tensor: &Tensor) -> Result<(f64, f64)> {
    let [outputs, inputs, kernel @ ..] = tensor.sizes() else {
        let reason = format!("a weight of at least two dimensions is needed, got sizes {:?}", tensor.sizes());
        return Err(TensorError::shape("init", reason));
    };
    let kernel: usize = kernel.iter().product();
    Ok(((inputs * kernel).max(1) as f64, (outputs * kernel).max(1) as f64))
}

/// Returns the standard deviation of Kaiming's initial values.
fn kaiming(tensor: &Tensor, a: f64, fan: Fan) -> Result<f64> {
    let (fan_in, fan_out) = fans(tensor)?;
    let fan = if fan == Fan::In { fan_in } else { fan_out };
    Ok((2.0 / (1.0 + a * a) / fan).sqrt())
}

/// Returns the standard deviation of Xavier's initial values.
fn xavier(tensor: &Tensor, gain: f64) -> Result<f64> {
    let (fan_in, fan_out) = fans(tensor)?;
    Ok(gain * (2.0 / (fan_in + fan_out)).sqrt())
}

fn truncated(tensor: &Tensor, mean: f64, deviation: f64, cut: f64, generator: &Generator) -> Result<()> {
    if cut.is_nan() || cut < 0.5 {
        let reason = format!("a normal distribution is cut at 0.5 deviations at least, got {cut}");
        return Err(TensorError::argument("init", reason));
    }
    tensor.normal_(0.0, 1.0, generator)?;
    loop {
        let is_far = tensor.abs()?.gt(cut)?;
        if is_far.count_nonzero(&[], false)?.item_scalar()?.to_i64() == 0 {
            break;
        }
        let again = Tensor::randn(tensor.sizes(), tensor.dtype(), tensor.device(), generator)?;
        tensor.copy_(&is_far.where_(&again, tensor)?)?;
    }
    tensor.mul_(deviation)?;
    tensor.add_(mean)
}
