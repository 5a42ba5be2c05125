//! Copies, conversions between dtypes, and the writing of one value or of ranges of numbers.

use super::elementwise::{self, GRAIN};
use super::gather::with_width;
use super::{cast, elementwise_runs};
use crate::kernel::on_cpu;
use crate::{Access, Element, Elementwise, Entry, Result, Scalar, Tensor, arrays, threads};

/// A kernel that writes the input to the output. Its entry is that of the output's dtype.
pub(crate) type Copy = fn(&Elementwise<'_>) -> Result<()>;

pub(crate) const COPY: &[Entry<Copy>] = on_cpu!(all: copy);

fn copy(iter: &Elementwise<'_>) -> Result<()> {
    let [out, input] = iter.operands() else { unreachable!("a copy has one input") };
    if let Some(across) = transposed(iter) {
        match out.dtype.size() {
            1 => transpose::<u8, 64>(iter, across),
            2 => transpose::<u16, 32>(iter, across),
            4 => transpose::<u32, 16>(iter, across),
            _ => transpose::<u64, 8>(iter, across),
        }
        return Ok(());
    }
    let is_one_run =
        iter.sizes().len() <= 1 && [out, input].iter().all(|operand| operand.strides[..] == [out.dtype.size()]);
    if out.dtype == input.dtype && !is_one_run {
        with_width!(out.dtype, T => copy_runs::<T>(iter));
        return Ok(());
    }
    let convert = cast::between(input.dtype, out.dtype);
    elementwise::for_each_block(iter, [out.dtype, input.dtype], &|[out, input], n| {
        // SAFETY: `for_each_block` gives `n` elements of each, which do not overlap.
        unsafe { convert(input, out, n) };
    });
    Ok(())
}

/// Copies elements that are not all contiguous.
fn copy_runs<T: std::marker::Copy>(iter: &Elementwise<'_>) {
    let width = size_of::<T>();
    elementwise_runs::for_each_run(iter, |[out, input], [to, from], n| {
        // SAFETY: there are `n` elements of the same width at both places, which may be the same.
        unsafe {
            if (to, from) == (width, width) {
                input.cast::<T>().copy_to(out.cast(), n);
            } else if (to, from) == (width, 0) {
                let value = input.cast::<T>().read();
                (0..n).for_each(|i| out.cast::<T>().add(i).write(value));
            } else {
                (0..n).for_each(|i| out.add(i * to).cast::<T>().write(input.add(i * from).cast::<T>().read()));
            }
        }
    });
}

/// The bytes along each side of a tile: a cache line.
const LINE: usize = 64;

/// Returns the dimension along which the input is dense, if it is not the output's and both are long enough for a tile.
fn transposed(iter: &Elementwise<'_>) -> Option<usize> {
    let [out, input] = iter.operands() else { return None };
    let width = out.dtype.size();
    let across = input.strides.iter().position(|stride| *stride == width)?;
    let is_transposed = out.dtype == input.dtype && across > 0 && out.strides[0] == width && input.strides[0] > width;
    (is_transposed && [0, across].iter().all(|dim| iter.sizes()[*dim] * width >= LINE)).then_some(across)
}

/// Copies in tiles of `SIDE` by `SIDE` elements, so that every cache line is read once and written once.
fn transpose<T: std::marker::Copy, const SIDE: usize>(iter: &Elementwise<'_>, across: usize) {
    const { assert!(SIDE * size_of::<T>() == LINE) };
    let [out, input] = iter.operands() else { return };
    let sizes = iter.sizes();
    let width = size_of::<T>();
    let rows = sizes[across];
    let columns = sizes[0];
    let down = out.strides[across];
    let right = input.strides[0];
    let bands = rows.div_ceil(SIDE);
    let count = bands * iter.numel() / (rows * columns);
    threads::for_each_range(count, (GRAIN / (SIDE * columns)).max(1), |range| {
        for at in range {
            let top = at % bands * SIDE;
            let mut rest = at / bands;
            let mut to = out.data.wrapping_add(top * down);
            let mut from = input.data.cast_const().wrapping_add(top * width);
            for dim in (1..sizes.len()).filter(|dim| *dim != across) {
                to = to.wrapping_add(rest % sizes[dim] * out.strides[dim]);
                from = from.wrapping_add(rest % sizes[dim] * input.strides[dim]);
                rest /= sizes[dim];
            }
            let height = SIDE.min(rows - top);
            for left in (0..columns).step_by(SIDE) {
                let to = to.wrapping_add(left * width);
                let from = from.wrapping_add(left * right);
                let length = SIDE.min(columns - left);
                // SAFETY: both places are within the sizes; each element of the output is written once, and none of it
                // is read.
                unsafe {
                    if (height, length) == (SIDE, SIDE) {
                        tile::<T, SIDE>(from, right, to, down);
                    } else {
                        for (row, column) in (0..height).flat_map(|row| (0..length).map(move |column| (row, column))) {
                            let value = from.add(row * width + column * right).cast::<T>().read();
                            to.add(row * down + column * width).cast::<T>().write(value);
                        }
                    }
                }
            }
        }
    });
}

/// Copies and transposes a tile, whose lines are `right` bytes apart in the source and `down` bytes apart in the
/// target.
///
/// # Safety
/// Both must have `SIDE` lines of `SIDE` elements, which do not overlap.
unsafe fn tile<T: std::marker::Copy, const SIDE: usize>(from: *const u8, right: usize, to: *mut u8, down: usize) {
    super::vectorized!({
        // SAFETY: as the caller promises.
        let lines: [[T; SIDE]; SIDE] =
            arrays::from_fn(|column| unsafe { from.add(column * right).cast::<[T; SIDE]>().read_unaligned() });
        (0..SIDE).for_each(|row| {
            let line: [T; SIDE] = arrays::from_fn(|column| lines[column][row]);
            // SAFETY: as the caller promises.
            unsafe { to.add(row * down).cast::<[T; SIDE]>().write_unaligned(line) };
        });
    });
}

/// A kernel that writes a number to all elements of the output.
pub(crate) type Fill = fn(&Elementwise<'_>, Scalar) -> Result<()>;

pub(crate) const FILL: &[Entry<Fill>] = on_cpu!(all: fill::<T>);

fn fill<T: Element>(iter: &Elementwise<'_>, value: Scalar) -> Result<()> {
    elementwise::nullary(iter, T::from_scalar(value));
    Ok(())
}

/// A kernel that writes numbers to a contiguous tensor, each computed from its index.
pub(crate) type RangeKernel = fn(&'static str, &Tensor, RangeRule) -> Result<()>;

pub(crate) const RANGES: &[Entry<RangeKernel>] = on_cpu!(numbers: range::<T>);

/// The rule of a range.
#[derive(Clone, Copy)]
pub(crate) enum RangeRule {
    /// Integers: the first number, and the step.
    Integers(i64, i64),
    /// Floats: the first number, and the step.
    Floats(f64, f64),
    /// Equally spaced numbers from the first to the second, both included.
    Between(f64, f64),
    /// Powers of the first number, with equally spaced exponents from the second to the third.
    Powers(f64, f64, f64),
}

impl RangeRule {
    /// Returns number `i` of `count`.
    fn number(self, i: usize, count: usize) -> Scalar {
        match self {
            Self::Integers(start, step) => Scalar::Int(start.wrapping_add(step.wrapping_mul(i as i64))),
            Self::Floats(start, step) => Scalar::Float(start + step * i as f64),
            Self::Between(start, end) => Scalar::Float(between(start, end, i, count)),
            Self::Powers(base, start, end) => Scalar::Float(base.powf(between(start, end, i, count))),
        }
    }
}

/// Returns number `i` of `count` from `start` to `end`, exact at both.
fn between(start: f64, end: f64, i: usize, count: usize) -> f64 {
    let step = (end - start) / (count.max(2) - 1) as f64;
    if i < count / 2 || count == 1 { start + step * i as f64 } else { end - step * (count - 1 - i) as f64 }
}

fn range<T: Element>(op: &'static str, out: &Tensor, rule: RangeRule) -> Result<()> {
    let mut access = Access::new(op, &[out], &[])?;
    let numbers = access.slice_mut::<T>(0)?;
    let count = numbers.len();
    numbers.iter_mut().enumerate().for_each(|(i, to)| *to = T::from_scalar(rule.number(i, count)));
    Ok(())
}
