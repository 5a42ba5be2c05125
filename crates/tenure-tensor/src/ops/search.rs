//! Searches: places in sorted sequences, and membership.

use super::entered;
use super::pointwise::{self, check_devices};
use crate::autograd::no_grad;
use crate::operation::operations;
use crate::{DType, Result, Tensor, TensorError, Value};

operations! {
    static OPERATIONS;
    Method for all {
        /// Finds for each value its place in a sequence that is sorted in ascending order along the last dimension, as
        /// `int64`: the number of elements that are smaller, or with `right` (or `side` "right"), not larger. A
        /// sequence of one dimension is searched for values of any sizes; otherwise each row of values is searched for
        /// in its own row of the sequence.
        ///
        /// # Errors
        /// The sequence has no dimension; sizes other than the last differ; different devices; `side` is neither "left"
        /// nor "right", or contradicts `right`.
        searchsorted(
            sorted_sequence: Tensor, values: Value, right: Bool = false, side: Option<Text> = None
        ) -> Tensor;

        /// Finds for each element the number of its bucket, as `int64`: the number of `boundaries`, which are sorted in
        /// ascending order, that are smaller, or with `right`, not larger.
        ///
        /// # Errors
        /// Boundaries of several dimensions or none; different devices.
        bucketize(input: Tensor, boundaries: Tensor, right: Bool = false) -> Tensor;

        /// Tells for each element whether it is among `test_elements`, or with `invert`, whether it is not. NaN is
        /// among no elements. `assume_unique` has no effect: the search takes the same time.
        ///
        /// # Errors
        /// Different devices.
        isin(elements: Tensor, test_elements: Value, assume_unique: Bool = false, invert: Bool = false) -> Tensor;
    }
}

fn searchsorted(sequence: &Tensor, values: Value<'_>, right: bool, side: Option<&str>) -> Result<Tensor> {
    let op = "searchsorted";
    let right = match side {
        None => right,
        Some("right") => true,
        Some("left") if !right => false,
        Some(side) => {
            let reason = format!("side must be \"left\", or \"right\", and not contradict right={right}, got {side:?}");
            return Err(TensorError::argument(op, reason));
        }
    };
    let values = pointwise::tensor(op, values, pointwise::promoted(&[sequence.into(), values])?)?;
    let is_row_of_each = sequence.rank() == values.rank() && {
        let last = values.rank().saturating_sub(1);
        values.sizes()[..last] == sequence.sizes()[..last]
    };
    if sequence.rank() == 0 || !(sequence.rank() == 1 || is_row_of_each) {
        let reason = format!(
            "values of sizes {:?} cannot be searched for in a sequence of sizes {:?}: it needs one dimension, or the \
             same sizes but for the last",
            values.sizes(),
            sequence.sizes()
        );
        return Err(TensorError::shape(op, reason));
    }
    sequence.place_of(op, &values, right)
}

fn bucketize(input: &Tensor, boundaries: &Tensor, right: bool) -> Result<Tensor> {
    if boundaries.rank() != 1 {
        let reason = format!("boundaries of one dimension are needed, got sizes {:?}", boundaries.sizes());
        return Err(TensorError::shape("bucketize", reason));
    }
    boundaries.place_of("bucketize", input, right)
}

fn isin(elements: &Tensor, tests: Value<'_>, _assume_unique: bool, invert: bool) -> Result<Tensor> {
    let _op = entered("isin");
    let dtype = pointwise::promoted(&[elements.into(), tests])?;
    let tests = match tests {
        Value::Number(test) => Tensor::full(&[1], test, dtype, elements.device())?,
        Value::Tensor(tests) => {
            check_devices("isin", &[elements, tests])?;
            tests.to_dtype(dtype)?.to_device(elements.device())?.reshape(&[-1])?
        }
    };
    no_grad(|| {
        let elements = elements.to_dtype(dtype)?;
        let (sorted, _) = tests.sort(0, false, true)?;
        let Some(last) = sorted.numel().checked_sub(1) else {
            return Tensor::full(elements.sizes(), invert, DType::Bool, elements.device());
        };
        let places = sorted.count_before("isin", elements.sizes(), |probe| probe.lt(&elements))?;
        let nearest = sorted.at_places("isin", &places.clamp_max(last as i64)?)?;
        if invert { nearest.ne(&elements) } else { nearest.eq(&elements) }
    })
}

impl Tensor {
    fn place_of(&self, op: &'static str, values: &Self, right: bool) -> Result<Self> {
        let _op = entered(op);
        check_devices(op, &[self, values])?;
        let dtype = pointwise::promoted(&[self.into(), values.into()])?;
        // PyTorch's comparisons: a value of NaN comes after all elements.
        no_grad(|| {
            let values = values.to_dtype(dtype)?;
            self.to_dtype(dtype)?.count_before(op, values.sizes(), |probe| {
                if right { probe.gt(&values) } else { probe.ge(&values) }?.logical_not()
            })
        })
    }

    /// Counts, for each of some values of the sizes `sizes`, the elements along the last dimension for which `before`
    /// is true; they come before the others. It is a binary search of all values at once.
    fn count_before(&self, op: &'static str, sizes: &[usize], before: impl Fn(&Self) -> Result<Self>) -> Result<Self> {
        let n = self.sizes()[self.rank() - 1] as i64;
        let mut count = Self::zeros(sizes, DType::I64, self.device())?;
        let mut step = n.checked_ilog2().map_or(0, |power| 1_i64 << power);
        while step > 0 {
            let further = count.add(step)?;
            let probe = self.at_places(op, &further.clamp_max(n)?.sub(1)?)?;
            let moves = before(&probe)?.logical_and(&further.le(n)?)?;
            count = moves.where_(&further, &count)?;
            step /= 2;
        }
        Ok(count)
    }

    /// Returns the elements at places of the last dimension: in a vector, places of any sizes.
    fn at_places(&self, op: &'static str, places: &Self) -> Result<Self> {
        if self.rank() == 1 { self.picked(op, &[0], 0, places) } else { self.gather(-1, places) }
    }
}
