//! Inception-v3 (Szegedy et al., 2016), as in torchvision.

use tenure_tensor::ops::cat;
use tenure_tensor::{Result, Tensor};

use crate::layers::{
    AdaptiveAvgPool, AvgPool, BatchNorm2d, BatchNormOptions, Conv2d, ConvOptions, Dropout, Flatten, Layer, Linear,
    MaxPool, PoolOptions,
};
use crate::{Init, Scope, module};

/// The configuration of an Inception-v3.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InceptionConfig {
    /// The number of classes.
    pub classes: usize,
    /// Whether the model has the auxiliary classifier for training.
    pub has_auxiliary: bool,
    /// The probability of dropping a feature in training.
    pub dropout: f64,
}

impl InceptionConfig {
    /// The configuration of Inception-v3.
    pub const V3: Self = Self { classes: 1000, has_auxiliary: true, dropout: 0.5 };
}

/// A classifier of images `[batch, 3, height, width]` of at least 75 pixels in height and width. It returns scores
/// `[batch, classes]`.
pub struct InceptionV3 {
    stem: Vec<Convolution>,
    before: Vec<Mixed>,
    auxiliary: Option<Auxiliary>,
    after: Vec<Mixed>,
    dropout: Dropout,
    fc: Linear,
}
module!(InceptionV3 { stem, before, auxiliary, after, dropout, fc });

impl InceptionV3 {
    /// Makes a fresh model.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, config: InceptionConfig) -> Result<Self> {
        let InceptionConfig { classes, has_auxiliary, dropout } = config;
        let stem = [
            ("Conv2d_1a_3x3", 3, 32, 3, 2, 0),
            ("Conv2d_2a_3x3", 32, 32, 3, 1, 0),
            ("Conv2d_2b_3x3", 32, 64, 3, 1, 1),
            ("Conv2d_3b_1x1", 64, 80, 1, 1, 0),
            ("Conv2d_4a_3x3", 80, 192, 3, 1, 0),
        ];
        Ok(Self {
            stem: stem
                .into_iter()
                .map(|(name, inputs, outputs, kernel, stride, padding)| {
                    Convolution::new(&scope.at(name), inputs, outputs, [kernel; 2], [stride; 2], [padding; 2])
                })
                .collect::<Result<_>>()?,
            before: vec![
                Mixed::a(&scope.at("Mixed_5b"), 192, 32)?,
                Mixed::a(&scope.at("Mixed_5c"), 256, 64)?,
                Mixed::a(&scope.at("Mixed_5d"), 288, 64)?,
                Mixed::b(&scope.at("Mixed_6a"), 288)?,
                Mixed::c(&scope.at("Mixed_6b"), 768, 128)?,
                Mixed::c(&scope.at("Mixed_6c"), 768, 160)?,
                Mixed::c(&scope.at("Mixed_6d"), 768, 160)?,
                Mixed::c(&scope.at("Mixed_6e"), 768, 192)?,
            ],
            auxiliary: has_auxiliary.then(|| Auxiliary::new(&scope.at("AuxLogits"), 768, classes)).transpose()?,
            after: vec![
                Mixed::d(&scope.at("Mixed_7a"), 768)?,
                Mixed::e(&scope.at("Mixed_7b"), 1280)?,
                Mixed::e(&scope.at("Mixed_7c"), 2048)?,
            ],
            dropout: Dropout::new(dropout)?,
            fc: Linear::with_init(&scope.at("fc"), 2048, classes, WEIGHT, Some(Init::default_bias(2048)))?,
        })
    }

    /// Computes the scores, and those of the auxiliary classifier if there is one. For training, whose loss adds 0.4
    /// times the auxiliary loss.
    ///
    /// # Errors
    /// The images are too small; no memory.
    pub fn forward_with_auxiliary(&self, input: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        let features = self.features(input)?;
        let auxiliary = self.auxiliary.as_ref().map(|auxiliary| auxiliary.forward(&features)).transpose()?;
        Ok((self.classify(features)?, auxiliary))
    }

    fn features(&self, input: &Tensor) -> Result<Tensor> {
        let mut x = input.clone();
        for (number, layer) in self.stem.iter().enumerate() {
            x = layer.forward(&x)?;
            if number == 2 || number == 4 {
                x = SHRINK.forward(&x)?;
            }
        }
        self.before.iter().try_fold(x, |x, mixed| mixed.forward(&x))
    }

    fn classify(&self, features: Tensor) -> Result<Tensor> {
        let x = self.after.iter().try_fold(features, |x, mixed| mixed.forward(&x))?;
        self.fc.forward(&Flatten.forward(&self.dropout.forward(&AdaptiveAvgPool([1, 1]).forward(&x)?)?)?)
    }
}

impl Layer for InceptionV3 {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.classify(self.features(input)?)
    }
}

const SHRINK: MaxPool<2> = MaxPool(PoolOptions { stride: [2, 2], ..PoolOptions::new([3, 3]) });
const SMOOTH: AvgPool<2> = AvgPool(PoolOptions { stride: [1, 1], padding: [1, 1], ..PoolOptions::new([3, 3]) });

const WEIGHT: Init = Init::Normal { mean: 0.0, deviation: 0.1 };

/// Branches side by side, whose channels are concatenated.
struct Mixed {
    branches: Vec<Branch>,
}
module!(Mixed { branches });

/// A chain of convolutions.
struct Branch {
    pool: BranchPool,
    layers: Vec<Convolution>,
    /// The convolutions that all take the last layer's output.
    split: Vec<Convolution>,
}
module!(Branch { layers, split });

/// The pooling at the beginning of a branch.
#[derive(Clone, Copy, PartialEq)]
enum BranchPool {
    None,
    Mean,
    Max,
}

/// A convolution of a branch: its name, output channels, kernel and stride. The stride decides the padding.
type ConvolutionSpec<'a> = (&'a str, usize, [usize; 2], usize);

impl Mixed {
    fn a(scope: &Scope, inputs: usize, pooled: usize) -> Result<Self> {
        Self::new(
            scope,
            inputs,
            &[
                (BranchPool::None, &[("branch1x1", 64, [1, 1], 1)]),
                (BranchPool::None, &[("branch5x5_1", 48, [1, 1], 1), ("branch5x5_2", 64, [5, 5], 1)]),
                (
                    BranchPool::None,
                    &[
                        ("branch3x3dbl_1", 64, [1, 1], 1),
                        ("branch3x3dbl_2", 96, [3, 3], 1),
                        ("branch3x3dbl_3", 96, [3, 3], 1),
                    ],
                ),
                (BranchPool::Mean, &[("branch_pool", pooled, [1, 1], 1)]),
            ],
        )
    }

    fn b(scope: &Scope, inputs: usize) -> Result<Self> {
        Self::new(
            scope,
            inputs,
            &[
                (BranchPool::None, &[("branch3x3", 384, [3, 3], 2)]),
                (
                    BranchPool::None,
                    &[
                        ("branch3x3dbl_1", 64, [1, 1], 1),
                        ("branch3x3dbl_2", 96, [3, 3], 1),
                        ("branch3x3dbl_3", 96, [3, 3], 2),
                    ],
                ),
                (BranchPool::Max, &[]),
            ],
        )
    }

    fn c(scope: &Scope, inputs: usize, width: usize) -> Result<Self> {
        Self::new(
            scope,
            inputs,
            &[
                (BranchPool::None, &[("branch1x1", 192, [1, 1], 1)]),
                (
                    BranchPool::None,
                    &[
                        ("branch7x7_1", width, [1, 1], 1),
                        ("branch7x7_2", width, [1, 7], 1),
                        ("branch7x7_3", 192, [7, 1], 1),
                    ],
                ),
                (
                    BranchPool::None,
                    &[
                        ("branch7x7dbl_1", width, [1, 1], 1),
                        ("branch7x7dbl_2", width, [7, 1], 1),
                        ("branch7x7dbl_3", width, [1, 7], 1),
                        ("branch7x7dbl_4", width, [7, 1], 1),
                        ("branch7x7dbl_5", 192, [1, 7], 1),
                    ],
                ),
                (BranchPool::Mean, &[("branch_pool", 192, [1, 1], 1)]),
            ],
        )
    }

    fn d(scope: &Scope, inputs: usize) -> Result<Self> {
        Self::new(
            scope,
            inputs,
            &[
                (BranchPool::None, &[("branch3x3_1", 192, [1, 1], 1), ("branch3x3_2", 320, [3, 3], 2)]),
                (
                    BranchPool::None,
                    &[
                        ("branch7x7x3_1", 192, [1, 1], 1),
                        ("branch7x7x3_2", 192, [1, 7], 1),
                        ("branch7x7x3_3", 192, [7, 1], 1),
                        ("branch7x7x3_4", 192, [3, 3], 2),
                    ],
                ),
                (BranchPool::Max, &[]),
            ],
        )
    }

    fn e(scope: &Scope, inputs: usize) -> Result<Self> {
        let mut mixed = Self::new(
            scope,
            inputs,
            &[
                (BranchPool::None, &[("branch1x1", 320, [1, 1], 1)]),
                (BranchPool::None, &[("branch3x3_1", 384, [1, 1], 1)]),
                (BranchPool::None, &[("branch3x3dbl_1", 448, [1, 1], 1), ("branch3x3dbl_2", 384, [3, 3], 1)]),
                (BranchPool::Mean, &[("branch_pool", 192, [1, 1], 1)]),
            ],
        )?;
        for (branch, names) in [(1, ["branch3x3_2a", "branch3x3_2b"]), (2, ["branch3x3dbl_3a", "branch3x3dbl_3b"])] {
            for (name, kernel) in names.into_iter().zip([[1, 3], [3, 1]]) {
                mixed.branches[branch].split.push(Convolution::planned(scope, 384, (name, 384, kernel, 1))?);
            }
        }
        Ok(mixed)
    }

    fn new(scope: &Scope, inputs: usize, branches: &[(BranchPool, &[ConvolutionSpec<'_>])]) -> Result<Self> {
        let mut mixed = Self { branches: Vec::new() };
        for (pool, plans) in branches {
            let mut channels = inputs;
            let mut layers = Vec::new();
            for plan in *plans {
                layers.push(Convolution::planned(scope, channels, *plan)?);
                channels = plan.1;
            }
            mixed.branches.push(Branch { pool: *pool, layers, split: Vec::new() });
        }
        Ok(mixed)
    }
}

impl Layer for Mixed {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let mut parts = Vec::new();
        for branch in &self.branches {
            let x = match branch.pool {
                BranchPool::None => input.clone(),
                BranchPool::Mean => SMOOTH.forward(input)?,
                BranchPool::Max => SHRINK.forward(input)?,
            };
            let x = branch.layers.iter().try_fold(x, |x, layer| layer.forward(&x))?;
            if branch.split.is_empty() {
                parts.push(x);
            } else {
                let split = branch.split.iter().map(|layer| layer.forward(&x)).collect::<Result<Vec<_>>>()?;
                parts.extend(split);
            }
        }
        cat(&parts.iter().collect::<Vec<_>>(), 1)
    }
}

/// The auxiliary classifier in the middle of the model.
struct Auxiliary {
    conv0: Convolution,
    conv1: Convolution,
    fc: Linear,
}
module!(Auxiliary { conv0, conv1, fc });

impl Auxiliary {
    fn new(scope: &Scope, inputs: usize, classes: usize) -> Result<Self> {
        let fc = Init::Normal { mean: 0.0, deviation: 0.001 };
        Ok(Self {
            conv0: Convolution::new(&scope.at("conv0"), inputs, 128, [1, 1], [1, 1], [0, 0])?,
            conv1: Convolution::new(&scope.at("conv1"), 128, 768, [5, 5], [1, 1], [0, 0])?,
            fc: Linear::with_init(&scope.at("fc"), 768, classes, fc, Some(Init::default_bias(768)))?,
        })
    }
}

impl Layer for Auxiliary {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let pool = AvgPool(PoolOptions { stride: [3, 3], ..PoolOptions::new([5, 5]) });
        let x = self.conv1.forward(&self.conv0.forward(&pool.forward(input)?)?)?;
        self.fc.forward(&Flatten.forward(&AdaptiveAvgPool([1, 1]).forward(&x)?)?)
    }
}

/// A convolution without bias, batch normalisation and ReLU.
struct Convolution {
    conv: Conv2d,
    bn: BatchNorm2d,
}
module!(Convolution { conv, bn });

impl Convolution {
    fn new(
        scope: &Scope,
        inputs: usize,
        outputs: usize,
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
    ) -> Result<Self> {
        let options = ConvOptions { stride, padding, bias: false, ..ConvOptions::default() };
        let conv = Conv2d::with_init(&scope.at("conv"), inputs, outputs, kernel, options, WEIGHT)?;
        let options = BatchNormOptions { eps: 0.001, ..BatchNormOptions::default() };
        Ok(Self { conv, bn: BatchNorm2d::with_options(&scope.at("bn"), outputs, options)? })
    }

    /// Makes a convolution by a plan. It is padded to keep the height and width if the stride is 1.
    fn planned(scope: &Scope, inputs: usize, (name, outputs, kernel, stride): ConvolutionSpec<'_>) -> Result<Self> {
        let padding = if stride == 1 { kernel.map(|size| size / 2) } else { [0, 0] };
        Self::new(&scope.at(name), inputs, outputs, kernel, [stride; 2], padding)
    }
}

impl Layer for Convolution {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.bn.forward_relu(&self.conv.forward(input)?, None)
    }
}

#[cfg(test)]
mod tests {
    use tenure_tensor::random::Generator;
    use tenure_tensor::{DType, Device};

    use super::*;

    #[test]
    fn the_auxiliary_classifier_takes_features_of_17_pixels() {
        let auxiliary = Auxiliary::new(&Scope::new(&Generator::new(0)), 3, 7).unwrap();
        let features = Tensor::ones(&[2, 3, 17, 17], DType::F32, Device::CPU).unwrap();
        assert_eq!(auxiliary.forward(&features).unwrap().sizes(), [2, 7]);
    }
}
