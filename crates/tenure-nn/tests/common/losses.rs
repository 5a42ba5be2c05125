//! The programs of `python/examples`, in Rust: a model that trains on one random batch.

use serde::Deserialize;
use tenure_nn::models::{Gpt2, Gpt2Config, ResNet, ResNetConfig};
use tenure_nn::{Result, Scope};
use tenure_tensor::random::{DefaultGenerator, Generator};
use tenure_tensor::{DType, Device, Tensor};

use crate::steps::{Training, adamw, classify, predict, sgd};

/// The options of `resnet18.py`, with its defaults.
#[derive(Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ResNet18Options {
    pub(crate) steps: usize,
    batch: usize,
    size: usize,
    width: usize,
    classes: usize,
    seed: u64,
}

impl Default for ResNet18Options {
    fn default() -> Self {
        Self { steps: 10, batch: 16, size: 224, width: 64, classes: 1000, seed: 0 }
    }
}

/// The options of `gpt2.py`, with its defaults.
#[derive(Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Gpt2Options {
    pub(crate) steps: usize,
    batch: usize,
    length: usize,
    layers: usize,
    width: usize,
    heads: usize,
    vocabulary: usize,
    seed: u64,
}

impl Default for Gpt2Options {
    fn default() -> Self {
        Self { steps: 10, batch: 4, length: 128, layers: 12, width: 768, heads: 12, vocabulary: 50_257, seed: 0 }
    }
}

/// A model in training and its batch.
pub(crate) struct Program {
    training: Training,
    inputs: Tensor,
    targets: Tensor,
    /// The sequence that dropout draws from too.
    generator: Generator,
}

impl Program {
    pub(crate) fn resnet18(options: ResNet18Options) -> Result<Self> {
        let ResNet18Options { batch, size, width, classes, seed, .. } = options;
        let generator = Generator::new(seed);
        let model = ResNet::new(&Scope::new(&generator), ResNetConfig { width, classes, ..ResNetConfig::RESNET18 })?;
        let inputs = Tensor::randn(&[batch, 3, size, size], DType::F32, Device::CPU, &generator)?;
        let targets = tokens(classes, &[batch], &generator)?;
        Ok(Self { training: Training::new(model, classify, sgd), inputs, targets, generator })
    }

    pub(crate) fn gpt2(options: Gpt2Options) -> Result<Self> {
        let Gpt2Options { batch, length, layers, width, heads, vocabulary, seed, .. } = options;
        let generator = Generator::new(seed);
        let config = Gpt2Config {
            vocab_size: vocabulary,
            n_embd: width,
            n_layer: layers,
            n_head: heads,
            ..Gpt2Config::default()
        };
        let model = Gpt2::new(&Scope::new(&generator), &config)?;
        let text = tokens(vocabulary, &[batch, length + 1], &generator)?;
        let inputs = text.narrow(1, 0, length)?;
        let targets = text.narrow(1, 1, length)?;
        Ok(Self { training: Training::new(model, predict, adamw), inputs, targets, generator })
    }

    /// Makes a step and returns its loss.
    pub(crate) fn step(&mut self) -> Result<f64> {
        let _generator = DefaultGenerator::enter(self.generator.clone());
        self.training.step(&self.inputs, &self.targets)
    }
}

fn tokens(count: usize, sizes: &[usize], generator: &Generator) -> tenure_tensor::Result<Tensor> {
    Tensor::randint(0, count as i64, sizes, DType::I64, Device::CPU, generator)
}
