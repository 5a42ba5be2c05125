//! Distinct elements and distinct slices.

use super::entered;
use super::join::cat;
use crate::autograd::no_grad;
use crate::operation::operations;
use crate::{DType, Result, Tensor, TensorError};

operations! {
    static OPERATIONS;
    Method for all {
        /// Returns the distinct elements, sorted, the index among them of each input element, and the number of times
        /// that each occurs. With `dim`, the distinct slices of this dimension, in lexicographic order. The indices and
        /// the counts are empty unless `return_inverse` and `return_counts`. The order is the same with and without
        /// `sorted`. Each NaN is distinct. The results have no gradient. PyTorch's `_unique2` and `unique_dim`.
        ///
        /// # Errors
        /// The dimension does not exist, or its slices have no elements.
        unique(
            input: Tensor,
            sorted: Bool = true,
            return_inverse: Bool = false,
            return_counts: Bool = false,
            dim: Option<Int> = None
        ) -> (Tensor, Tensor, Tensor);
    }
}

fn unique(
    input: &Tensor,
    _sorted: bool,
    return_inverse: bool,
    return_counts: bool,
    dim: Option<isize>,
) -> Result<(Tensor, Tensor, Tensor)> {
    let _op = entered("unique");
    no_grad(|| {
        let (from, along, keys) = match dim {
            None => {
                let flat = input.reshape(&[-1])?;
                (flat.clone(), 0, flat)
            }
            Some(dim) => {
                let along = input.existing_dim("unique", dim)?;
                (input.clone(), along as isize, input.slice_ranks(along)?)
            }
        };
        let Ranked { order, is_first, ranks } = Ranked::new(&keys)?;
        let starts = is_first.nonzero()?.reshape(&[-1])?;
        let values = from.index_select(along, &order.index_select(0, &starts)?)?;
        let none = || Tensor::empty(&[0], DType::I64, input.device());
        let inverse = match (return_inverse, dim) {
            (false, _) => none()?,
            (true, None) => ranks.view_as(input)?,
            (true, Some(_)) => ranks,
        };
        let counts = match (return_counts, starts.numel()) {
            (true, distinct @ 1..) => {
                let end = Tensor::full(&[1], keys.numel() as i64, DType::I64, input.device())?;
                cat(&[&starts.narrow(0, 1, distinct - 1)?, &end], 0)?.sub(&starts)?
            }
            _ => none()?,
        };
        Ok((values, inverse, counts))
    })
}

/// Rows of keys in order.
struct Ranked {
    /// The indices that sort a row.
    order: Tensor,
    /// Whether a key of the sorted row differs from the one before.
    is_first: Tensor,
    /// The number of distinct keys of the row that are smaller than the key.
    ranks: Tensor,
}

impl Ranked {
    /// Sorts along the last dimension.
    fn new(keys: &Tensor) -> Result<Self> {
        let (sorted, order) = keys.sort(-1, false, true)?;
        let n = sorted.size(-1)?;
        let first = Tensor::ones(sorted.narrow(-1, 0, n.min(1))?.sizes(), DType::Bool, keys.device())?;
        let rest = n.saturating_sub(1);
        let others = sorted.narrow(-1, n - rest, rest)?.ne(&sorted.narrow(-1, 0, rest)?)?;
        let is_first = cat(&[&first, &others], -1)?;
        let zeros = Tensor::zeros(keys.sizes(), DType::I64, keys.device())?;
        let ranks = zeros.scatter(-1, &order, &is_first.cumsum(-1)?.sub(1)?)?;
        Ok(Self { order, is_first, ranks })
    }
}

impl Tensor {
    /// Numbers the slices of a dimension in lexicographic order; equal slices have equal numbers.
    ///
    /// It numbers the elements at each place of the slices, then pairs of places, pairs of pairs, and so on, so that it
    /// sorts all places together and not one after the other.
    fn slice_ranks(&self, along: usize) -> Result<Self> {
        let n = self.sizes()[along];
        let others = self.sizes().iter().enumerate().filter(|(dim, _)| *dim != along);
        let mut places: usize = others.map(|(_, size)| *size).product();
        if places == 0 {
            let reason = format!("the slices along dimension {along} of sizes {:?} have no elements", self.sizes());
            return Err(TensorError::shape("unique", reason));
        }
        let rows = self.movedim(&[along as isize], &[0])?.reshape(&[n as isize, places as isize])?;
        let mut ranks = Ranked::new(&rows.transpose(0, 1)?.contiguous()?)?.ranks;
        while places > 1 {
            let (pairs, end) = (places / 2 * 2, places as isize);
            let pairs = ranks.narrow(0, 0, pairs)?.unflatten(0, &[-1, 2])?;
            let keys = pairs.select(1, 0)?.mul(n as i64)?.add(&pairs.select(1, 1)?)?;
            let keys = match places % 2 {
                0 => keys,
                _ => cat(&[&keys, &ranks.select(0, end - 1)?.unsqueeze(0)?], 0)?,
            };
            ranks = Ranked::new(&keys)?.ranks;
            places = places.div_ceil(2);
        }
        ranks.select(0, 0)
    }
}
