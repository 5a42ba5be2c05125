//! Concatenation of tensors, and reversal of dimensions.

use std::slice;

use super::elementwise::GRAIN;
use super::gather::with_width;
use super::vectorized;
use crate::kernel::on_cpu;
use crate::{Access, Entry, Result, Tensor, threads};

/// A kernel that concatenates tensors along a dimension, where their sizes add up to the output's.
pub(crate) type Join = fn(&Tensor, usize, &[&Tensor]) -> Result<()>;

pub(crate) const JOIN: &[Entry<Join>] = on_cpu!(all: join);

/// Copies the parts one after the other.
pub(crate) fn join(out: &Tensor, dim: usize, parts: &[&Tensor]) -> Result<()> {
    let mut start = 0;
    for part in parts {
        let length = part.sizes()[dim];
        out.alias(out.layout().narrow(dim, start, length)?).copy_raw(part)?;
        start += length;
    }
    Ok(())
}

/// A kernel that writes the input with the dimension of the given number reversed. Both tensors are contiguous.
pub(crate) type Flip = fn(&Tensor, &Tensor, usize) -> Result<()>;

pub(crate) const FLIP: &[Entry<Flip>] = on_cpu!(all: flip);

fn flip(out: &Tensor, input: &Tensor, dim: usize) -> Result<()> {
    let mut access = Access::new("flip", &[out], &[input])?;
    let length = out.sizes()[dim];
    let block = out.sizes()[dim + 1..].iter().product();
    let numel = out.numel();
    if numel == 0 {
        // An empty tensor may have no memory to point to.
        return Ok(());
    }
    with_width!(out.dtype(), T => {
        let to = access.write_ptr(0).cast::<T>();
        let from = access.read_ptr(0).cast::<T>();
        // SAFETY: these are all elements of both tensors, which are contiguous and of the same width.
        let (to, from) = unsafe { (slice::from_raw_parts_mut(to, numel), slice::from_raw_parts(from, numel)) };
        flip_blocks(to, from, length, block);
    });
    Ok(())
}

/// Reverses the order of each `length` blocks of elements.
fn flip_blocks<T: Copy + Send + Sync>(to: &mut [T], from: &[T], length: usize, block: usize) {
    threads::for_each_chunk(to, GRAIN, |start, mut to| {
        vectorized!({
            let mut at = start;
            while !to.is_empty() {
                let row = at - at % (length * block);
                let along = at % (length * block);
                let n = if block == 1 { length - along } else { block - along % block }.min(to.len());
                let (part, rest) = std::mem::take(&mut to).split_at_mut(n);
                if block == 1 {
                    let from = &from[row + length - along - n..][..n];
                    part.iter_mut().zip(from.iter().rev()).for_each(|(to, from)| *to = *from);
                } else {
                    part.copy_from_slice(&from[row + (length - 1 - along / block) * block + along % block..][..n]);
                }
                (to, at) = (rest, at + n);
            }
        });
    });
}
