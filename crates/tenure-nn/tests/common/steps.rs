//! Training steps, as in `goldens/steps.py`.
#![allow(dead_code, reason = "each program uses some of it")]

use tenure_nn::layers::Layer;
use tenure_nn::models::Bert;
use tenure_nn::optim::{Adam, Optimizer, Sgd};
use tenure_nn::{Module, Parameter, Result};
use tenure_tensor::ops::CrossEntropy;
use tenure_tensor::{DType, Tensor};

/// A model in training, with its optimizer and loss.
pub(crate) struct Training {
    pub(crate) parameters: Vec<Parameter>,
    optimizer: Optimizer,
    pub(crate) loss: Box<LossOfBatch>,
}

type LossOfBatch = dyn Fn(&Tensor, &Tensor) -> tenure_tensor::Result<Tensor>;

/// A loss of a model, inputs and targets.
pub(crate) type Loss<M> = fn(&M, &Tensor, &Tensor) -> tenure_tensor::Result<Tensor>;

/// A function that makes an optimizer of these parameters.
pub(crate) type MakeOptimizer = fn(Vec<Parameter>) -> Optimizer;

impl Training {
    pub(crate) fn new<M: Module + 'static>(
        model: M,
        loss: Loss<M>,
        optimizer: fn(Vec<Parameter>) -> Optimizer,
    ) -> Self {
        let parameters = model.parameters();
        let optimizer = optimizer(parameters.clone());
        Self { parameters, optimizer, loss: Box::new(move |inputs, targets| loss(&model, inputs, targets)) }
    }

    /// Makes a step and returns its loss. The gradients remain until the next step.
    pub(crate) fn step(&mut self, inputs: &Tensor, targets: &Tensor) -> Result<f64> {
        self.optimizer.zero_grad();
        let loss = (self.loss)(inputs, targets)?;
        loss.backward()?;
        self.optimizer.step()?;
        Ok(loss.item_scalar()?.to_f64())
    }
}

pub(crate) fn sgd(parameters: Vec<Parameter>) -> Optimizer {
    Optimizer::new(parameters, 1e-3, Sgd { momentum: 0.9, weight_decay: 1e-4, ..Sgd::default() })
}

pub(crate) fn adamw(parameters: Vec<Parameter>) -> Optimizer {
    Optimizer::new(parameters, 3e-4, Adam::w())
}

pub(crate) fn classify<M: Layer>(model: &M, inputs: &Tensor, labels: &Tensor) -> tenure_tensor::Result<Tensor> {
    model.forward(inputs)?.cross_entropy(labels, &CrossEntropy::default())
}

pub(crate) fn classify_text(model: &Bert, inputs: &Tensor, labels: &Tensor) -> tenure_tensor::Result<Tensor> {
    let mask = Tensor::ones(inputs.sizes(), DType::I64, inputs.device())?;
    mask.narrow(1, inputs.size(1)? - 1, 1)?.fill_(0)?;
    let pooled = model.pool(&model.forward(inputs, Some(&mask))?)?;
    pooled.cross_entropy(labels, &CrossEntropy::default())
}

pub(crate) fn predict<M: Layer>(model: &M, inputs: &Tensor, targets: &Tensor) -> tenure_tensor::Result<Tensor> {
    let scores = model.forward(inputs)?.flatten(0, 1)?;
    scores.cross_entropy(&targets.flatten(0, 1)?, &CrossEntropy::default())
}
