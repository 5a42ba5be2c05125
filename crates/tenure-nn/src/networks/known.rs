//! The architectures of `tenure-nn`: networks for images, videos, rows of numbers and texts.

use serde::Deserialize;
use serde_json::{Map, Value};
use tenure_tensor::{Result, Tensor};

use super::{Architectures, Network, one_to_one};
use crate::layers::{Activation, Linear, Sequential};
use crate::models::{
    Bert, DenseNet, DenseNetConfig, Gpt2, InceptionConfig, InceptionV3, Llama, R3d, R3dConfig, ResNet, ResNetConfig,
};
use crate::{module, sentence};

/// Sizes that override a named architecture's.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Residual {
    channels: Option<usize>,
    classes: Option<usize>,
    width: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dense {
    channels: Option<usize>,
    classes: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Inception {
    classes: Option<usize>,
}

/// The options of a multilayer perceptron.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mlp {
    /// The sizes of a row before each layer and after the last.
    sizes: Vec<usize>,
}

pub(super) fn register(architectures: &mut Architectures) {
    for (name, base) in [
        ("resnet18", ResNetConfig::RESNET18),
        ("resnet34", ResNetConfig::RESNET34),
        ("resnet50", ResNetConfig::RESNET50),
        ("resnet101", ResNetConfig::RESNET101),
        ("resnet152", ResNetConfig::RESNET152),
    ] {
        architectures.register(name, move |scope, options| {
            let Residual { channels, classes, width } = parse(options)?;
            let channels = channels.unwrap_or(base.channels);
            let classes = classes.unwrap_or(base.classes);
            let width = width.unwrap_or(base.width);
            Ok(one_to_one(ResNet::new(scope, ResNetConfig { channels, classes, width, ..base })?))
        });
    }
    for (name, base) in [("densenet121", DenseNetConfig::DENSENET121), ("densenet201", DenseNetConfig::DENSENET201)] {
        architectures.register(name, move |scope, options| {
            let Dense { channels, classes } = parse(options)?;
            let channels = channels.unwrap_or(base.channels);
            let classes = classes.unwrap_or(base.classes);
            Ok(one_to_one(DenseNet::new(scope, DenseNetConfig { channels, classes, ..base })?))
        });
    }
    architectures.register("inception_v3", |scope, options| {
        let Inception { classes } = parse(options)?;
        let base = InceptionConfig::V3;
        // The auxiliary classifier is for training only.
        let config = InceptionConfig { classes: classes.unwrap_or(base.classes), has_auxiliary: false, ..base };
        Ok(one_to_one(InceptionV3::new(scope, config)?))
    });
    architectures.register("r3d18", |scope, options| {
        let Residual { channels, classes, width } = parse(options)?;
        let base = R3dConfig::R3D18;
        let channels = channels.unwrap_or(base.channels);
        let classes = classes.unwrap_or(base.classes);
        let width = width.unwrap_or(base.width);
        Ok(one_to_one(R3d::new(scope, R3dConfig { channels, classes, width, ..base })?))
    });
    architectures.register("mlp", |scope, options| {
        let Mlp { sizes } = parse(options)?;
        let mut layers = Sequential::default();
        for (index, ends) in sizes.windows(2).enumerate() {
            if index > 0 {
                layers = layers.then(scope, |_| Ok(Activation::Relu))?;
            }
            layers = layers.then(scope, |at| Linear::new(at, ends[0], ends[1]))?;
        }
        Ok(one_to_one(layers))
    });
    for (name, has_vectors) in [("bert", false), ("sentences", true)] {
        architectures.register(name, move |scope, options| {
            Ok(Box::new(Encoder { bert: Bert::new(scope, &parse(options)?)?, has_vectors }))
        });
    }
    architectures.register("gpt2", |scope, options| Ok(one_to_one(Gpt2::new(scope, &parse(options)?)?)));
    architectures.register("llama", |scope, options| Ok(one_to_one(Llama::new(scope, &parse(options)?)?)));
}

fn parse<T: for<'a> Deserialize<'a>>(options: Map<String, Value>) -> serde_json::Result<T> {
    serde_json::from_value(Value::Object(options))
}

struct Encoder {
    bert: Bert,
    /// Whether the output is a vector for each text rather than for each token.
    has_vectors: bool,
}
module!(Encoder { bert });

impl Network for Encoder {
    fn inputs(&self) -> usize {
        2
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let tokens = &inputs[0];
        let mask = &inputs[1];
        Ok(vec![match self.has_vectors {
            true => sentence::vectors(&self.bert, tokens, mask)?,
            false => self.bert.forward(tokens, Some(mask))?,
        }])
    }
}
