//! Means and deviations taken out.

use super::elementwise::{self, Expression};
use crate::cpu;
use crate::cpu::norm::{Normalize, NormalizeBackward};
use crate::kernel::on_cuda;
use crate::{Element, Elementwise, Entry, Result};

pub(crate) const NORMALIZE: &[Entry<Normalize>] = on_cuda!(lanes of floats: normalize::<T>);
pub(crate) const NORMALIZE_BACKWARD: &[Entry<NormalizeBackward>] = on_cuda!(lanes of floats: normalize_backward::<T>);

fn normalize<E: Element>(iter: &Elementwise<'_>) -> Result<()> {
    static EXPRESSION: Expression = Expression {
        name: "normalize",
        lanes: &["T", "T", "T", "T", "T"],
        numbers: 0,
        value: "(a - b) * c + d",
        fault: None,
    };
    let host = elementwise::on_cpu(cpu::norm::NORMALIZE, E::DTYPE);
    elementwise::run(iter, E::DTYPE, &EXPRESSION, &[], move |iter| host.map_or(Ok(()), |host| host(iter)))
}

fn normalize_backward<E: Element>(iter: &Elementwise<'_>) -> Result<()> {
    static EXPRESSION: Expression = Expression {
        name: "normalize_backward",
        lanes: &["T", "T", "T", "T", "T", "T", "T"],
        numbers: 0,
        value: "a * d + (b - c) * e + f",
        fault: None,
    };
    let host = elementwise::on_cpu(cpu::norm::NORMALIZE_BACKWARD, E::DTYPE);
    elementwise::run(iter, E::DTYPE, &EXPRESSION, &[], move |iter| host.map_or(Ok(()), |host| host(iter)))
}
