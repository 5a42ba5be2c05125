//! Sorting and selection by rank.

use tenure_core::DType;

use super::pointwise::check_devices;
use super::reduce::floating;
use crate::autograd::{Context, attach, no_grad};
use crate::cpu;
use crate::cpu::sort::Order;
use crate::element::computed;
use crate::operation::operations;
use crate::order::sort_keys;
use crate::{Kernel, Result, Tensor, TensorError, Value, cuda};

static ORDER: Kernel<Order> = Kernel::new("sort", &[cpu::sort::ORDER[0], cpu::sort::ORDER[1], cuda::sort::ORDER]);

operations! {
    static OPERATIONS;
    Method for all {
        /// Sorts elements along a dimension in ascending order, or descending if `descending`, and returns them and
        /// their indices. The sort is always stable, whether or not `stable` asks for it. NaN counts as the largest.
        ///
        /// # Errors
        /// The dimension does not exist.
        sort(input: Tensor, dim: Int = -1, descending: Bool = false, stable: Bool = false) -> (Tensor, Tensor);

        /// Returns the indices that sort the elements along a dimension, as [`sort`](Self::sort) does.
        ///
        /// # Errors
        /// The dimension does not exist.
        argsort(input: Tensor, dim: Int = -1, descending: Bool = false, stable: Bool = false) -> Tensor;

        /// Returns the `k` largest elements along a dimension, or the smallest unless `largest`, in order, and their
        /// indices.
        ///
        /// # Errors
        /// The dimension does not exist, or has fewer elements.
        topk(input: Tensor, k: Size, dim: Int = -1, largest: Bool = true) -> (Tensor, Tensor);

        /// Returns the `k`-th smallest element along a dimension, counted from 1, and its index. The dimension is left
        /// with size 1 if `keepdim`.
        ///
        /// # Errors
        /// The dimension does not exist, or has fewer elements; `k` is 0.
        kthvalue(input: Tensor, k: Size, dim: Int = -1, keepdim: Bool = false) -> (Tensor, Tensor);

        /// Computes the median of all elements: the lower one of an even number. It is NaN if an element is, or if
        /// there are none. Equal elements share the gradient.
        ///
        /// # Errors
        /// There are no elements, and the dtype is not floating.
        #[name(median)]
        median_all(input: Tensor) -> Tensor;

        /// Computes medians along a dimension, the lower one of an even number, and the index of each, which gets the
        /// gradient. The dimension is left with size 1 if `keepdim`. The median of elements of which one is NaN is the
        /// first NaN.
        ///
        /// # Errors
        /// The dimension does not exist, or has no elements.
        median(input: Tensor, dim: Int, keepdim: Bool = false) -> (Tensor, Tensor);

        /// Computes the median of all elements that are not NaN, as [`median_all`](Self::median_all) does.
        ///
        /// # Errors
        /// The errors of [`median_all`](Self::median_all).
        #[name(nanmedian)]
        nanmedian_all(input: Tensor) -> Tensor;

        /// Computes medians along a dimension of the elements that are not NaN, and their indices, as
        /// [`median`](Self::median) does.
        ///
        /// # Errors
        /// The errors of [`median`](Self::median).
        nanmedian(input: Tensor, dim: Int, keepdim: Bool = false) -> (Tensor, Tensor);

        /// Computes the `q`-th quantiles, `q` from 0 to 1, along a dimension, or of all elements. It is NaN if an
        /// element is. A quantile between two elements is by `interpolation` "linear", "lower", "higher", "midpoint" or
        /// "nearest". For a vector `q`, the quantiles for each of its elements are along a new first dimension. The
        /// reduced dimension is left with size 1 if `keepdim`. 16-bit floats are computed in `float32`.
        ///
        /// # Errors
        /// The dtype is not floating; the dimension does not exist, or has no elements; `q` has several dimensions or
        /// is out of range (a `q` on a CUDA device is not checked); another interpolation.
        quantile(
            input: Tensor, q: Value, dim: Option<Int> = None, keepdim: Bool = false, interpolation: Text = "linear"
        ) -> Tensor;
    }
}

fn sort(input: &Tensor, dim: isize, descending: bool, _stable: bool) -> Result<(Tensor, Tensor)> {
    let order = input.order("sort", dim, None, descending)?;
    Ok((input.ordered(dim, &order)?, order))
}

fn argsort(input: &Tensor, dim: isize, descending: bool, _stable: bool) -> Result<Tensor> {
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

fn median_all(input: &Tensor) -> Result<Tensor> {
    input.middle_of_all("median", false)
}

fn median(input: &Tensor, dim: isize, keep: bool) -> Result<(Tensor, Tensor)> {
    input.middle_along("median", dim, keep, false)
}

fn nanmedian_all(input: &Tensor) -> Result<Tensor> {
    input.middle_of_all("nanmedian", true)
}

fn nanmedian(input: &Tensor, dim: isize, keep: bool) -> Result<(Tensor, Tensor)> {
    input.middle_along("nanmedian", dim, keep, true)
}

fn quantile(input: &Tensor, q: Value<'_>, dim: Option<isize>, keep: bool, interpolation: &str) -> Result<Tensor> {
    floating("quantile", input)?;
    if !["linear", "lower", "higher", "midpoint", "nearest"].contains(&interpolation) {
        let reason = format!(
            "interpolation must be \"linear\", \"lower\", \"higher\", \"midpoint\" or \"nearest\", got {interpolation:?}"
        );
        return Err(TensorError::argument("quantile", reason));
    }
    let dtype = computed(input.dtype());
    let q = fractions(input, q)?;
    let (x, along) = match dim {
        Some(dim) if input.rank() > 0 => (input.clone(), input.dim("quantile", dim)?),
        _ => (input.reshape(&[-1])?, input.dim("quantile", dim.unwrap_or(0)).map(|_| 0)?),
    };
    let n = x.sizes()[along];
    let Some(last) = n.checked_sub(1) else { return Err(no_elements("quantile", input, dim)) };
    let (sorted, _) = x.to_dtype(dtype)?.movedim(&[along as isize], &[-1])?.sort(-1, false, true)?;
    // NaN is sorted last.
    let has_nan = sorted.detach().narrow(-1, last, 1)?.isnan()?;
    let ranks = has_nan.where_(last as f64, &q.reshape(&[-1])?.mul(last as f64)?)?;
    let ranks = match interpolation {
        "lower" => ranks.floor()?,
        "higher" => ranks.ceil()?,
        "nearest" => ranks.round()?,
        _ => ranks,
    };
    let below = ranks.detach().floor()?;
    let mut quantiles = sorted.gather(-1, &below.to_dtype(DType::I64)?)?;
    if ["linear", "midpoint"].contains(&interpolation) {
        let above = sorted.gather(-1, &ranks.detach().ceil()?.to_dtype(DType::I64)?)?;
        quantiles = match interpolation {
            "midpoint" => quantiles.lerp(&above, 0.5)?,
            _ => quantiles.lerp(&above, &ranks.sub(&below)?)?,
        };
    }
    let is_vector = q.rank() > 0;
    quantiles = if is_vector { quantiles.movedim(&[-1], &[0])? } else { quantiles.squeeze(-1)? };
    if keep && input.rank() > 0 {
        let place = along as isize + isize::from(is_vector);
        let added = if dim.is_some() { 1 } else { input.rank() };
        for _ in 0..added {
            quantiles = quantiles.unsqueeze(place)?;
        }
    }
    quantiles.to_dtype(input.dtype())
}

/// Returns the fractions of a quantile as a tensor like the input, after checking them.
fn fractions(input: &Tensor, q: Value<'_>) -> Result<Tensor> {
    let dtype = computed(input.dtype());
    let q = match q {
        Value::Number(q) => {
            check_fractions(&[q.to_f64()])?;
            return Tensor::full(&[], q.to_f64(), dtype, input.device());
        }
        Value::Tensor(q) => q,
    };
    check_devices("quantile", &[input, q])?;
    if q.rank() > 1 {
        let reason = format!("q must be a number or a tensor of one dimension, got sizes {:?}", q.sizes());
        return Err(TensorError::shape("quantile", reason));
    }
    if q.device().is_cpu() {
        check_fractions(&q.detach().to_dtype(DType::F64)?.contiguous()?.to_vec::<f64>()?)?;
    }
    q.to_dtype(dtype)?.to_device(input.device())
}

fn no_elements(op: &'static str, input: &Tensor, dim: Option<isize>) -> TensorError {
    let along = dim.map_or_else(String::new, |dim| format!(" along dimension {dim}"));
    TensorError::shape(op, format!("sizes {:?} have no elements{along}", input.sizes()))
}

fn check_fractions(fractions: &[f64]) -> Result<()> {
    match fractions.iter().find(|q| !(0.0..=1.0).contains(*q)) {
        Some(q) => Err(TensorError::argument("quantile", format!("q must be from 0 to 1, got {q}"))),
        None => Ok(()),
    }
}

impl Tensor {
    fn middle_of_all(&self, op: &'static str, skips_nan: bool) -> Result<Self> {
        if self.numel() == 0 && self.dtype().is_floating() {
            return self.sum_all()?.add(f64::NAN);
        }
        let flat = self.detach().reshape(&[-1])?;
        let out = flat.gather(0, &flat.middle(op, 0, skips_nan)?)?.view(&[])?;
        attach(out.clone(), op, &[self], |saver| {
            let saved = saver.save(self)?;
            let output = saver.save_output(&out, 0)?;
            Ok(move |context: &Context<'_>| {
                let x = context.unpack(saved)?;
                let output = context.unpack(output)?;
                let is_it = x.eq(&output)?.logical_or(&x.isnan()?.logical_and(&output.isnan()?)?)?;
                let share = context.grad(0)?.div(&is_it.sum_all()?)?;
                Ok([Some(is_it.where_(&share, 0.0)?)].into_iter().collect())
            })
        })
    }

    fn middle_along(&self, op: &'static str, dim: isize, keep: bool, skips_nan: bool) -> Result<(Self, Self)> {
        self.dim(op, dim)?;
        if self.rank() == 0 {
            return Ok((self.clone(), Self::zeros(&[], DType::I64, self.device())?));
        }
        let place = self.middle(op, dim, skips_nan)?;
        let value = self.gather(dim, &place)?;
        if keep { Ok((value, place)) } else { Ok((value.squeeze(dim)?, place.squeeze(dim)?)) }
    }

    /// Returns the index of the median along a dimension, which is kept.
    fn middle(&self, op: &'static str, dim: isize, skips_nan: bool) -> Result<Self> {
        let x = self.detach();
        let Some(last) = x.size(dim)?.checked_sub(1) else { return Err(no_elements(op, self, Some(dim))) };
        if skips_nan {
            let count = x.isnan()?.logical_not()?.sum(&[dim], true)?;
            let rank = count.sub(1)?.clamp_min(0)?.div_floor(2)?;
            return x.order(op, dim, None, false)?.gather(dim, &rank);
        }
        let place = x.order(op, dim, Some(last / 2 + 1), false)?.narrow(dim, last / 2, 1)?;
        if !x.dtype().is_floating() {
            return place.contiguous();
        }
        let (largest, first) = x.max(dim, true)?;
        largest.isnan()?.where_(&first, &place)
    }

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
            let keys = if is_own { self.clone() } else { sort_keys(self)? };
            let dtype = keys.dtype();
            let line = |tensor: &Self| if tensor.rank() == 0 { Ok(tensor.clone()) } else { tensor.transpose(dim, -1) };
            let input = line(&keys)?.contiguous()?;
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
