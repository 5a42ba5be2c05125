//! Sorting and selection by rank.

use tenure_core::DType;

use crate::autograd::no_grad;
use crate::cpu;
use crate::cpu::sort::Order;
use crate::operation::operations;
use crate::{Kernel, Result, Tensor, TensorError, cuda};

static ORDER: Kernel<Order> = Kernel::new("sort", &[cpu::sort::ORDER[0], cpu::sort::ORDER[1], cuda::sort::ORDER]);

operations! {
    static OPERATIONS;
    methods {
        /// Sorts elements along a dimension in ascending order, or descending if `descending`, and returns them and
        /// their indices. The sort is stable. NaN counts as the largest.
        ///
        /// # Errors
        /// The dimension does not exist.
        sort(input, dim: Int = -1, descending: Bool = false) -> (Tensor, Tensor);

        /// Returns the indices that sort the elements along a dimension, as [`sort`](Self::sort) does.
        ///
        /// # Errors
        /// The dimension does not exist.
        argsort(input, dim: Int = -1, descending: Bool = false) -> Tensor;

        /// Returns the `k` largest elements along a dimension, or the smallest unless `largest`, in order, and their
        /// indices.
        ///
        /// # Errors
        /// The dimension does not exist, or has fewer elements.
        topk(input, k: Size, dim: Int = -1, largest: Bool = true) -> (Tensor, Tensor);

        /// Returns the `k`-th smallest element along a dimension, counted from 1, and its index. The dimension is left
        /// with size 1 if `keepdim`.
        ///
        /// # Errors
        /// The dimension does not exist, or has fewer elements; `k` is 0.
        kthvalue(input, k: Size, dim: Int = -1, keepdim: Bool = false) -> (Tensor, Tensor);
    }
}

fn sort(input: &Tensor, dim: isize, descending: bool) -> Result<(Tensor, Tensor)> {
    let order = input.argsort(dim, descending)?;
    Ok((input.ordered(dim, &order)?, order))
}

fn argsort(input: &Tensor, dim: isize, descending: bool) -> Result<Tensor> {
    input.order("argsort", dim, None, descending)
}

fn topk(input: &Tensor, k: usize, dim: isize, largest: bool) -> Result<(Tensor, Tensor)> {
    let order = input.order("topk", dim, Some(k), largest)?;
    Ok((input.ordered(dim, &order)?, order))
}

fn kthvalue(input: &Tensor, k: usize, dim: isize, keep: bool) -> Result<(Tensor, Tensor)> {
    if k == 0 {
        return Err(TensorError::argument("kthvalue", "k counts from 1, got 0"));
    }
    let mut place = input.order("kthvalue", dim, Some(k), false)?;
    if input.rank() > 0 {
        place = place.narrow(dim, k - 1, 1)?;
    }
    let value = input.ordered(dim, &place)?;
    if keep || input.rank() == 0 { Ok((value, place)) } else { Ok((value.squeeze(dim)?, place.squeeze(dim)?)) }
}

impl Tensor {
    /// Returns the indices of the first `count` elements in order.
    fn order(&self, op: &'static str, dim: isize, count: Option<usize>, descending: bool) -> Result<Self> {
        let along = self.dim(op, dim)?;
        let n = self.sizes().get(along).copied().unwrap_or(1);
        let count = count.unwrap_or(n);
        if count > n {
            let reason = format!("k is {count}, but dimension {dim} of sizes {:?} has {n} elements", self.sizes());
            return Err(TensorError::shape(op, reason));
        }
        no_grad(|| {
            // On the CPU, one function sorts all integers.
            let is_own = self.dtype().is_floating() || !self.device().is_cpu();
            let dtype = if is_own { self.dtype() } else { DType::I64 };
            let line = |tensor: &Self| if tensor.rank() == 0 { Ok(tensor.clone()) } else { tensor.transpose(dim, -1) };
            let input = line(&self.to_dtype(dtype)?)?.contiguous()?;
            let order = Self::empty(input.sizes(), DType::I64, self.device())?;
            ORDER.find(self.device().kind(), dtype)?(&order, &input, count, descending)?;
            let order = if count < n { order.narrow(-1, 0, count)? } else { order };
            line(&order)?.contiguous()
        })
    }

    fn ordered(&self, dim: isize, order: &Self) -> Result<Self> {
        if self.rank() == 0 { Ok(self.clone()) } else { self.gather(dim, order) }
    }
}
