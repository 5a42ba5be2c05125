//! ResNet (He et al., 2016), as in torchvision: the stride of a bottleneck is in its second convolution.

use tenure_tensor::{Result, Tensor};

use crate::layers::{
    AdaptiveAvgPool, BatchNorm2d, Conv2d, ConvOptions, Flatten, Layer, Linear, MaxPool, PoolOptions, Sequential,
};
use crate::{Fan, Init, Scope, module};

/// The configuration of a ResNet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResNetConfig {
    /// The number of blocks in each of the four stages.
    pub blocks: [usize; 4],
    /// Whether blocks have three convolutions rather than two.
    pub is_bottleneck: bool,
    /// The number of channels in the first stage. Each later stage has twice as many as the one before.
    pub width: usize,
    /// The number of channels of an image.
    pub channels: usize,
    /// The number of classes.
    pub classes: usize,
}

impl ResNetConfig {
    /// The configuration of ResNet-18.
    pub const RESNET18: Self =
        Self { blocks: [2, 2, 2, 2], is_bottleneck: false, width: 64, channels: 3, classes: 1000 };
    /// The configuration of ResNet-34.
    pub const RESNET34: Self = Self { blocks: [3, 4, 6, 3], ..Self::RESNET18 };
    /// The configuration of ResNet-50.
    pub const RESNET50: Self = Self { is_bottleneck: true, ..Self::RESNET34 };
    /// The configuration of ResNet-101.
    pub const RESNET101: Self = Self { blocks: [3, 4, 23, 3], ..Self::RESNET50 };
    /// The configuration of ResNet-152.
    pub const RESNET152: Self = Self { blocks: [3, 8, 36, 3], ..Self::RESNET50 };
}

/// A classifier of images `[batch, channels, height, width]`. It returns scores `[batch, classes]`.
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    stages: Vec<Vec<ResNetBlock>>,
    fc: Linear,
}
module!(ResNet { conv1, bn1, stages, fc });

impl ResNet {
    /// Makes a fresh model.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, config: ResNetConfig) -> Result<Self> {
        let expansion = if config.is_bottleneck { 4 } else { 1 };
        let conv1 = conv(&scope.at("conv1"), config.channels, config.width, 7, 2)?;
        let bn1 = BatchNorm2d::new(&scope.at("bn1"), config.width)?;
        let (stages, outputs) = stages(scope, config.blocks, config.width, expansion, ResNetBlock::new)?;
        Ok(Self { conv1, bn1, stages, fc: Linear::new(&scope.at("fc"), outputs, config.classes)? })
    }
}

impl Layer for ResNet {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let x = POOL.forward(&self.bn1.forward_relu(&self.conv1.forward(input)?, None)?)?;
        let x = self.stages.iter().flatten().try_fold(x, |x, block| block.forward(&x))?;
        self.fc.forward(&Flatten.forward(&AdaptiveAvgPool([1, 1]).forward(&x)?)?)
    }
}

/// The pooling after the first convolution.
pub(super) const POOL: MaxPool<2> =
    MaxPool(PoolOptions { stride: [2, 2], padding: [1, 1], ..PoolOptions::new([3, 3]) });

/// A residual block of two or three convolutions.
struct ResNetBlock {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    /// The third convolution, in a bottleneck.
    third: Option<Third>,
    /// The projection of the input, where the sizes change.
    downsample: Option<Sequential>,
}
module!(ResNetBlock { conv1, bn1, conv2, bn2, third, downsample });

struct Third {
    conv3: Conv2d,
    bn3: BatchNorm2d,
}
module!(Third { conv3, bn3 });

impl Third {
    fn new(scope: &Scope, width: usize, outputs: usize) -> Result<Self> {
        let conv3 = conv(&scope.at("conv3"), width, outputs, 1, 1)?;
        Ok(Self { conv3, bn3: BatchNorm2d::new(&scope.at("bn3"), outputs)? })
    }
}

impl ResNetBlock {
    fn new(scope: &Scope, inputs: usize, width: usize, outputs: usize, stride: usize) -> Result<Self> {
        let is_bottleneck = width != outputs;
        let (kernel1, strides) = if is_bottleneck { (1, [1, stride]) } else { (3, [stride, 1]) };
        Ok(Self {
            conv1: conv(&scope.at("conv1"), inputs, width, kernel1, strides[0])?,
            bn1: BatchNorm2d::new(&scope.at("bn1"), width)?,
            conv2: conv(&scope.at("conv2"), width, width, 3, strides[1])?,
            bn2: BatchNorm2d::new(&scope.at("bn2"), width)?,
            third: is_bottleneck.then(|| Third::new(scope, width, outputs)).transpose()?,
            downsample: (stride != 1 || inputs != outputs)
                .then(|| projection(&scope.at("downsample"), inputs, outputs, stride))
                .transpose()?,
        })
    }
}

impl Layer for ResNetBlock {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let x = self.conv2.forward(&self.bn1.forward_relu(&self.conv1.forward(input)?, None)?)?;
        let (x, norm) = match &self.third {
            Some(Third { conv3, bn3 }) => (conv3.forward(&self.bn2.forward_relu(&x, None)?)?, bn3),
            None => (x, &self.bn2),
        };
        let carried = self.downsample.as_ref().map(|downsample| downsample.forward(input)).transpose()?;
        norm.forward_relu(&x, Some(carried.as_ref().unwrap_or(input)))
    }
}

/// Makes a projection of the input.
fn projection(scope: &Scope, inputs: usize, outputs: usize, stride: usize) -> Result<Sequential> {
    let conv = Sequential::default().then(scope, |at| conv(at, inputs, outputs, 1, stride))?;
    conv.then(scope, |at| BatchNorm2d::new(at, outputs))
}

/// Makes the stages of a residual network. Each has twice the width of the one before, and all but the first begin with
/// a stride of 2. `make` gets the numbers of inputs, of channels within a block, and of outputs, and the stride. Also
/// returns the number of outputs.
pub(super) fn stages<B>(
    scope: &Scope,
    counts: [usize; 4],
    width: usize,
    expansion: usize,
    make: fn(&Scope, usize, usize, usize, usize) -> Result<B>,
) -> Result<(Vec<Vec<B>>, usize)> {
    let mut inputs = width;
    let mut stages = Vec::new();
    for (stage, count) in counts.into_iter().enumerate() {
        let at = scope.at(format!("layer{}", stage + 1));
        let width = width << stage;
        let mut blocks = Vec::new();
        for block in 0..count {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            blocks.push(make(&at.at(block), inputs, width, width * expansion, stride)?);
            inputs = width * expansion;
        }
        stages.push(blocks);
    }
    Ok((stages, inputs))
}

fn conv(scope: &Scope, inputs: usize, outputs: usize, kernel: usize, stride: usize) -> Result<Conv2d> {
    square_conv(scope, inputs, outputs, kernel, stride, Fan::Out)
}

/// Makes a convolution without bias. It keeps the height and width except for the stride.
pub(super) fn square_conv(
    scope: &Scope,
    inputs: usize,
    outputs: usize,
    kernel: usize,
    stride: usize,
    fan: Fan,
) -> Result<Conv2d> {
    let options = ConvOptions { stride: [stride; 2], padding: [kernel / 2; 2], bias: false, ..ConvOptions::default() };
    Conv2d::with_init(scope, inputs, outputs, [kernel; 2], options, Init::KaimingNormal { a: 0.0, fan })
}
