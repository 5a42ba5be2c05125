//! The workloads, as `pytorch.py` has them.

use clap::ValueEnum;
use tenure_nn::layers::Layer;
use tenure_nn::models::{
    Bert, BertConfig, Gpt2, Gpt2Config, InceptionConfig, InceptionV3, Llama, LlamaConfig, ResNet, ResNetConfig,
};
use tenure_nn::optim::{Adam, Optimizer, Sgd};
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

const DEVICE: Device = Device::cuda(0);

/// A step of a workload, whose convolutional inference is on images in that `format`.
pub(crate) fn step(workload: Workload, format: MemoryFormat) -> Result<Step> {
    let generator = Generator::new(0);
    let scope = Scope::new(&generator);
    Ok(match workload {
        Workload::Resnet50 => {
            let mut model = ResNet::new(&scope, ResNetConfig::RESNET50)?;
            model.to_dtype(DType::BF16)?;
            model.to_format(MemoryFormat::ChannelsLast2d)?;
            model.to_device(DEVICE)?;
            let images = images(128, 224, &generator)?.to_dtype(DType::BF16)?;
            let images = images.contiguous_in(MemoryFormat::ChannelsLast2d)?.to_device(DEVICE)?;
            let labels = Tensor::arange(0, 128, 1, DType::I64, Device::CPU)?.to_device(DEVICE)?;
            let optimizer = Optimizer::new(model.parameters(), 0.01, Sgd { momentum: 0.9, ..Sgd::default() });
            train(optimizer, move || Ok(model.forward(&images)?.cross_entropy(&labels, &CrossEntropy::default())?))
        }
        Workload::Gpt2 => {
            let config = Gpt2Config {
                n_embd: 1024,
                n_head: 16,
                embd_pdrop: 0.0,
                attn_pdrop: 0.0,
                resid_pdrop: 0.0,
                ..Gpt2Config::default()
            };
            let vocabulary = config.vocab_size;
            language_model(Gpt2::new(&scope, &config)?, 8, 1024, vocabulary)?
        }
        Workload::Llama => {
            let config = LlamaConfig::default();
            let vocabulary = config.vocab_size;
            language_model(Llama::new(&scope, &config)?, 4, 2048, vocabulary)?
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
            let tokens = ids(8, 128, config.vocab_size)?;
            Box::new(move || Ok(no_grad(|| model.forward(&tokens, None))?))
        }
    })
}

fn language_model(mut model: impl Layer + 'static, batch: usize, length: usize, vocabulary: usize) -> Result<Step> {
    model.to_dtype(DType::BF16)?;
    model.to_device(DEVICE)?;
    let tokens = ids(batch, length, vocabulary)?;
    let targets = tokens.flatten(0, -1)?;
    let optimizer = Optimizer::new(model.parameters(), 1e-4, Adam::w());
    Ok(train(optimizer, move || {
        let logits = model.forward(&tokens)?.flatten(0, -2)?;
        Ok(logits.cross_entropy(&targets, &CrossEntropy::default())?)
    }))
}

fn train(mut optimizer: Optimizer, loss: impl Fn() -> Result<Tensor> + 'static) -> Step {
    Box::new(move || {
        let loss = loss()?;
        optimizer.zero_grad();
        loss.backward()?;
        optimizer.step()?;
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

fn ids(batch: usize, length: usize, vocabulary: usize) -> Result<Tensor> {
    let ids: Vec<i64> = (0..batch * length).map(|at| (at * 7919 % vocabulary) as i64).collect();
    Ok(Tensor::from_slice(&ids, &[batch, length])?.to_device(DEVICE)?)
}
