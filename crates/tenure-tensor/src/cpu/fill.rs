//! Filling a tensor with one value.

use super::elementwise;
use crate::kernel::on_cpu;
use crate::{Element, Elementwise, Entry, Result, Scalar};

/// A kernel that writes a number to all elements of the output.
pub(crate) type Fill = fn(&Elementwise<'_>, Scalar) -> Result<()>;

pub(crate) const FILL: &[Entry<Fill>] = on_cpu!(all: fill::<T>);

fn fill<T: Element>(iter: &Elementwise<'_>, value: Scalar) -> Result<()> {
    elementwise::nullary(iter, T::from_scalar(value));
    Ok(())
}
