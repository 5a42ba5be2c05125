//! Views that together are a whole tensor. Their gradients are joined in one step.

use super::join::{cat, stack};
use crate::autograd::{Context, attach_all};
use crate::operation::operations;
use crate::{DType, Result, Tensor, TensorError};

operations! {
    static OPERATIONS;
    Method for all {
        /// Splits a dimension into parts of `split_size_or_sections` elements; the last may be shorter.
        ///
        /// # Errors
        /// The dimension does not exist; the size is 0, unless the dimension is empty.
        split(input: Tensor, split_size_or_sections: Size, dim: Int = 0) -> Vec<Tensor>;

        /// Splits a dimension into parts of these sizes.
        ///
        /// # Errors
        /// The dimension does not exist; the sizes do not add up to its own.
        #[name(split)]
        split_sizes(input: Tensor, split_size_or_sections: Sizes, dim: Int = 0) -> Vec<Tensor>;

        /// Splits a dimension into at most `chunks` parts, of the same size except the last.
        ///
        /// # Errors
        /// The dimension does not exist; `chunks` is 0.
        chunk(input: Tensor, chunks: Size, dim: Int = 0) -> Vec<Tensor>;

        /// Returns the entry at each index of a dimension, without that dimension.
        ///
        /// # Errors
        /// The dimension does not exist.
        unbind(input: Tensor, dim: Int = 0) -> Vec<Tensor>;
    }
    Method for front_ends {
        /// Splits a dimension into `sections` parts; the first ones have an element more if its size is no multiple.
        ///
        /// # Errors
        /// The dimension does not exist; `sections` is 0.
        #[name(tensor_split)]
        split_sections(input: Tensor, sections: Size, dim: Int = 0) -> Vec<Tensor>;

        /// Splits a dimension before each of the indices, which are as those of Python's slices.
        ///
        /// # Errors
        /// The dimension does not exist.
        #[name(tensor_split)]
        split_before(input: Tensor, indices: Ints, dim: Int = 0) -> Vec<Tensor>;

        /// Splits a dimension into as many parts as an integer tensor of no dimensions says, or before each of its
        /// elements if it has one dimension.
        ///
        /// # Errors
        /// The dimension does not exist; no integers; more dimensions.
        #[name(tensor_split)]
        split_by_tensor(input: Tensor, tensor_indices_or_sections: Tensor, dim: Int = 0) -> Vec<Tensor>;
    }
}

fn split_sections(input: &Tensor, sections: usize, dim: isize) -> Result<Vec<Tensor>> {
    let length = input.sizes()[input.existing_dim("tensor_split", dim)?];
    if sections == 0 {
        return Err(TensorError::argument("tensor_split", "number of sections must be larger than 0, got 0"));
    }
    let longer = length % sections;
    let sizes: Vec<usize> = (0..sections).map(|part| length / sections + usize::from(part < longer)).collect();
    input.split_sizes(&sizes, dim)
}

fn split_before(input: &Tensor, indices: &[isize], dim: isize) -> Result<Vec<Tensor>> {
    input.existing_dim("tensor_split", dim)?;
    let starts = std::iter::once(0).chain(indices.iter().copied());
    let ends = indices.iter().copied().chain([isize::MAX]);
    starts.zip(ends).map(|(start, end)| input.slice(dim, start, end, 1)).collect()
}

fn split_by_tensor(input: &Tensor, places: &Tensor, dim: isize) -> Result<Vec<Tensor>> {
    if places.rank() > 1 || places.dtype() != DType::I64 {
        let reason = format!(
            "the sections or indices must be an int64 tensor of at most one dimension, got {} {:?}",
            places.dtype(),
            places.sizes()
        );
        return Err(TensorError::argument("tensor_split", reason));
    }
    let numbers: Vec<isize> = places.to_vec::<i64>()?.into_iter().map(|number| number as isize).collect();
    match (places.rank(), &numbers[..]) {
        (0, [sections]) => split_sections(input, usize::try_from(*sections).unwrap_or(0), dim),
        _ => split_before(input, &numbers, dim),
    }
}

fn split(input: &Tensor, size: usize, dim: isize) -> Result<Vec<Tensor>> {
    let length = input.sizes()[input.existing_dim("split", dim)?];
    if size == 0 && length > 0 {
        return Err(TensorError::argument("split", "parts of at least one element are needed, got 0"));
    }
    let parts = if length == 0 { 1 } else { length.div_ceil(size) };
    let sizes: Vec<usize> = (0..parts).map(|part| size.min(length - part * size)).collect();
    input.split_sizes(&sizes, dim)
}

fn split_sizes(input: &Tensor, sizes: &[usize], dim: isize) -> Result<Vec<Tensor>> {
    let place = input.existing_dim("split", dim)?;
    let length = input.sizes()[place];
    if sizes.iter().try_fold(0_usize, |sum, size| sum.checked_add(*size)) != Some(length) {
        let reason = format!("parts of {sizes:?} do not add up to the {length} elements of dimension {dim}");
        return Err(TensorError::shape("split", reason));
    }
    let mut start = 0;
    input.viewed_in_parts(
        "split",
        sizes
            .iter()
            .map(|size| {
                start += size;
                Ok(input.alias(input.layout().narrow(place, start - size, *size)?))
            })
            .collect::<Result<_>>()?,
        move |grads| cat(grads, dim),
    )
}

fn chunk(input: &Tensor, chunks: usize, dim: isize) -> Result<Vec<Tensor>> {
    let length = input.sizes()[input.existing_dim("chunk", dim)?];
    if chunks == 0 {
        return Err(TensorError::argument("chunk", "at least one chunk is needed, got 0"));
    }
    if length == 0 {
        return input.split_sizes(&vec![0; chunks], dim);
    }
    input.split(length.div_ceil(chunks), dim)
}

fn unbind(input: &Tensor, dim: isize) -> Result<Vec<Tensor>> {
    let place = input.existing_dim("unbind", dim)?;
    let parts = (0..input.sizes()[place])
        .map(|index| Ok(input.alias(input.layout().select(place, index)?)))
        .collect::<Result<_>>()?;
    input.viewed_in_parts("unbind", parts, move |grads| stack(grads, dim))
}

impl Tensor {
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
