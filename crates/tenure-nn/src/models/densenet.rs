//! DenseNet (Huang et al., 2017), as in torchvision.

use tenure_tensor::ops::cat;
use tenure_tensor::{Result, Tensor};

use super::resnet::{POOL, square_conv};
use crate::layers::{AdaptiveAvgPool, AvgPool, BatchNorm2d, Conv2d, Flatten, Layer, Linear, PoolOptions};
use crate::{Fan, Init, Scope, module};

/// The configuration of a DenseNet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseNetConfig {
    /// The number of layers in each of the four blocks.
    pub layers: [usize; 4],
    /// The number of channels that each layer adds.
    pub growth: usize,
    /// The number of channels of an image.
    pub channels: usize,
    /// The number of classes.
    pub classes: usize,
}

impl DenseNetConfig {
    /// The configuration of DenseNet-121.
    pub const DENSENET121: Self = Self { layers: [6, 12, 24, 16], growth: 32, channels: 3, classes: 1000 };
    /// The configuration of DenseNet-201.
    pub const DENSENET201: Self = Self { layers: [6, 12, 48, 32], ..Self::DENSENET121 };
}

/// A classifier of images `[batch, channels, height, width]`. It returns scores `[batch, classes]`.
pub struct DenseNet {
    conv0: Conv2d,
    norm0: BatchNorm2d,
    blocks: Vec<DenseBlock>,
    norm5: BatchNorm2d,
    classifier: Linear,
}
module!(DenseNet { conv0, norm0, blocks, norm5, classifier });

impl DenseNet {
    /// Makes a fresh model.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, config: DenseNetConfig) -> Result<Self> {
        let features = scope.at("features");
        let mut channels = 2 * config.growth;
        let conv0 = conv(&features.at("conv0"), config.channels, channels, 7, 2)?;
        let norm0 = BatchNorm2d::new(&features.at("norm0"), channels)?;
        let mut blocks = Vec::new();
        for (number, count) in config.layers.into_iter().enumerate() {
            let at = features.at(format!("denseblock{}", number + 1));
            let layers = (0..count)
                .map(|layer| {
                    let inputs = channels + layer * config.growth;
                    DenseLayer::new(&at.at(format!("denselayer{}", layer + 1)), inputs, config.growth)
                })
                .collect::<Result<_>>()?;
            channels += count * config.growth;
            let at = features.at(format!("transition{}", number + 1));
            let transition = (number < 3).then(|| Transition::new(&at, channels)).transpose()?;
            if number < 3 {
                channels /= 2;
            }
            blocks.push(DenseBlock { layers, transition });
        }
        let norm5 = BatchNorm2d::new(&features.at("norm5"), channels)?;
        let at = scope.at("classifier");
        let classifier = Linear::with_init(&at, channels, config.classes, Init::default_weight(), Some(Init::ZEROS))?;
        Ok(Self { conv0, norm0, blocks, norm5, classifier })
    }
}

impl Layer for DenseNet {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let x = POOL.forward(&self.norm0.forward_relu(&self.conv0.forward(input)?, None)?)?;
        let x = self.blocks.iter().try_fold(x, |x, block| block.forward(&x))?;
        let x = self.norm5.forward_relu(&x, None)?;
        self.classifier.forward(&Flatten.forward(&AdaptiveAvgPool([1, 1]).forward(&x)?)?)
    }
}

struct DenseBlock {
    layers: Vec<DenseLayer>,
    /// The transition to the next block.
    transition: Option<Transition>,
}
module!(DenseBlock { layers, transition });

impl Layer for DenseBlock {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let mut parts = vec![input.clone()];
        for layer in &self.layers {
            let all = cat(&parts.iter().collect::<Vec<_>>(), 1)?;
            parts.push(layer.forward(&all)?);
        }
        let all = cat(&parts.iter().collect::<Vec<_>>(), 1)?;
        self.transition.as_ref().map_or(Ok(all.clone()), |transition| transition.forward(&all))
    }
}

/// A layer that adds channels.
struct DenseLayer {
    norm1: BatchNorm2d,
    conv1: Conv2d,
    norm2: BatchNorm2d,
    conv2: Conv2d,
}
module!(DenseLayer { norm1, conv1, norm2, conv2 });

impl DenseLayer {
    fn new(scope: &Scope, inputs: usize, growth: usize) -> Result<Self> {
        Ok(Self {
            norm1: BatchNorm2d::new(&scope.at("norm1"), inputs)?,
            conv1: conv(&scope.at("conv1"), inputs, 4 * growth, 1, 1)?,
            norm2: BatchNorm2d::new(&scope.at("norm2"), 4 * growth)?,
            conv2: conv(&scope.at("conv2"), 4 * growth, growth, 3, 1)?,
        })
    }
}

impl Layer for DenseLayer {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let x = self.conv1.forward(&self.norm1.forward_relu(input, None)?)?;
        self.conv2.forward(&self.norm2.forward_relu(&x, None)?)
    }
}

/// A layer between blocks that halves the channels, the height and the width.
struct Transition {
    norm: BatchNorm2d,
    conv: Conv2d,
}
module!(Transition { norm, conv });

impl Transition {
    fn new(scope: &Scope, channels: usize) -> Result<Self> {
        let norm = BatchNorm2d::new(&scope.at("norm"), channels)?;
        Ok(Self { norm, conv: conv(&scope.at("conv"), channels, channels / 2, 1, 1)? })
    }
}

impl Layer for Transition {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        AvgPool(PoolOptions::new([2, 2])).forward(&self.conv.forward(&self.norm.forward_relu(input, None)?)?)
    }
}

fn conv(scope: &Scope, inputs: usize, outputs: usize, kernel: usize, stride: usize) -> Result<Conv2d> {
    square_conv(scope, inputs, outputs, kernel, stride, Fan::In)
}
