//! Layers, with PyTorch's names and parameters.

mod activation;
mod conv;
mod linear;
mod sequential;

pub use activation::{Activation, Dropout, Flatten};
pub use conv::{Conv1d, Conv2d, Conv3d, ConvNd, ConvOptions};
pub use linear::Linear;
pub use sequential::Sequential;
use tenure_tensor::{Result, Tensor};

use crate::Module;

/// A module that makes a tensor of a tensor.
pub trait Layer: Module {
    /// What it makes of `input`.
    ///
    /// # Errors
    /// Sizes or dtypes that do not go together; no memory.
    fn forward(&self, input: &Tensor) -> Result<Tensor>;
}

impl<L: Layer + ?Sized> Layer for Box<L> {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        (**self).forward(input)
    }
}
