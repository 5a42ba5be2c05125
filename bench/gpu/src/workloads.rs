//! The workloads, as `pytorch.py` has them.

use clap::ValueEnum;
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
    /// Whether it is training, rather than inference.
    pub(crate) fn is_trained(self) -> bool {
        matches!(self, Self::Resnet50 | Self::Gpt2 | Self::Llama)
    }
}

const DEVICE: Device = Device::cuda(0);

/// A step of a workload, of GPT-2 with `dropout` or without, whose convolutional inference is on images in that `format`.
pub(crate) fn step(workload: Workload, dropout: bool, format: MemoryFormat) -> Result<Step> {
    let generator = Generator::new(0);
    let scope = Scope::new(&generator);
    Ok(match workload {
        Workload::Resnet50 | Workload::Gpt2 | Workload::Llama => {
            let (training, optimizer) = training(workload, dropout, DEVICE)?;
            train(optimizer, move || training.loss_of_all())
        }
        Workload::Resnet152 => {
            infer(ResNet::new(&scope, ResNetConfig::RESNET152)?, images(8, 224, &generator)?, format)?
        }
        Workload::Inception => {
            infer(InceptionV3::new(&scope, InceptionConfig::V3)?, images(8, 299, &generator)?, format)?
        }
        Workload::Bert => {
            let config = BertConfig::default();
            let mut model = Bert::new(&scope, &config)?;
            model.to_device(DEVICE)?;
            model.eval();
            let tokens = ids(0, 8, 128, config.vocab_size, DEVICE)?;
            Box::new(move || Ok(no_grad(|| model.forward(&tokens, None))?))
        }
    })
}

/// A model that is trained on the same examples again and again.
pub(crate) struct Training {
    model: Box<dyn Layer>,
    inputs: Tensor,
    targets: Tensor,
}

/// One of those that are trained.
pub(crate) fn training(workload: Workload, dropout: bool, device: Device) -> Result<(Training, Optimizer)> {
    let generator = Generator::new(0);
    let scope = Scope::new(&generator);
    match workload {
        Workload::Gpt2 => {
            let dropping = Gpt2Config { n_embd: 1024, n_head: 16, ..Gpt2Config::default() };
            let config = if dropout {
                dropping
            } else {
                Gpt2Config { embd_pdrop: 0.0, attn_pdrop: 0.0, resid_pdrop: 0.0, ..dropping }
            };
            language_model(Gpt2::new(&scope, &config)?, [8, 1024, config.vocab_size], device)
        }
        Workload::Llama => {
            let config = LlamaConfig::default();
            language_model(Llama::new(&scope, &config)?, [4, 2048, config.vocab_size], device)
        }
        _ => {
            let mut model = ResNet::new(&scope, ResNetConfig::RESNET50)?;
            model.to_dtype(DType::BF16)?;
            model.to_format(MemoryFormat::ChannelsLast2d)?;
            model.to_device(device)?;
            let inputs = images(128, 224, &generator)?.to_dtype(DType::BF16)?;
            let inputs = inputs.contiguous_in(MemoryFormat::ChannelsLast2d)?.to_device(device)?;
            let targets = Tensor::arange(0, 128, 1, DType::I64, Device::CPU)?.to_device(device)?;
            let optimizer = Optimizer::new(model.parameters(), 0.01, Sgd { momentum: 0.9, ..Sgd::default() });
            Ok((Training { model: Box::new(model), inputs, targets }, optimizer))
        }
    }
}

fn language_model(
    mut model: impl Layer + 'static,
    [batch, length, vocabulary]: [usize; 3],
    device: Device,
) -> Result<(Training, Optimizer)> {
    model.to_dtype(DType::BF16)?;
    model.to_device(device)?;
    let optimizer = Optimizer::new(model.parameters(), 1e-4, Adam::w());
    // Those that follow.
    let [inputs, targets] = [0, 1].map(|first| ids(first, batch, length, vocabulary, device));
    Ok((Training { model: Box::new(model), inputs: inputs?, targets: targets?.flatten(0, -1)? }, optimizer))
}

impl Training {
    fn loss_of_all(&self) -> Result<Tensor> {
        let scores = self.model.forward(&self.inputs)?.flatten(0, -2)?;
        Ok(scores.cross_entropy(&self.targets, &CrossEntropy::default())?)
    }

    /// Images, or texts.
    pub(crate) fn examples(&self) -> usize {
        self.inputs.sizes()[0]
    }
}

/// For several devices: a batch stands for the examples that are there.
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

fn train(mut optimizer: Optimizer, loss: impl Fn() -> Result<Tensor> + 'static) -> Step {
    Box::new(move || {
        let loss = loss()?;
        loss.backward()?;
        optimizer.step()?;
        // Before the next step needs the memory.
        optimizer.zero_grad();
        Ok(loss.detach())
    })
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

/// Tokens of a text, from number `first` on.
fn ids(first: usize, batch: usize, length: usize, vocabulary: usize, device: Device) -> Result<Tensor> {
    let ids: Vec<i64> = (first..first + batch * length).map(|at| (at * 7919 % vocabulary) as i64).collect();
    Ok(Tensor::from_slice(&ids, &[batch, length])?.to_device(device)?)
}
