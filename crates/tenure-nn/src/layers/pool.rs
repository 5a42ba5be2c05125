//! Pooling layers.

use tenure_tensor::ops::Pool;
use tenure_tensor::{Result, Tensor};

use super::Layer;
use crate::module;

/// Settings of a pooling layer: how its window moves over the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions<const D: usize> {
    /// The sizes of the window, in pixels.
    pub kernel: [usize; D],
    /// The step from one window to the next, in pixels.
    pub stride: [usize; D],
    /// The width of the padding on each side of the image, in pixels.
    pub padding: [usize; D],
    /// The distance of neighbouring elements of the window, in pixels. A mean supports only 1.
    pub dilation: [usize; D],
    /// Whether windows that are partly outside count too: PyTorch's `ceil_mode`.
    pub ceil: bool,
    /// Whether a mean counts the padding as zeros. Otherwise it ignores the padding.
    pub count_include_pad: bool,
}

impl<const D: usize> PoolOptions<D> {
    /// Makes settings for windows side by side.
    pub const fn new(kernel: [usize; D]) -> Self {
        Self { kernel, stride: kernel, padding: [0; D], dilation: [1; D], ceil: false, count_include_pad: true }
    }

    fn pool(&self) -> Pool<'_> {
        let Self { kernel, stride, padding, dilation, ceil, .. } = self;
        Pool { kernel, stride, padding, dilation, ceil: *ceil }
    }
}

/// Max pooling: the greatest value of each window. PyTorch's `nn.MaxPool1d`, `nn.MaxPool2d`, `nn.MaxPool3d`.
#[derive(Clone, Copy, Debug)]
pub struct MaxPool<const D: usize>(pub PoolOptions<D>);
module!(MaxPool<1> {});
module!(MaxPool<2> {});
module!(MaxPool<3> {});

/// Average pooling: the mean of each window. PyTorch's `nn.AvgPool1d`, `nn.AvgPool2d`, `nn.AvgPool3d`.
#[derive(Clone, Copy, Debug)]
pub struct AvgPool<const D: usize>(pub PoolOptions<D>);
module!(AvgPool<1> {});
module!(AvgPool<2> {});
module!(AvgPool<3> {});

/// Adaptive average pooling: the means of a given number of windows. PyTorch's `nn.AdaptiveAvgPool1d`,
/// `nn.AdaptiveAvgPool2d`, `nn.AdaptiveAvgPool3d`.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveAvgPool<const D: usize>(pub [usize; D]);
module!(AdaptiveAvgPool<1> {});
module!(AdaptiveAvgPool<2> {});
module!(AdaptiveAvgPool<3> {});

macro_rules! layers {
    ($($dims:literal)*) => {$(
        impl Layer for MaxPool<$dims> {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                input.max_pool(&self.0.pool())
            }
        }

        impl Layer for AvgPool<$dims> {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                input.avg_pool(&self.0.pool(), self.0.count_include_pad)
            }
        }

        impl Layer for AdaptiveAvgPool<$dims> {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                input.adaptive_avg_pool(&self.0)
            }
        }
    )*};
}
layers!(1 2 3);
