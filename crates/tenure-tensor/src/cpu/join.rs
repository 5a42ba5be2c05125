//! Concatenation of tensors.

use crate::kernel::on_cpu;
use crate::{Entry, Result, Tensor};

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
