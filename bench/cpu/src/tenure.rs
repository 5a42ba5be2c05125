//! The workloads on Tenure.

use anyhow::Result;
use tenure_nn::layers::Layer;
use tenure_nn::models::{Bert, BertConfig, Gpt2, Gpt2Config, ResNet, ResNetConfig};
use tenure_nn::optim::{Adam, Optimizer, Sgd};
use tenure_nn::{Module, Scope};
use tenure_tensor::autograd::no_grad;
use tenure_tensor::ops::CrossEntropy;
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Tensor};

use crate::{BERT_TOKENS, CLASSES, GPT2_TOKENS, IMAGES, SIDE, Step, Workload};

pub(crate) fn workload(workload: Workload) -> Result<Step> {
    let generator = Generator::new(0);
    let scope = Scope::new(&generator);
    Ok(match workload {
        Workload::Resnet18Train => {
            let (images, labels) = images(&generator)?;
            let model = ResNet::new(&scope, ResNetConfig::RESNET18)?;
            let optimizer = Optimizer::new(model.parameters(), 0.01, Sgd::default());
            train(optimizer, move || Ok(model.forward(&images)?.cross_entropy(&labels, &CrossEntropy::default())?))
        }
        Workload::Resnet18Infer => {
            let (images, _) = images(&generator)?;
            let mut model = ResNet::new(&scope, ResNetConfig::RESNET18)?;
            model.eval();
            Box::new(move || {
                no_grad(|| model.forward(&images))?;
                Ok(())
            })
        }
        Workload::BertInfer => {
            let config = BertConfig::default();
            let tokens = tokens(BERT_TOKENS, config.vocab_size)?;
            let mut model = Bert::new(&scope, &config)?;
            model.eval();
            Box::new(move || {
                no_grad(|| model.forward(&tokens, None))?;
                Ok(())
            })
        }
        Workload::Gpt2Train => {
            let config = Gpt2Config { embd_pdrop: 0.0, attn_pdrop: 0.0, resid_pdrop: 0.0, ..Gpt2Config::default() };
            let tokens = tokens(GPT2_TOKENS, config.vocab_size)?;
            let targets = tokens.reshape(&[-1])?;
            let model = Gpt2::new(&scope, &config)?;
            let optimizer = Optimizer::new(model.parameters(), 1e-4, Adam::w());
            train(optimizer, move || {
                let logits = model.forward(&tokens)?.flatten(0, 1)?;
                Ok(logits.cross_entropy(&targets, &CrossEntropy::default())?)
            })
        }
    })
}

fn train(mut optimizer: Optimizer, loss: impl Fn() -> Result<Tensor> + 'static) -> Step {
    Box::new(move || {
        let loss = loss()?;
        optimizer.zero_grad();
        loss.backward()?;
        optimizer.step()?;
        Ok(())
    })
}

fn images(generator: &Generator) -> Result<(Tensor, Tensor)> {
    let images = Tensor::randn(&[IMAGES, 3, SIDE, SIDE], DType::F32, Device::CPU, generator)?;
    let labels: Vec<i64> = (0..IMAGES).map(|index| (index % CLASSES) as i64).collect();
    Ok((images, Tensor::from_slice(&labels, &[IMAGES])?))
}

fn tokens(sizes: (usize, usize), vocabulary: usize) -> Result<Tensor> {
    Ok(Tensor::from_slice(&crate::tokens(sizes, vocabulary), &[sizes.0, sizes.1])?)
}
