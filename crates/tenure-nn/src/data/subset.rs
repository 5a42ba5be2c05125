//! Subsets of data sets.

use std::sync::Arc;

use super::{Dataset, Result};
use tenure_tensor::TensorError;

/// Some examples of a data set in a given order, such as a held-out set. PyTorch's `Subset`.
pub struct Subset<D> {
    dataset: Arc<D>,
    indices: Vec<usize>,
}

impl<D: Dataset> Subset<D> {
    /// Makes the subset of the examples with these numbers.
    pub fn new(dataset: Arc<D>, indices: impl IntoIterator<Item = usize>) -> Self {
        Self { dataset, indices: indices.into_iter().collect() }
    }

    /// Returns the number, in the whole data set, of the subset's example `index`.
    fn index(&self, index: usize) -> Result<usize> {
        Ok(*self.indices.get(index).ok_or(TensorError::Index {
            op: "item",
            index: index as i64,
            dim: 0,
            size: self.indices.len(),
        })?)
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn item(&self, index: usize) -> Result<D::Item> {
        self.dataset.item(self.index(index)?)
    }

    fn item_of_epoch(&self, index: usize, epoch: u64) -> Result<D::Item> {
        self.dataset.item_of_epoch(self.index(index)?, epoch)
    }
}
