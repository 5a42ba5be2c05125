//! Sorting and selection of the first elements in order.

use std::cmp::Ordering;

use super::elementwise::GRAIN;
use super::shared_memory::DisjointSlice;
use crate::kernel::on_cpu;
use crate::{Access, DType, DeviceKind, Element, Entry, Result, Tensor, threads};

/// A kernel that writes the numbers of each row's elements so that the first `count` are sorted, equal elements by
/// number. NaN is the largest. Both tensors are contiguous and of the same sizes; rows are along the last dimension.
pub(crate) type Order = fn(&Tensor, &Tensor, usize, bool) -> Result<()>;

/// Sort orders of floats and `int64`. With `true`, the order is descending.
pub(crate) const ORDER: [&[Entry<Order>]; 2] =
    [on_cpu!(floats: order::<T>), &[(DeviceKind::Cpu, DType::I64, order::<i64>)]];

fn order<T: Element>(out: &Tensor, input: &Tensor, count: usize, descending: bool) -> Result<()> {
    let mut access = Access::new("sort", &[out], &[input])?;
    let (x, out) = access.slices::<T, i64>(0, 0)?;
    let out = DisjointSlice::new(out);
    let n = input.sizes().last().copied().unwrap_or(1);
    let rows = x.len().checked_div(n).unwrap_or(0);
    threads::for_each_range(rows, GRAIN / n.max(1) / 8, |rows| {
        for row in rows {
            let x = &x[row * n..][..n];
            // SAFETY: each row is taken once.
            let out = unsafe { out.range(row * n..(row + 1) * n) };
            // With the number, no two elements are equal: the order is the stable one, and needs no extra memory.
            let compare = |a: &i64, b: &i64| {
                let by_value = compare(x[*a as usize], x[*b as usize]);
                if descending { by_value.reverse() } else { by_value }.then(a.cmp(b))
            };
            if count > 0 && 2 * count <= n {
                select(out, count, n, compare);
            } else {
                (0..).zip(&mut *out).for_each(|(number, out)| *out = number);
                if count > 0 && count < n {
                    out.select_nth_unstable_by(count - 1, compare);
                }
            }
            out[..count].sort_unstable_by(compare);
        }
    });
    Ok(())
}

/// Moves the `few` of `n` numbers that come first to the front, in any order. It keeps only numbers that come before
/// the last of the best `few` seen so far; when it has twice as many, it drops the later half.
fn select(out: &mut [i64], few: usize, n: usize, compare: impl Fn(&i64, &i64) -> Ordering) {
    let (mut kept, mut last) = (0, None);
    for number in 0..n as i64 {
        if last.is_some_and(|last| compare(&number, &last).is_gt()) {
            continue;
        }
        out[kept] = number;
        kept += 1;
        if kept == 2 * few {
            last = Some(*out[..kept].select_nth_unstable_by(few - 1, &compare).1);
            kept = few;
        }
    }
    if kept > few {
        out[..kept].select_nth_unstable_by(few - 1, &compare);
    }
}

#[inline(always)]
#[expect(clippy::eq_op, reason = "NaN does not equal itself")]
fn compare<T: Element>(a: T, b: T) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| (a != a).cmp(&(b != b)))
}
