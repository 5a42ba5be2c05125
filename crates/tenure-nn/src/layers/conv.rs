//! Convolutions.

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

/// Over sequences.
pub type Conv1d = ConvNd<1>;
/// Over images.
pub type Conv2d = ConvNd<2>;
/// Over videos and volumes.
pub type Conv3d = ConvNd<3>;

/// How a kernel goes over images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions<const D: usize> {
    /// Pixels from one place of the kernel to the next.
    pub stride: [usize; D],
    /// Zeros around the image.
    pub padding: [usize; D],
    /// Pixels from one element of the kernel to the next.
    pub dilation: [usize; D],
    /// Channels are in so many groups, each with weights of its own.
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
    /// A layer from `channels` to `outputs` channels.
    ///
    /// # Errors
    /// Groups that do not divide both; a kernel, stride or dilation of 0; no memory.
    pub fn new(
        scope: &Scope,
        channels: usize,
        outputs: usize,
        kernel: [usize; D],
        options: ConvOptions<D>,
    ) -> Result<Self> {
        Self::with_init(scope, channels, outputs, kernel, options, Init::default_weight())
    }

    /// The same with another weight.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
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
