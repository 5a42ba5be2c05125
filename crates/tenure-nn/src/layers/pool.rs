//! Pooling.

use tenure_tensor::ops::Pool;
use tenure_tensor::{Result, Tensor};

use super::Layer;
use crate::module;

/// How a window goes over images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions<const D: usize> {
    /// The window.
    pub kernel: [usize; D],
    /// Pixels from one window to the next.
    pub stride: [usize; D],
    /// Pixels around the image.
    pub padding: [usize; D],
    /// Pixels from one element of the window to the next. A mean has none but 1.
    pub dilation: [usize; D],
    /// A window that is partly outside counts too: PyTorch's `ceil_mode`.
    pub ceil: bool,
    /// Padding counts as zeros in a mean; else it does not count.
    pub count_include_pad: bool,
}

impl<const D: usize> PoolOptions<D> {
    /// Windows side by side.
    pub const fn new(kernel: [usize; D]) -> Self {
        Self { kernel, stride: kernel, padding: [0; D], dilation: [1; D], ceil: false, count_include_pad: true }
    }

    fn pool(&self) -> Pool<'_> {
        let Self { kernel, stride, padding, dilation, ceil, .. } = self;
        Pool { kernel, stride, padding, dilation, ceil: *ceil }
    }
}

/// The greatest of each window. PyTorch's `nn.MaxPool1d`, `nn.MaxPool2d`, `nn.MaxPool3d`.
#[derive(Clone, Copy, Debug)]
pub struct MaxPool<const D: usize>(pub PoolOptions<D>);
module!(MaxPool<1> {});
module!(MaxPool<2> {});
module!(MaxPool<3> {});

/// The mean of each window. PyTorch's `nn.AvgPool1d`, `nn.AvgPool2d`, `nn.AvgPool3d`.
#[derive(Clone, Copy, Debug)]
pub struct AvgPool<const D: usize>(pub PoolOptions<D>);
module!(AvgPool<1> {});
module!(AvgPool<2> {});
module!(AvgPool<3> {});

/// The means of as many windows as are asked for. PyTorch's `nn.AdaptiveAvgPool1d`, `nn.AdaptiveAvgPool2d`,
/// `nn.AdaptiveAvgPool3d`.
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
