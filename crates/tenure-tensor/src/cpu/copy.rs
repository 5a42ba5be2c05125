//! Copies, and conversions from dtype to dtype.

use super::loops;
use crate::element::with_element;
use crate::kernel::on_cpu;
use crate::{Element, Elementwise, Entry, Result};

/// Writes the input to the output, whose dtype it is found by.
pub(crate) type Copy = fn(&Elementwise<'_>) -> Result<()>;

pub(crate) const COPY: &[Entry<Copy>] = on_cpu!(all: copy::<T>);

fn copy<T: Element>(iter: &Elementwise<'_>) -> Result<()> {
    let from = iter.operands()[1].dtype;
    if from == T::DTYPE {
        loops::unary(iter, |value: T| value);
    } else {
        with_element!(from, F => loops::unary(iter, |value: F| T::from_scalar(value.to_scalar())));
    }
    Ok(())
}
