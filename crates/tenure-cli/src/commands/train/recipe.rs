//! The default training recipe of each model.

use tenure::nn::Parameter;
use tenure::nn::optim::{Adam, Optimizer, Schedule, Sgd};

use super::models::{ModelKind, Network};
use crate::values::DataSpec;

/// The default settings for a kind of model and its data.
#[derive(Clone, Copy)]
pub(super) struct Recipe {
    pub(super) batch_size: usize,
    pub(super) length: Length,
    /// The largest learning rate.
    pub(super) lr: f64,
    pub(super) clip_norm: Option<f64>,
    is_for_text: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Length {
    Epochs(u64),
    Steps(u64),
}

impl Recipe {
    pub(super) fn new(model: ModelKind, data: &DataSpec) -> Self {
        let text = |batch_size, steps, lr| Self {
            batch_size,
            length: Length::Steps(steps),
            lr,
            clip_norm: Some(1.0),
            is_for_text: true,
        };
        let images = |batch_size, epochs, lr| Self {
            batch_size,
            length: Length::Epochs(epochs),
            lr,
            clip_norm: None,
            is_for_text: false,
        };
        match model.network() {
            Network::LlamaMini => text(8, 600, 3e-3),
            // GPT-2 has to learn the positions too, so it takes more steps.
            Network::Gpt2Mini => text(8, 1000, 3e-3),
            Network::Gpt2 | Network::Llama => text(4, 1000, 3e-4),
            Network::ResNet(_) | Network::DenseNet(_) | Network::InceptionV3 | Network::R3d18 | Network::Bert => {
                match data {
                    DataSpec::FashionMnist(_) => images(64, 3, 0.03),
                    DataSpec::Images(_) | DataSpec::Text(_) => images(16, 10, 0.02),
                }
            }
        }
    }

    /// Returns AdamW for transformers, and otherwise stochastic gradient descent with Nesterov's momentum.
    pub(super) fn optimizer(&self, parameters: Vec<Parameter>, lr: f64) -> Optimizer {
        if self.is_for_text {
            Optimizer::new(parameters, lr, Adam { betas: (0.9, 0.95), weight_decay: 0.1, ..Adam::w() })
        } else {
            Optimizer::new(parameters, lr, Sgd { momentum: 0.9, weight_decay: 5e-4, nesterov: true, dampening: 0.0 })
        }
    }

    /// Returns a schedule that rises for a while, then falls to almost nothing.
    pub(super) fn schedule(&self, steps: u64) -> Schedule {
        let up = if self.is_for_text { steps / 20 } else { steps / 5 };
        Schedule::Cosine { steps: steps - up, end: 0.01 }.with_warmup(up.max(1))
    }
}
