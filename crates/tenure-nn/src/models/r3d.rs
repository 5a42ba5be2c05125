//! R3D (Tran et al., 2018), as in torchvision: a ResNet for videos.

use tenure_tensor::{Result, Tensor};

use super::resnet::stages;
use crate::layers::{AdaptiveAvgPool, BatchNorm3d, Conv3d, ConvOptions, Flatten, Layer, Linear};
use crate::{Fan, Init, Scope, module};

/// The configuration of an R3D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R3dConfig {
    /// The number of blocks in each of the four stages.
    pub blocks: [usize; 4],
    /// The number of channels in the first stage. Each later stage has twice as many as the one before.
    pub width: usize,
    /// The number of channels of a frame.
    pub channels: usize,
    /// The number of classes.
    pub classes: usize,
}

impl R3dConfig {
    /// The configuration of R3D-18.
    pub const R3D18: Self = Self { blocks: [2, 2, 2, 2], width: 64, channels: 3, classes: 400 };
}

/// A classifier of videos `[batch, channels, frames, height, width]`. It returns scores `[batch, classes]`.
pub struct R3d {
    stem: Convolution,
    stages: Vec<Vec<R3dBlock>>,
    fc: Linear,
}
module!(R3d { stem, stages, fc });

impl R3d {
    /// Makes a fresh model.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, config: R3dConfig) -> Result<Self> {
        let stride = [1, 2, 2];
        let padding = [1, 3, 3];
        let stem = Convolution::new(&scope.at("stem"), config.channels, config.width, [3, 7, 7], stride, padding)?;
        let (stages, outputs) = stages(scope, config.blocks, config.width, 1, R3dBlock::new)?;
        let weight = Init::Normal { mean: 0.0, deviation: 0.01 };
        let fc = Linear::with_init(&scope.at("fc"), outputs, config.classes, weight, Some(Init::ZEROS))?;
        Ok(Self { stem, stages, fc })
    }
}

impl Layer for R3d {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let x = self.stem.forward_relu(input, None)?;
        let x = self.stages.iter().flatten().try_fold(x, |x, block| block.forward(&x))?;
        self.fc.forward(&Flatten.forward(&AdaptiveAvgPool([1, 1, 1]).forward(&x)?)?)
    }
}

/// A residual block of two convolutions.
struct R3dBlock {
    conv1: Convolution,
    conv2: Convolution,
    /// The projection of the input, where the sizes change.
    downsample: Option<Convolution>,
}
module!(R3dBlock { conv1, conv2, downsample });

impl R3dBlock {
    fn new(scope: &Scope, inputs: usize, width: usize, outputs: usize, stride: usize) -> Result<Self> {
        let at = scope.at("downsample");
        Ok(Self {
            conv1: Convolution::new(&scope.at("conv1"), inputs, width, [3; 3], [stride; 3], [1; 3])?,
            conv2: Convolution::new(&scope.at("conv2"), width, outputs, [3; 3], [1; 3], [1; 3])?,
            downsample: (stride != 1 || inputs != outputs)
                .then(|| Convolution::new(&at, inputs, outputs, [1; 3], [stride; 3], [0; 3]))
                .transpose()?,
        })
    }
}

impl Layer for R3dBlock {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let x = self.conv1.forward_relu(input, None)?;
        let carried = self.downsample.as_ref().map(|downsample| downsample.forward(input)).transpose()?;
        self.conv2.forward_relu(&x, Some(carried.as_ref().unwrap_or(input)))
    }
}

/// A convolution without bias and batch normalisation.
struct Convolution {
    conv: Conv3d,
    norm: BatchNorm3d,
}
module!(Convolution { conv, norm });

impl Convolution {
    fn new(
        scope: &Scope,
        inputs: usize,
        outputs: usize,
        kernel: [usize; 3],
        stride: [usize; 3],
        padding: [usize; 3],
    ) -> Result<Self> {
        let options = ConvOptions { stride, padding, bias: false, ..ConvOptions::default() };
        let init = Init::KaimingNormal { a: 0.0, fan: Fan::Out };
        let conv = Conv3d::with_init(&scope.at(0), inputs, outputs, kernel, options, init)?;
        Ok(Self { conv, norm: BatchNorm3d::new(&scope.at(1), outputs)? })
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.conv.forward(input)?)
    }

    /// Convolves and normalises `input`, adds the residual `carried`, and applies ReLU.
    fn forward_relu(&self, input: &Tensor, carried: Option<&Tensor>) -> Result<Tensor> {
        self.norm.forward_relu(&self.conv.forward(input)?, carried)
    }
}
