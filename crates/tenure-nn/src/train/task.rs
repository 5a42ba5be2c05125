//! Training tasks: a model with its loss and its score.

use std::ops::Add;

use tenure_tensor::Tensor;
use tenure_tensor::ops::CrossEntropy;

use crate::data::Tensors;
use crate::layers::Layer;
use crate::{Module, Result};

/// A model with its loss on a batch.
pub trait Task {
    /// A batch of examples.
    type Batch: Tensors;

    /// Returns the number of examples in a batch.
    fn examples(&self, batch: &Self::Batch) -> usize;

    /// Returns the model that is trained.
    fn model(&self) -> &dyn Module;

    /// Returns the model, so that the trainer can set its training or evaluation mode.
    fn model_mut(&mut self) -> &mut dyn Module;

    /// Computes the loss to be minimised: a tensor of one element, from which backward can run.
    ///
    /// # Errors
    /// The sizes do not fit together; no memory.
    fn loss(&self, batch: &Self::Batch) -> Result<Tensor>;

    /// Counts the correct predictions for a batch.
    ///
    /// # Errors
    /// The errors of [`loss`](Self::loss).
    fn score(&self, batch: &Self::Batch) -> Result<Score>;
}

/// The number of correct predictions, and the number of all predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// The number of correct predictions.
    pub right: u64,
    /// The number of all predictions.
    pub all: u64,
}

impl Score {
    /// Returns the fraction of correct predictions, from 0 to 1; `None` if there are no predictions.
    pub fn accuracy(self) -> Option<f64> {
        (self.all > 0).then(|| self.right as f64 / self.all as f64)
    }

    /// Compares the classes of the highest scores `[..., classes]` with the target classes `[...]`.
    ///
    /// # Errors
    /// The sizes do not fit together.
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

/// Classification with the cross-entropy loss: of each input, such as an image, or of each position in it, such as the
/// next token in a text.
///
/// A batch has inputs, and target classes of sizes `[batch, ...]`. The model computes scores `[batch, ..., classes]`.
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
