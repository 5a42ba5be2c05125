//! Pairs of numbers turned by angles.

use super::elementwise::{self, Expression};
use crate::cpu;
use crate::cpu::rotary::Rotate;
use crate::kernel::on_cuda;
use crate::{Element, Elementwise, Entry, Result, Scalar};

pub(crate) const ROTATE: &[Entry<Rotate>] = on_cuda!(lanes of floats: rotate::<T>);

fn rotate<E: Element>(iter: &Elementwise<'_>, sign: f64) -> Result<()> {
    static EXPRESSION: Expression = Expression {
        name: "rotate",
        lanes: &["T", "T", "T", "T", "T"],
        numbers: 1,
        value: "a * b + n0 * c * d",
        fault: None,
    };
    let host = elementwise::on_cpu(cpu::rotary::ROTATE, E::DTYPE);
    let host = move |iter: &Elementwise<'_>| host.map_or(Ok(()), |host| host(iter, sign));
    elementwise::run(iter, E::DTYPE, &EXPRESSION, &[Scalar::Float(sign)], host)
}
