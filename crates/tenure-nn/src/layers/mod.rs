//! Layers, with PyTorch's names and parameters.

mod activation;
mod attention;
mod conv;
mod embedding;
mod linear;
mod norm;
mod pool;
mod sequential;

pub(crate) use activation::check_probability;
pub use activation::{Activation, Dropout, Flatten, LogSoftmax, Softmax};
pub use attention::{AttentionOptions, MultiheadAttention, MultiheadOptions};
pub use conv::{Conv1d, Conv2d, Conv3d, ConvNd, ConvOptions};
pub use embedding::Embedding;
pub use linear::Linear;
pub use norm::{
    BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNormOptions, GroupNorm, LayerNorm, NormOptions, RmsNorm,
    RmsNormOptions, Running,
};
pub use pool::{AdaptiveAvgPool, AvgPool, MaxPool, PoolOptions};
pub use sequential::Sequential;
use tenure_tensor::{Result, Tensor};

use crate::Module;

/// A module that computes a tensor from a tensor.
pub trait Layer: Module {
    /// Computes the layer's output for `input`.
    ///
    /// # Errors
    /// The sizes or dtypes do not fit together; no memory.
    fn forward(&self, input: &Tensor) -> Result<Tensor>;
}

impl<L: Layer + ?Sized> Layer for Box<L> {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        (**self).forward(input)
    }
}
