//! Dimensions made one.

use crate::kernel::on_cpu;
use crate::{Access, Entry, Number, Result, Tensor};

/// Reduces the input to the output, which has size 1 where a dimension is reduced.
pub(crate) type Reduce = fn(&Tensor, &Tensor) -> Result<()>;

pub(crate) const SUM: &[Entry<Reduce>] = on_cpu!(numbers: sum::<T>);

fn sum<T: Number>(out: &Tensor, input: &Tensor) -> Result<()> {
    let mut access = Access::new("sum", &[out], &[input])?;
    let from = input.layout();
    let (source, target) = access.slices::<T, T>(0, 0)?;
    let mut sums = vec![T::Sum::ZERO; target.len()];
    for (at, value) in source.iter().enumerate() {
        let (mut rest, mut place) = (at, 0);
        for dim in (0..from.rank()).rev() {
            place += rest % from.sizes()[dim] % out.sizes()[dim] * out.strides()[dim];
            rest /= from.sizes()[dim];
        }
        sums[place] = sums[place].plus(value.widen());
    }
    target.iter_mut().zip(sums).for_each(|(to, sum)| *to = T::narrow(sum));
    Ok(())
}
