//! Convolution layers.

use tenure_tensor::ops::Conv;
use tenure_tensor::{Result, Tensor, TensorError};

use super::Layer;
use crate::{Init, Parameter, Scope, module};

/// A convolution over `D` spatial dimensions. PyTorch's `nn.Conv1d`, `nn.Conv2d`, `nn.Conv3d`.
pub struct ConvNd<const D: usize> {
    /// `[outputs, channels / groups, kernel...]`.
    pub weight: Parameter,
    /// `[outputs]`.
    pub bias: Option<Parameter>,
    options: ConvOptions<D>,
}
module!(ConvNd<1> { weight, bias });
module!(ConvNd<2> { weight, bias });
module!(ConvNd<3> { weight, bias });

/// A convolution over sequences.
pub type Conv1d = ConvNd<1>;
/// A convolution over images.
pub type Conv2d = ConvNd<2>;
/// A convolution over videos and volumes.
pub type Conv3d = ConvNd<3>;

/// Settings of a convolution: how its kernel moves over the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions<const D: usize> {
    /// The step of the kernel, in pixels.
    pub stride: [usize; D],
    /// The number of zeros on each side of the image.
    pub padding: [usize; D],
    /// The distance of neighbouring elements of the kernel, in pixels.
    pub dilation: [usize; D],
    /// The number of groups that the channels are divided into, each with its own weights.
    pub groups: usize,
    /// Whether a bias is added.
    pub bias: bool,
}

impl<const D: usize> Default for ConvOptions<D> {
    fn default() -> Self {
        Self { stride: [1; D], padding: [0; D], dilation: [1; D], groups: 1, bias: true }
    }
}

impl<const D: usize> ConvNd<D> {
    /// Makes a layer from `channels` to `outputs` channels.
    ///
    /// # Errors
    /// `groups` does not divide both; a kernel, stride or dilation is 0; no memory.
    pub fn new(
        scope: &Scope,
        channels: usize,
        outputs: usize,
        kernel: [usize; D],
        options: ConvOptions<D>,
    ) -> Result<Self> {
        Self::with_init(scope, channels, outputs, kernel, options, Init::default_weight())
    }

    /// Makes a layer with other initial weights.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_init(
        scope: &Scope,
        channels: usize,
        outputs: usize,
        kernel: [usize; D],
        options: ConvOptions<D>,
        init: Init,
    ) -> Result<Self> {
        let ConvOptions { groups, stride, dilation, .. } = options;
        if groups == 0 || !channels.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            let reason = format!("{groups} groups do not divide {channels} channels and {outputs} outputs");
            return Err(TensorError::argument("conv", reason));
        }
        if [kernel, stride, dilation].as_flattened().contains(&0) {
            let reason =
                format!("at least 1 is needed, got kernel {kernel:?}, stride {stride:?}, dilation {dilation:?}");
            return Err(TensorError::argument("conv", reason));
        }
        let channels = channels / groups;
        let sizes: Vec<usize> = [outputs, channels].into_iter().chain(kernel).collect();
        let weight = scope.parameter("weight", &sizes, init)?;
        let fan_in = channels * kernel.iter().product::<usize>();
        let bias = options.bias.then(|| scope.parameter("bias", &[outputs], Init::default_bias(fan_in)));
        Ok(Self { weight, bias: bias.transpose()?, options })
    }
}

macro_rules! layers {
    ($($dims:literal)*) => {$(
        impl Layer for ConvNd<$dims> {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let _module = self.weight.enter_module();
                let ConvOptions { stride, padding, dilation, groups, .. } = &self.options;
                input.conv(&self.weight, self.bias.as_deref(), &Conv { stride, padding, dilation, groups: *groups })
            }
        }
    )*};
}
layers!(1 2 3);
