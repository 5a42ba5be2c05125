//! Copies, and conversions from dtype to dtype.

use super::cast;
use super::loops::{self, GRAIN};
use crate::kernel::on_cpu;
use crate::{Elementwise, Entry, Result, threads};

/// Writes the input to the output, whose dtype it is found by.
pub(crate) type Copy = fn(&Elementwise<'_>) -> Result<()>;

pub(crate) const COPY: &[Entry<Copy>] = on_cpu!(all: copy);

fn copy(iter: &Elementwise<'_>) -> Result<()> {
    let [out, input] = iter.operands() else { unreachable!("a copy has one input") };
    if let Some(across) = transposed(iter) {
        match out.dtype.size() {
            1 => transpose::<u8>(iter, across),
            2 => transpose::<u16>(iter, across),
            4 => transpose::<u32>(iter, across),
            _ => transpose::<u64>(iter, across),
        }
        return Ok(());
    }
    let convert = cast::between(input.dtype, out.dtype);
    loops::for_each_block(iter, [out.dtype, input.dtype], &|[out, input], n| {
        // SAFETY: `for_each_block` gives `n` elements of each, which do not overlap.
        unsafe { convert(input, out, n) };
    });
    Ok(())
}

/// Elements along each side of a tile: a row of it fills cache lines.
const TILE: usize = 32;

/// The dimension along which the input is dense, if that is another than the output's, and both are worth a tile.
fn transposed(iter: &Elementwise<'_>) -> Option<usize> {
    let [out, input] = iter.operands() else { return None };
    let width = out.dtype.size();
    let across = input.strides.iter().position(|stride| *stride == width)?;
    let is_large = |dim: usize| iter.sizes()[dim] >= TILE / 2;
    let is_transposed = out.dtype == input.dtype && across > 0 && out.strides[0] == width && input.strides[0] > width;
    (is_transposed && is_large(0) && is_large(across)).then_some(across)
}

/// Copies tile by tile, so that the lines of memory that a tile's columns are in stay in the cache until they are done.
fn transpose<T: std::marker::Copy>(iter: &Elementwise<'_>, across: usize) {
    let [out, input] = iter.operands() else { return };
    let (sizes, width) = (iter.sizes(), size_of::<T>());
    let (rows, columns) = (sizes[across], sizes[0]);
    let bands = rows.div_ceil(TILE);
    let count = bands * iter.numel() / (rows * columns);
    threads::for_each_range(count, (GRAIN / (TILE * columns)).max(1), |range| {
        for at in range {
            let (top, mut rest) = (at % bands * TILE, at / bands);
            let (mut to, mut from) = (out.data, input.data.cast_const());
            for dim in (1..sizes.len()).filter(|dim| *dim != across) {
                to = to.wrapping_add(rest % sizes[dim] * out.strides[dim]);
                from = from.wrapping_add(rest % sizes[dim] * input.strides[dim]);
                rest /= sizes[dim];
            }
            let height = TILE.min(rows - top);
            for left in (0..columns).step_by(TILE) {
                let to = to.wrapping_add(top * out.strides[across] + left * width);
                let from = from.wrapping_add(top * width + left * input.strides[0]);
                for row in 0..height {
                    let (to, from) =
                        (to.wrapping_add(row * out.strides[across]).cast::<T>(), from.wrapping_add(row * width));
                    for column in 0..TILE.min(columns - left) {
                        // SAFETY: within the sizes of both; the output's elements are each written once, and nothing of
                        // it is read.
                        unsafe { to.add(column).write(from.add(column * input.strides[0]).cast::<T>().read()) };
                    }
                }
            }
        }
    });
}
