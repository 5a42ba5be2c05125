//! The models that benchmarks measure, and random weights for them.

use std::collections::HashSet;
use std::path::Path;

use clap::ValueEnum;
use serde_json::{Map, Value, json};
use tenure::nn::checkpoint;
use tenure::nn::networks::{Architectures, Network};
use tenure::tensor::random::Generator;
use tenure::tensor::{DType, Device, Tensor};

/// The number of random values that are drawn for a tensor; then they repeat.
const DRAWN: usize = 1 << 22;

/// A model, and its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Workload {
    /// 8 images of 224 x 224
    #[value(name = "resnet152")]
    Resnet152,
    /// 8 images of 299 x 299
    #[value(name = "inception_v3")]
    InceptionV3,
    /// 8 texts of 128 tokens
    #[value(name = "bert_base")]
    BertBase,
    /// A text of 512 tokens, in bfloat16; 16 GB for each of two models, in files and in memory
    #[value(name = "llama_8b")]
    Llama8b,
    /// An image of 224 x 224
    #[value(name = "resnet18")]
    Resnet18,
    /// A text of 128 tokens
    #[value(name = "gpt2")]
    Gpt2,
    /// A network of 150 kB
    Tiny,
    /// A row of 1,024 numbers; 17 MB
    Mlp,
    /// A row of 16 numbers; 1 kB. They are integers, so that sums are exact in any order
    Linear,
}

impl Workload {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }

    /// Makes the network without values.
    pub(super) fn network(self) -> anyhow::Result<Box<dyn Network>> {
        let (architecture, options) = self.built_of();
        Ok(Architectures::default().build(architecture, options)?)
    }

    /// Returns the architecture and its options.
    pub(super) fn built_of(self) -> (&'static str, Map<String, Value>) {
        let (architecture, options) = match self {
            Self::Resnet152 => ("resnet152", json!({})),
            Self::InceptionV3 => ("inception_v3", json!({})),
            Self::BertBase => (
                "bert",
                json!({
                    "model_type": "bert", "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12,
                    "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 512,
                }),
            ),
            Self::Llama8b => (
                "llama",
                json!({
                    "model_type": "llama", "vocab_size": 128_256, "hidden_size": 4096, "num_hidden_layers": 32,
                    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336, "rope_theta": 500_000.0,
                }),
            ),
            Self::Resnet18 => ("resnet18", json!({})),
            Self::Gpt2 => ("gpt2", json!({"model_type": "gpt2"})),
            Self::Tiny => ("resnet18", json!({"width": 4, "classes": 10})),
            Self::Mlp => ("mlp", json!({"sizes": [1024, 1024, 1024, 1024, 1024]})),
            Self::Linear => ("mlp", json!({"sizes": [16, 16]})),
        };
        let Value::Object(options): Value = options else { unreachable!("options are an object") };
        (architecture, options)
    }

    /// Returns the number of models: one more than fit on the device.
    pub(super) fn models(self) -> usize {
        if self == Self::Llama8b { 2 } else { 3 }
    }

    /// Makes the inputs of a request.
    pub(super) fn inputs(self, device: Device) -> tenure::tensor::Result<Vec<Tensor>> {
        let generator = Generator::new(17);
        let images = |count, size| Tensor::randn(&[count, 3, size, size], DType::F32, Device::CPU, &generator);
        let tokens =
            |count, length, below| Tensor::randint(0, below, &[count, length], DType::I64, Device::CPU, &generator);
        let inputs = match self {
            Self::Resnet152 => vec![images(8, 224)?],
            Self::InceptionV3 => vec![images(8, 299)?],
            Self::BertBase => vec![tokens(8, 128, 30_522)?, Tensor::ones(&[8, 128], DType::I64, Device::CPU)?],
            Self::Llama8b => vec![tokens(1, 512, 128_256)?],
            Self::Resnet18 => vec![images(1, 224)?],
            Self::Gpt2 => vec![tokens(1, 128, 50_257)?],
            Self::Tiny => vec![images(1, 32)?],
            Self::Mlp => vec![Tensor::randn(&[1, 1024], DType::F32, Device::CPU, &generator)?],
            Self::Linear => vec![whole(&[1, 16], &generator)?],
        };
        inputs.iter().map(|input| input.to_device(device)).collect()
    }

    /// Writes random weights.
    pub(super) fn write_weights(self, path: &Path, seed: u64) -> anyhow::Result<()> {
        let network = self.network()?;
        let generator = Generator::new(seed);
        let mut known = HashSet::new();
        let mut tensors = Vec::new();
        for (name, shape) in network.state() {
            if known.insert(shape.id()) {
                tensors.push((name.to_owned(), self.drawn(name, shape, &generator)?));
            }
        }
        let state = tensors.iter().map(|(name, tensor)| (name.clone(), tensor));
        Ok(checkpoint::save(path, state, ("weights", "drawn by tenure bench"))?)
    }

    /// Draws values with which activations keep their magnitude from layer to layer.
    fn drawn(self, name: &str, shape: &Tensor, generator: &Generator) -> tenure::tensor::Result<Tensor> {
        let sizes = shape.sizes();
        if !shape.dtype().is_floating() {
            return Tensor::zeros(sizes, shape.dtype(), Device::CPU);
        }
        if self == Self::Linear {
            return whole(sizes, generator);
        }
        let dtype = if self == Self::Llama8b { DType::BF16 } else { shape.dtype() };
        let (low, high) = match sizes {
            [_, rest @ ..] if !rest.is_empty() => {
                let fan_in: usize = rest.iter().product();
                let bound = (3.0 / fan_in as f64).sqrt();
                (-bound, bound)
            }
            // Scale factors, and the variances of activations.
            _ if name.ends_with("weight") || name.ends_with("running_var") => (0.9, 1.1),
            _ => (-0.1, 0.1),
        };
        let drawn = Tensor::empty(&[shape.numel().min(DRAWN)], dtype, Device::CPU)?;
        drawn.uniform_(low, high, generator)?;
        let drawn = drawn.to_bytes()?;
        let bytes = shape.numel() * dtype.size();
        let mut repeated = drawn.repeat(bytes.div_ceil(drawn.len().max(1)));
        repeated.truncate(bytes);
        Tensor::from_bytes(&repeated, sizes, dtype)
    }
}

/// Draws integers from -8 to 8.
fn whole(sizes: &[usize], generator: &Generator) -> tenure::tensor::Result<Tensor> {
    Tensor::randint(-8, 9, sizes, DType::F32, Device::CPU, generator)
}
