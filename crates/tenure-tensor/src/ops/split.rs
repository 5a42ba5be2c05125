//! Views that together are a whole tensor. Their gradients are joined in one step.

use super::join::{cat, stack};
use crate::autograd::{Context, attach_all};
use crate::{Result, Tensor, TensorError};

impl Tensor {
    /// Splits a dimension into parts of `size` elements; the last may be shorter.
    ///
    /// # Errors
    /// The dimension does not exist; `size` is 0, unless the dimension is empty.
    pub fn split(&self, size: usize, dim: isize) -> Result<Vec<Self>> {
        let length = self.sizes()[self.existing_dim("split", dim)?];
        if size == 0 && length > 0 {
            return Err(TensorError::argument("split", "parts of at least one element are needed, got 0"));
        }
        let parts = if length == 0 { 1 } else { length.div_ceil(size) };
        let sizes: Vec<usize> = (0..parts).map(|part| size.min(length - part * size)).collect();
        self.split_sizes(&sizes, dim)
    }

    /// Splits a dimension into parts of these sizes.
    ///
    /// # Errors
    /// The dimension does not exist; the sizes do not add up to its own.
    pub fn split_sizes(&self, sizes: &[usize], dim: isize) -> Result<Vec<Self>> {
        let place = self.existing_dim("split", dim)?;
        let length = self.sizes()[place];
        if sizes.iter().try_fold(0_usize, |sum, size| sum.checked_add(*size)) != Some(length) {
            let reason = format!("parts of {sizes:?} do not add up to the {length} elements of dimension {dim}");
            return Err(TensorError::shape("split", reason));
        }
        let mut start = 0;
        self.viewed_in_parts(
            "split",
            sizes
                .iter()
                .map(|size| {
                    start += size;
                    Ok(self.alias(self.layout().narrow(place, start - size, *size)?))
                })
                .collect::<Result<_>>()?,
            move |grads| cat(grads, dim),
        )
    }

    /// Splits a dimension into at most `chunks` parts, of the same size except the last.
    ///
    /// # Errors
    /// The dimension does not exist; `chunks` is 0.
    pub fn chunk(&self, chunks: usize, dim: isize) -> Result<Vec<Self>> {
        let length = self.sizes()[self.existing_dim("chunk", dim)?];
        if chunks == 0 {
            return Err(TensorError::argument("chunk", "at least one chunk is needed, got 0"));
        }
        if length == 0 {
            return self.split_sizes(&vec![0; chunks], dim);
        }
        self.split(length.div_ceil(chunks), dim)
    }

    /// Returns the entry at each index of a dimension, without that dimension.
    ///
    /// # Errors
    /// The dimension does not exist.
    pub fn unbind(&self, dim: isize) -> Result<Vec<Self>> {
        let place = self.existing_dim("unbind", dim)?;
        let parts = (0..self.sizes()[place])
            .map(|index| Ok(self.alias(self.layout().select(place, index)?)))
            .collect::<Result<_>>()?;
        self.viewed_in_parts("unbind", parts, move |grads| stack(grads, dim))
    }

    /// Returns views that together are the whole tensor; `back` joins their gradients.
    fn viewed_in_parts(
        &self,
        op: &'static str,
        parts: Vec<Self>,
        back: impl Fn(&[&Self]) -> Result<Self> + Send + Sync + 'static,
    ) -> Result<Vec<Self>> {
        let count = parts.len();
        attach_all(&parts.iter().collect::<Vec<_>>(), op, &[self], |_| {
            Ok(move |context: &Context<'_>| {
                let grads = (0..count).map(|part| context.grad(part)).collect::<Result<Vec<Self>>>()?;
                Ok([Some(back(&grads.iter().collect::<Vec<_>>())?)].into_iter().collect())
            })
        })?;
        parts.iter().for_each(|part| part.set_view_of(self));
        Ok(parts)
    }
}
