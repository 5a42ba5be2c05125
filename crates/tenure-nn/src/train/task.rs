//! What is learned.

use std::ops::Add;

use tenure_tensor::Tensor;
use tenure_tensor::ops::CrossEntropy;

use crate::data::Tensors;
use crate::layers::Layer;
use crate::{Module, Result};

/// A model, and how wrong it is about a batch.
pub trait Task {
    /// Several examples.
    type Batch: Tensors;

    /// How many.
    fn examples(&self, batch: &Self::Batch) -> usize;

    /// What is trained.
    fn model(&self) -> &dyn Module;

    /// The same, to change its mode.
    fn model_mut(&mut self) -> &mut dyn Module;

    /// What is to become small: one number, with its graph.
    ///
    /// # Errors
    /// Sizes that do not go together; no memory.
    fn loss(&self, batch: &Self::Batch) -> Result<Tensor>;

    /// How many predictions are right.
    ///
    /// # Errors
    /// As for the loss.
    fn score(&self, batch: &Self::Batch) -> Result<Score>;
}

/// Predictions that were looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// That were right.
    pub right: u64,
    /// All.
    pub all: u64,
}

impl Score {
    /// The share that was right; `None` if there were none.
    pub fn accuracy(self) -> Option<f64> {
        (self.all > 0).then(|| self.right as f64 / self.all as f64)
    }

    /// Of scores `[..., classes]` and the classes `[...]` that are right.
    ///
    /// # Errors
    /// Other sizes.
    pub fn new(scores: &Tensor, target: &Tensor) -> Result<Self> {
        let right = scores.argmax(Some(-1), false)?.eq(target)?.sum_all()?;
        Ok(Self { right: right.item_scalar()?.to_i64() as u64, all: target.numel() as u64 })
    }
}

impl Add for Score {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { right: self.right + other.right, all: self.all + other.all }
    }
}

/// The class of each input, or of each place in it, by cross entropy: of images, or the next token of each.
///
/// A batch is inputs, and classes of sizes `[batch, ...]`; the model makes scores `[batch, ..., classes]`.
pub struct Classification<M>(pub M);

impl<M: Layer> Task for Classification<M> {
    type Batch = (Tensor, Tensor);

    fn examples(&self, (_, target): &Self::Batch) -> usize {
        target.sizes().first().copied().unwrap_or(1)
    }

    fn model(&self) -> &dyn Module {
        &self.0
    }

    fn model_mut(&mut self) -> &mut dyn Module {
        &mut self.0
    }

    fn loss(&self, (input, target): &Self::Batch) -> Result<Tensor> {
        let scores = self.0.forward(input)?.flatten(0, -2)?;
        Ok(scores.cross_entropy(&target.flatten(0, -1)?, &CrossEntropy::default())?)
    }

    fn score(&self, (input, target): &Self::Batch) -> Result<Score> {
        Score::new(&self.0.forward(input)?, target)
    }
}

impl<T: Task + ?Sized> Task for Box<T> {
    type Batch = T::Batch;

    fn examples(&self, batch: &T::Batch) -> usize {
        (**self).examples(batch)
    }

    fn model(&self) -> &dyn Module {
        (**self).model()
    }

    fn model_mut(&mut self) -> &mut dyn Module {
        (**self).model_mut()
    }

    fn loss(&self, batch: &T::Batch) -> Result<Tensor> {
        (**self).loss(batch)
    }

    fn score(&self, batch: &T::Batch) -> Result<Score> {
        (**self).score(batch)
    }
}
