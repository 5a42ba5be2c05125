//! One value everywhere.

use super::elementwise::{self, Expression};
use crate::cpu;
use crate::cpu::fill::Fill;
use crate::kernel::on_cuda;
use crate::{Element, Elementwise, Entry, Result, Scalar};

pub(crate) const FILL: &[Entry<Fill>] = on_cuda!(all: fill::<T>);

fn fill<E: Element>(iter: &Elementwise<'_>, value: Scalar) -> Result<()> {
    static EXPRESSION: Expression = Expression { name: "fill", lanes: &["T"], numbers: 1, value: "n0", fault: None };
    let host = elementwise::on_cpu(cpu::fill::FILL, E::DTYPE);
    elementwise::run(iter, E::DTYPE, &EXPRESSION, &[value], move |iter| host.map_or(Ok(()), |host| host(iter, value)))
}
