//! Layers, with PyTorch's names and parameters, and chains of them.

mod activation;
mod attention;
mod conv;
mod linear;
mod norm;
mod pool;

pub(crate) use activation::check_probability;
pub use activation::{Activation, Dropout, Flatten, LogSoftmax, Softmax};
pub use attention::{AttentionOptions, MultiheadAttention, MultiheadOptions};
pub use conv::{Conv1d, Conv2d, Conv3d, ConvNd, ConvOptions};
pub use linear::{Embedding, Linear};
pub use norm::{
    BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNormOptions, GroupNorm, LayerNorm, NormOptions, RmsNorm,
    RmsNormOptions, Running,
};
pub use pool::{AdaptiveAvgPool, AvgPool, MaxPool, PoolOptions};

use tenure_core::Name;
use tenure_tensor::{Result, Tensor};

use crate::{Module, Scope, module, purpose};

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

/// A chain of layers, each of which takes the output of the layer before. They are named by their numbers from 0.
/// PyTorch's `nn.Sequential`.
///
/// ```
/// use tenure_nn::layers::{Activation, Layer, Linear, Sequential};
/// use tenure_nn::{Module, Scope};
/// use tenure_tensor::{DType, Device, Tensor, random::Generator};
///
/// let generator = Generator::new(0);
/// let scope = Scope::new(&generator);
/// let model = Sequential::default()
///     .then(&scope, |at| Linear::new(at, 4, 8))?
///     .then(&scope, |_| Ok(Activation::Relu))?
///     .then(&scope, |at| Linear::new(at, 8, 2))?;
/// assert_eq!(model.state()[2].0, "2.weight");
/// assert_eq!(model.forward(&Tensor::ones(&[3, 4], DType::F32, Device::CPU)?)?.sizes(), [3, 2]);
/// # Ok::<(), tenure_tensor::TensorError>(())
/// ```
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Layer>>,
    /// The path of each layer.
    paths: Vec<Name>,
}
module!(Sequential { layers });

impl Sequential {
    /// Appends a layer, which `make` builds at its number in `scope`.
    ///
    /// # Errors
    /// The errors of `make`.
    pub fn then<L: Layer + 'static>(mut self, scope: &Scope, make: impl FnOnce(&Scope) -> Result<L>) -> Result<Self> {
        let scope = scope.at(self.layers.len());
        self.layers.push(Box::new(make(&scope)?));
        self.paths.push(scope.path());
        Ok(self)
    }
}

impl Layer for Sequential {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.layers.iter().zip(&self.paths).try_fold(input.clone(), |value, (layer, path)| {
            let _module = purpose::module(*path);
            layer.forward(&value)
        })
    }
}
