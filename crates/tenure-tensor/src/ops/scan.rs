//! Cumulative sums, products, maxima and minima.

use tenure_core::DType;

use super::entered;
use super::join::cat;
use super::view::signed;
use crate::autocast::{raise, raises};
use crate::autograd::{Context, attach, no_grad};
use crate::cpu;
use crate::cpu::scan::Scan;
use crate::operation::operations;
use crate::{Kernel, Result, Tensor, cuda};

static CUMSUM: Kernel<Scan> =
    Kernel::new("cumsum", &[cpu::scan::CUMSUM[0], cpu::scan::CUMSUM[1], cuda::scan::CUMSUM[0], cuda::scan::CUMSUM[1]]);
static CUMPROD: Kernel<Scan> = Kernel::new(
    "cumprod",
    &[cpu::scan::CUMPROD[0], cpu::scan::CUMPROD[1], cuda::scan::CUMPROD[0], cuda::scan::CUMPROD[1]],
);

operations! {
    static OPERATIONS;
    Method for all {
        /// Computes the cumulative sum along a dimension. Integers and `bool` are summed as `int64`.
        ///
        /// # Errors
        /// The dimension does not exist.
        cumsum(input: Tensor, dim: Int) -> Tensor;

        /// Computes the cumulative product along a dimension. Integers and `bool` are multiplied as `int64`.
        ///
        /// # Errors
        /// The dimension does not exist.
        cumprod(input: Tensor, dim: Int) -> Tensor;

        /// Computes the largest element up to each element along a dimension, and the index of its last occurrence,
        /// which gets the gradient. NaN counts as the largest.
        ///
        /// # Errors
        /// The dimension does not exist.
        cummax(input: Tensor, dim: Int) -> (Tensor, Tensor);

        /// Computes the smallest element up to each element along a dimension, and the index of its last occurrence,
        /// which gets the gradient. NaN counts as the smallest.
        ///
        /// # Errors
        /// The dimension does not exist.
        cummin(input: Tensor, dim: Int) -> (Tensor, Tensor);
    }
    Function for front_ends {
        /// Computes [`cumsum`](crate::Tensor::cumsum) of the elements in another dtype.
        ///
        /// # Errors
        /// The errors of the operation, in that dtype.
        #[name(cumsum)]
        cumsum_as(input: Tensor, dim: Int, dtype: DType) -> Tensor = |input: &Tensor, dim, dtype| {
            input.to_dtype(dtype)?.cumsum(dim)?.to_dtype(dtype)
        };

        /// Computes [`cumprod`](crate::Tensor::cumprod) of the elements in another dtype.
        ///
        /// # Errors
        /// The errors of the operation, in that dtype.
        #[name(cumprod)]
        cumprod_as(input: Tensor, dim: Int, dtype: DType) -> Tensor = |input: &Tensor, dim, dtype| {
            input.to_dtype(dtype)?.cumprod(dim)?.to_dtype(dtype)
        };
    }
}

fn cumsum(input: &Tensor, dim: isize) -> Result<Tensor> {
    if raises(&[input]) {
        return raise(input)?.cumsum(dim);
    }
    let out = input.scanned(&CUMSUM, dim)?;
    attach(out, "cumsum", &[input], |_| {
        Ok(move |context: &Context<'_>| Ok([Some(context.grad(0)?.cumsum_backwards(dim)?)].into_iter().collect()))
    })
}

fn cumprod(input: &Tensor, dim: isize) -> Result<Tensor> {
    if raises(&[input]) {
        return raise(input)?.cumprod(dim);
    }
    let out = input.scanned(&CUMPROD, dim)?;
    attach(out.clone(), "cumprod", &[input], |saver| {
        let saved = saver.save(input)?;
        let output = saver.save_output(&out, 0)?;
        Ok(move |context: &Context<'_>| {
            let grad = context.grad(0)?;
            let x = context.unpack(saved)?;
            let output = context.unpack(output)?;
            let is_zero = x.eq(0.0)?;
            // Elements after the first zero have no effect on outputs, which are zero from there on. The first
            // zero's slope is the product without it.
            let is_first = is_zero.logical_and(&is_zero.cumsum(dim)?.eq(1)?)?;
            let to_first = grad.mul(&x.masked_fill(&is_first, 1.0)?.cumprod(dim)?)?.cumsum_backwards(dim)?;
            let to_others = grad.mul(&output)?.cumsum_backwards(dim)?.div(&x.masked_fill(&is_zero, 1.0)?)?;
            let to_others = to_others.masked_fill(&is_zero, 0.0)?;
            Ok([Some(is_first.where_(&to_first, &to_others)?)].into_iter().collect())
        })
    })
}

fn cummax(input: &Tensor, dim: isize) -> Result<(Tensor, Tensor)> {
    input.extremes_so_far("cummax", dim, |later, earlier| later.ge(earlier))
}

fn cummin(input: &Tensor, dim: isize) -> Result<(Tensor, Tensor)> {
    input.extremes_so_far("cummin", dim, |later, earlier| later.le(earlier))
}

impl Tensor {
    /// Returns the extreme of the elements up to each element, and its place. `wins` compares a later element with an
    /// earlier one.
    fn extremes_so_far(
        &self,
        op: &'static str,
        dim: isize,
        wins: fn(&Self, &Self) -> Result<Self>,
    ) -> Result<(Self, Self)> {
        let _op = entered(op);
        let along = self.dim(op, dim)?;
        let Some(n) = self.sizes().get(along).copied() else {
            let (values, places) = self.view(&[1])?.extremes_so_far(op, 0, wins)?;
            return Ok((values.view(&[])?, places.view(&[])?));
        };
        let dim = along as isize;
        let places = no_grad(|| -> Result<Self> {
            let x = self.detach();
            let mut sizes = vec![1; self.rank()];
            sizes[along] = n as isize;
            let numbers = Self::arange(0, n as i64, 1, DType::I64, self.device())?;
            let mut places = numbers.view(&sizes)?.expand(&signed(self.sizes()))?.contiguous()?;
            // After each step, a place is that of the extreme of twice as many elements.
            let mut step = 1;
            while step < n {
                let earlier = places.narrow(dim, 0, n - step)?;
                let later = places.narrow(dim, step, n - step)?;
                let newer = x.gather(dim, &later)?;
                let is_later = wins(&newer, &x.gather(dim, &earlier)?)?.logical_or(&newer.isnan()?)?;
                places = cat(&[&places.narrow(dim, 0, step)?, &is_later.where_(&later, &earlier)?], dim)?;
                step *= 2;
            }
            Ok(places)
        })?;
        Ok((self.gather(dim, &places)?, places))
    }

    fn cumsum_backwards(&self, dim: isize) -> Result<Self> {
        if self.rank() == 0 {
            return Ok(self.clone());
        }
        self.flip(&[dim])?.cumsum(dim)?.flip(&[dim])
    }

    fn scanned(&self, kernel: &'static Kernel<Scan>, dim: isize) -> Result<Self> {
        let _op = entered(kernel.name());
        let along = self.dim(kernel.name(), dim)?;
        let dtype = if self.dtype().is_floating() { self.dtype() } else { DType::I64 };
        let input = no_grad(|| self.to_dtype(dtype)?.contiguous())?;
        let out = Self::empty(self.sizes(), dtype, self.device())?;
        kernel.find(self.device().kind(), dtype)?(&out, &input, along)?;
        Ok(out)
    }
}
