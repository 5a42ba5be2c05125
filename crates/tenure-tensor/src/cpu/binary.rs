//! Functions of two numbers.

use super::loops;
use crate::kernel::on_cpu;
use crate::{Elementwise, Entry, Float, Number, Result};

/// Writes a function of two inputs of one dtype.
pub(crate) type Binary = fn(&Elementwise<'_>) -> Result<()>;

pub(crate) const ADD: &[Entry<Binary>] = on_cpu!(numbers: add::<T>);
pub(crate) const SUB: &[Entry<Binary>] = on_cpu!(numbers: sub::<T>);
pub(crate) const MUL: &[Entry<Binary>] = on_cpu!(numbers: mul::<T>);
pub(crate) const DIV: &[Entry<Binary>] = on_cpu!(floats: div::<T>);

fn add<T: Number>(iter: &Elementwise<'_>) -> Result<()> {
    loops::binary(iter, T::plus);
    Ok(())
}

fn sub<T: Number>(iter: &Elementwise<'_>) -> Result<()> {
    loops::binary(iter, T::minus);
    Ok(())
}

fn mul<T: Number>(iter: &Elementwise<'_>) -> Result<()> {
    loops::binary(iter, T::times);
    Ok(())
}

fn div<T: Float>(iter: &Elementwise<'_>) -> Result<()> {
    loops::binary(iter, |a: T, b: T| T::narrow(a.widen() / b.widen()));
    Ok(())
}
