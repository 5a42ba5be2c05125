//! Models by name, and the default recipe of each.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use tenure::nn::data::ImageOptions;
use tenure::nn::layers::Layer;
use tenure::nn::models::{
    DenseNet, DenseNetConfig, Gpt2, Gpt2Config, InceptionConfig, InceptionV3, Llama, LlamaConfig, R3d, R3dConfig,
    ResNet, ResNetConfig,
};
use tenure::nn::train::{Classification, Score, Task};
use tenure::nn::{self, Module, Scope, module};
use tenure::tensor::ops::{CrossEntropy, PadMode};
use tenure::tensor::{self, Tensor};

use crate::values::DataSpec;

/// Inputs, and their correct classes.
pub(super) type Batch = (Tensor, Tensor);

/// Any model with its loss.
pub(super) type AnyTask = Box<dyn Task<Batch = Batch>>;

/// The number of tokens: bytes are tokens.
const VOCABULARY: usize = 256;

/// The number of channels and of classes of the images for which a model is made.
#[derive(Clone, Copy)]
pub(super) struct ImageKind {
    pub(super) channels: usize,
    pub(super) classes: usize,
}

/// A model by name.
#[derive(Clone, Copy)]
pub(super) struct ModelKind {
    name: &'static str,
    network: Network,
}

/// A network, with its sizes if several models differ in them alone.
#[derive(Clone, Copy)]
pub(super) enum Network {
    ResNet(ResNetConfig),
    DenseNet(DenseNetConfig),
    InceptionV3,
    R3d18,
    Gpt2Mini,
    Gpt2,
    LlamaMini,
    Llama,
    /// The network of a known name, so that the error can say which command uses it.
    Bert,
}

/// All models, in the order in which the program lists them.
static MODELS: [ModelKind; 14] = [
    ModelKind { name: "resnet18", network: Network::ResNet(ResNetConfig::RESNET18) },
    ModelKind { name: "resnet34", network: Network::ResNet(ResNetConfig::RESNET34) },
    ModelKind { name: "resnet50", network: Network::ResNet(ResNetConfig::RESNET50) },
    ModelKind { name: "resnet101", network: Network::ResNet(ResNetConfig::RESNET101) },
    ModelKind { name: "resnet152", network: Network::ResNet(ResNetConfig::RESNET152) },
    ModelKind { name: "densenet121", network: Network::DenseNet(DenseNetConfig::DENSENET121) },
    ModelKind { name: "densenet201", network: Network::DenseNet(DenseNetConfig::DENSENET201) },
    ModelKind { name: "inception_v3", network: Network::InceptionV3 },
    ModelKind { name: "r3d18", network: Network::R3d18 },
    ModelKind { name: "gpt2-mini", network: Network::Gpt2Mini },
    ModelKind { name: "gpt2", network: Network::Gpt2 },
    ModelKind { name: "llama-mini", network: Network::LlamaMini },
    ModelKind { name: "llama", network: Network::Llama },
    ModelKind { name: "bert", network: Network::Bert },
];

impl ValueEnum for ModelKind {
    fn value_variants<'a>() -> &'a [Self] {
        &MODELS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name).hide(matches!(self.network, Network::Bert)))
    }
}

impl ModelKind {
    pub(super) fn name(self) -> &'static str {
        self.name
    }

    /// Returns the network of the model. Choices among models go by it.
    pub(super) fn network(self) -> Network {
        self.network
    }

    /// Returns whether it predicts the next token of a text, rather than the class of an image.
    pub(super) fn is_for_text(self) -> bool {
        match self.network {
            Network::Gpt2Mini | Network::Gpt2 | Network::LlamaMini | Network::Llama => true,
            Network::ResNet(_) | Network::DenseNet(_) | Network::InceptionV3 | Network::R3d18 | Network::Bert => false,
        }
    }

    /// Returns an error if it cannot learn from `data`; the error says which models can.
    pub(super) fn check(self, data: &DataSpec) -> anyhow::Result<()> {
        let for_images = "resnet18, resnet34, resnet50, resnet101, resnet152, densenet121, densenet201, r3d18";
        let name = self.name;
        let is_text = matches!(data, DataSpec::Text(_));
        anyhow::ensure!(
            !matches!(self.network, Network::Bert),
            "bert encodes text and does not predict what follows, so there is nothing here to train it on: a trained one is \
             used by `tenure embed`; for --data text:FILE there are gpt2-mini, gpt2, llama-mini and llama"
        );
        anyhow::ensure!(
            !matches!((self.network, data), (Network::InceptionV3, DataSpec::FashionMnist(_))),
            "inception_v3 takes images of three channels and 299 pixels, as of images:DIR, not {data}, which goes with \
             {for_images}"
        );
        anyhow::ensure!(
            self.is_for_text() || !is_text,
            "{name} takes images, of fashion-mnist or images:DIR, not {data}, which goes with gpt2-mini, gpt2, llama-mini \
             and llama"
        );
        anyhow::ensure!(
            !self.is_for_text() || is_text,
            "{name} takes text, as of text:FILE, not {data}, which goes with {for_images}, and images:DIR with \
             inception_v3 too"
        );
        Ok(())
    }

    /// Returns how images of a folder are scaled to the model's input size.
    ///
    /// # Panics
    /// As [`for_images`](Self::for_images).
    pub(super) fn image_options(self) -> ImageOptions {
        match self.network {
            Network::InceptionV3 => ImageOptions { size: 299, resize: 342, ..ImageOptions::default() },
            Network::R3d18 => ImageOptions { size: 112, resize: 128, ..ImageOptions::default() },
            Network::ResNet(_) | Network::DenseNet(_) => ImageOptions::default(),
            Network::Gpt2Mini | Network::Gpt2 | Network::LlamaMini | Network::Llama | Network::Bert => {
                unreachable!("{} does not take images", self.name)
            }
        }
    }

    /// Returns the number of tokens in one example.
    ///
    /// # Panics
    /// As [`for_text`](Self::for_text).
    pub(super) fn window(self) -> usize {
        match self.network {
            Network::Gpt2 | Network::Llama => 256,
            Network::Gpt2Mini | Network::LlamaMini => 128,
            Network::ResNet(_) | Network::DenseNet(_) | Network::InceptionV3 | Network::R3d18 | Network::Bert => {
                unreachable!("{} does not take text", self.name)
            }
        }
    }

    /// Makes a new model for images.
    ///
    /// # Panics
    /// The model is not for images: [`check`](Self::check) refuses it first.
    pub(super) fn for_images(self, scope: &Scope, kind: ImageKind) -> nn::Result<AnyTask> {
        let ImageKind { channels, classes } = kind;
        Ok(match self.network {
            Network::ResNet(config) => classify(ResNet::new(scope, ResNetConfig { channels, classes, ..config })?),
            Network::DenseNet(config) => {
                let model = DenseNet::new(scope, DenseNetConfig { channels, classes, ..config })?;
                classify(Prepared { prepare: at_least_32, model: Box::new(model) })
            }
            Network::InceptionV3 => {
                let config = InceptionConfig { classes, ..InceptionConfig::V3 };
                Box::new(Auxiliary(InceptionV3::new(scope, config)?))
            }
            Network::R3d18 => {
                let model = R3d::new(scope, R3dConfig { channels, classes, ..R3dConfig::R3D18 })?;
                classify(Prepared { prepare: one_frame, model: Box::new(model) })
            }
            Network::Gpt2Mini | Network::Gpt2 | Network::LlamaMini | Network::Llama | Network::Bert => {
                unreachable!("{} does not take images", self.name)
            }
        })
    }

    /// Makes a new model for text.
    ///
    /// # Panics
    /// The model is not for text: [`check`](Self::check) refuses it first.
    pub(super) fn for_text(self, scope: &Scope) -> nn::Result<AnyTask> {
        let vocab_size = VOCABULARY;
        Ok(match self.network {
            Network::Llama => classify(Llama::new(scope, &LlamaConfig { vocab_size, ..LlamaConfig::default() })?),
            Network::LlamaMini => {
                let config = LlamaConfig {
                    vocab_size,
                    hidden_size: 128,
                    intermediate_size: 352,
                    num_hidden_layers: 4,
                    num_attention_heads: 4,
                    num_key_value_heads: 2,
                    ..LlamaConfig::default()
                };
                classify(Llama::new(scope, &config)?)
            }
            Network::Gpt2 => classify(Gpt2::new(scope, &Gpt2Config { vocab_size, ..Gpt2Config::default() })?),
            Network::Gpt2Mini => {
                let config = Gpt2Config {
                    vocab_size,
                    n_positions: self.window(),
                    n_embd: 128,
                    n_layer: 4,
                    n_head: 4,
                    // No dropout: so few steps are not enough to memorise a text.
                    embd_pdrop: 0.0,
                    attn_pdrop: 0.0,
                    resid_pdrop: 0.0,
                    ..Gpt2Config::default()
                };
                classify(Gpt2::new(scope, &config)?)
            }
            Network::ResNet(_) | Network::DenseNet(_) | Network::InceptionV3 | Network::R3d18 | Network::Bert => {
                unreachable!("{} does not take text", self.name)
            }
        })
    }
}

fn classify(model: impl Layer + 'static) -> AnyTask {
    Box::new(Classification(model))
}

/// A model whose input is preprocessed.
struct Prepared {
    prepare: fn(&Tensor) -> tensor::Result<Tensor>,
    model: Box<dyn Layer>,
}
module!(Prepared { model });

impl Layer for Prepared {
    fn forward(&self, input: &Tensor) -> tensor::Result<Tensor> {
        self.model.forward(&(self.prepare)(input)?)
    }
}

/// Turns images into videos of one frame.
fn one_frame(images: &Tensor) -> tensor::Result<Tensor> {
    images.unsqueeze(2)
}

/// Pads images to at least 32 pixels: the network would shrink smaller ones to nothing.
fn at_least_32(images: &Tensor) -> tensor::Result<Tensor> {
    let missing = 32_usize.saturating_sub(images.size(-1)?) as isize;
    let before = missing / 2;
    let after = missing - missing / 2;
    images.pad(&[before, after, before, after], PadMode::Constant(0.0.into()))
}

/// Inception, which also trains with an auxiliary classifier in its middle.
struct Auxiliary(InceptionV3);

impl Task for Auxiliary {
    type Batch = Batch;

    fn examples(&self, (_, target): &Batch) -> usize {
        target.numel()
    }

    fn model(&self) -> &dyn Module {
        &self.0
    }

    fn model_mut(&mut self) -> &mut dyn Module {
        &mut self.0
    }

    fn loss(&self, (input, target): &Batch) -> nn::Result<Tensor> {
        let (scores, auxiliary) = self.0.forward_with_auxiliary(input)?;
        let loss = scores.cross_entropy(target, &CrossEntropy::default())?;
        let Some(auxiliary) = auxiliary else { return Ok(loss) };
        // The weight that torchvision uses.
        Ok(loss.add(&auxiliary.cross_entropy(target, &CrossEntropy::default())?.mul(0.4)?)?)
    }

    fn score(&self, (input, target): &Batch) -> nn::Result<Score> {
        Score::new(&self.0.forward(input)?, target)
    }
}
