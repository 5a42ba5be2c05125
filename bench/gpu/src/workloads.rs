//! The workloads, the same as in `pytorch.py`.

use clap::ValueEnum;
use tenure_nn::data::Dataset;
use tenure_nn::layers::Layer;
use tenure_nn::models::{
    Bert, BertConfig, Gpt2, Gpt2Config, InceptionConfig, InceptionV3, Llama, LlamaConfig, ResNet, ResNetConfig,
};
use tenure_nn::optim::{Adam, Optimizer, Sgd};
use tenure_nn::train::{Score, Task};
use tenure_nn::{Module, Result, Scope};
use tenure_tensor::autograd::no_grad;
use tenure_tensor::ops::CrossEntropy;
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, MemoryFormat, Tensor};

use crate::Step;

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Workload {
    Resnet50,
    Gpt2,
    Llama,
    Resnet152,
    Inception,
    Bert,
}

impl Workload {
    /// Returns the kind of workload: training, with `batch` examples if they are given, or inference.
    pub(crate) fn of(self, batch: Option<usize>, dropout: bool) -> Kind {
        let train = |model, otherwise| Kind::Trained(Trained { model, batch: batch.unwrap_or(otherwise) });
        match self {
            Self::Resnet50 => train(Model::Resnet(ResNetConfig::RESNET50), 128),
            Self::Resnet152 if batch.is_some() => train(Model::Resnet(ResNetConfig::RESNET152), 0),
            Self::Gpt2 => train(Model::Gpt2 { dropout }, 8),
            Self::Llama => train(Model::Llama, 4),
            Self::Resnet152 => Kind::Inferred(Inferred::Resnet152),
            Self::Inception => Kind::Inferred(Inferred::Inception),
            Self::Bert => Kind::Inferred(Inferred::Bert),
        }
    }
}

/// The use of a model: training or inference.
pub(crate) enum Kind {
    Trained(Trained),
    Inferred(Inferred),
}

#[derive(Clone, Copy)]
pub(crate) enum Inferred {
    Resnet152,
    Inception,
    Bert,
}

/// A model to train, and the number of examples in a step.
#[derive(Clone, Copy)]
pub(crate) struct Trained {
    model: Model,
    batch: usize,
}

#[derive(Clone, Copy)]
enum Model {
    Resnet(ResNetConfig),
    Gpt2 { dropout: bool },
    Llama,
}

const DEVICE: Device = Device::cuda(0);

/// Makes a step of inference, on images in that `format`.
pub(crate) fn inference(model: Inferred, format: MemoryFormat) -> Result<Step> {
    let generator = Generator::new(0);
    let scope = Scope::new(&generator);
    Ok(match model {
        Inferred::Resnet152 => {
            infer(ResNet::new(&scope, ResNetConfig::RESNET152)?, images(8, 224, &generator)?, format)?
        }
        Inferred::Inception => {
            infer(InceptionV3::new(&scope, InceptionConfig::V3)?, images(8, 299, &generator)?, format)?
        }
        Inferred::Bert => {
            let config = BertConfig::default();
            let mut model = Bert::new(&scope, &config)?;
            model.to_device(DEVICE)?;
            model.eval();
            let tokens = ids(0, 8, 128, config.vocab_size, DEVICE)?;
            Box::new(move || Ok(no_grad(|| model.forward(&tokens, None))?))
        }
    })
}

/// A data set of numbers, which stand for examples that are already on the device, for a trainer.
pub(crate) struct Numbers;

impl Dataset for Numbers {
    type Item = i64;

    fn len(&self) -> usize {
        1 << 20
    }

    fn item(&self, index: usize) -> tenure_nn::data::Result<i64> {
        Ok(index as i64)
    }
}

/// A model that trains on the same examples again and again.
pub(crate) struct Training {
    model: Box<dyn Layer>,
    inputs: Tensor,
    targets: Tensor,
}

/// Makes the model, its examples and its optimizer, on a device.
pub(crate) fn training(trained: Trained, device: Device) -> Result<(Training, Optimizer)> {
    let generator = Generator::new(0);
    let scope = Scope::new(&generator);
    let batch = trained.batch;
    match trained.model {
        Model::Gpt2 { dropout } => {
            let dropping = Gpt2Config { n_embd: 1024, n_head: 16, ..Gpt2Config::default() };
            let config = if dropout {
                dropping
            } else {
                Gpt2Config { embd_pdrop: 0.0, attn_pdrop: 0.0, resid_pdrop: 0.0, ..dropping }
            };
            language_model(Gpt2::new(&scope, &config)?, [batch, 1024, config.vocab_size], device)
        }
        Model::Llama => {
            let config = LlamaConfig::default();
            language_model(Llama::new(&scope, &config)?, [batch, 2048, config.vocab_size], device)
        }
        Model::Resnet(config) => {
            let mut model = ResNet::new(&scope, config)?;
            model.to_dtype(DType::BF16)?;
            model.to_format(MemoryFormat::ChannelsLast2d)?;
            model.to_device(device)?;
            let inputs = images(batch, 224, &generator)?.to_dtype(DType::BF16)?;
            let inputs = inputs.contiguous_in(MemoryFormat::ChannelsLast2d)?.to_device(device)?;
            let targets = Tensor::arange(0, batch as i64, 1, DType::I64, Device::CPU)?.remainder(1000)?;
            let targets = targets.to_device(device)?;
            let optimizer = Optimizer::new(model.parameters(), 0.01, Sgd { momentum: 0.9, ..Sgd::default() });
            Ok((Training { model: Box::new(model), inputs, targets }, optimizer))
        }
    }
}

/// Makes a training step, which takes the same examples each time.
pub(crate) fn train(trained: Trained) -> Result<Step> {
    let (training, mut optimizer) = training(trained, DEVICE)?;
    Ok(Box::new(move || {
        let loss = training.loss_of_all()?;
        loss.backward()?;
        optimizer.step()?;
        // Frees the gradients before the next step needs the memory.
        optimizer.zero_grad();
        Ok(loss.detach())
    }))
}

fn language_model(
    mut model: impl Layer + 'static,
    [batch, length, vocabulary]: [usize; 3],
    device: Device,
) -> Result<(Training, Optimizer)> {
    model.to_dtype(DType::BF16)?;
    model.to_device(device)?;
    let optimizer = Optimizer::new(model.parameters(), 1e-4, Adam::w());
    // The targets are the following tokens.
    let [inputs, targets] = [0, 1].map(|first| ids(first, batch, length, vocabulary, device));
    Ok((Training { model: Box::new(model), inputs: inputs?, targets: targets?.flatten(0, -1)? }, optimizer))
}

impl Training {
    fn loss_of_all(&self) -> Result<Tensor> {
        let scores = self.model.forward(&self.inputs)?.flatten(0, -2)?;
        Ok(scores.cross_entropy(&self.targets, &CrossEntropy::default())?)
    }

    /// Returns the number of examples: images, or texts.
    pub(crate) fn examples(&self) -> usize {
        self.inputs.sizes()[0]
    }
}

/// A task for a trainer: a batch of numbers stands for the examples on the device.
impl Task for Training {
    type Batch = Tensor;

    fn examples(&self, batch: &Tensor) -> usize {
        batch.numel()
    }

    fn model(&self) -> &dyn Module {
        &*self.model
    }

    fn model_mut(&mut self) -> &mut dyn Module {
        &mut *self.model
    }

    fn loss(&self, _: &Tensor) -> Result<Tensor> {
        self.loss_of_all()
    }

    fn score(&self, _: &Tensor) -> Result<Score> {
        Ok(Score::default())
    }
}

fn infer(mut model: impl Layer + 'static, inputs: Tensor, format: MemoryFormat) -> Result<Step> {
    model.to_format(format)?;
    model.to_device(DEVICE)?;
    model.eval();
    let inputs = inputs.contiguous_in(format)?.to_device(DEVICE)?;
    Ok(Box::new(move || Ok(no_grad(|| model.forward(&inputs))?)))
}

fn images(count: usize, side: usize, generator: &Generator) -> Result<Tensor> {
    Ok(Tensor::randn(&[count, 3, side, side], DType::F32, Device::CPU, generator)?)
}

/// Returns tokens of a text, from number `first` on.
fn ids(first: usize, batch: usize, length: usize, vocabulary: usize, device: Device) -> Result<Tensor> {
    let ids: Vec<i64> = (first..first + batch * length).map(|at| (at * 7919 % vocabulary) as i64).collect();
    Ok(Tensor::from_slice(&ids, &[batch, length])?.to_device(device)?)
}
