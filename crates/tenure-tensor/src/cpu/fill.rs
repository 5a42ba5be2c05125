//! Filling a tensor with one value.

use super::loops;
use crate::kernel::on_cpu;
use crate::{Element, Elementwise, Entry, Result, Scalar};

/// A kernel that writes a number to all elements of the output.
pub(crate) type Fill = fn(&Elementwise<'_>, Scalar) -> Result<()>;

pub(crate) const FILL: &[Entry<Fill>] = on_cpu!(all: fill::<T>);

fn fill<T: Element>(iter: &Elementwise<'_>, value: Scalar) -> Result<()> {
    loops::nullary(iter, T::from_scalar(value));
    Ok(())
}
