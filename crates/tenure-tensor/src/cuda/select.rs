//! One of two.

use super::elementwise::{self, Expression};
use crate::cpu;
use crate::cpu::select::{Clamp, NanToNum, Where};
use crate::kernel::on_cuda;
use crate::{Element, Elementwise, Entry, Result, Scalar};

pub(crate) const WHERE: &[Entry<Where>] = on_cuda!(all: choose::<T>);
pub(crate) const CLAMP: &[Entry<Clamp>] = on_cuda!(lanes of numbers: clamp::<T>);
pub(crate) const NAN_TO_NUM: &[Entry<NanToNum>] = on_cuda!(lanes of floats: nan_to_num::<T>);

fn choose<E: Element>(iter: &Elementwise<'_>) -> Result<()> {
    static EXPRESSION: Expression =
        Expression { name: "where", lanes: &["T", "bool", "T", "T"], numbers: 0, value: "a ? b : c", fault: None };
    let host = elementwise::on_cpu(cpu::select::WHERE, E::DTYPE);
    elementwise::run(iter, E::DTYPE, &EXPRESSION, &[], move |iter| host.map_or(Ok(()), |host| host(iter)))
}

fn clamp<E: Element>(iter: &Elementwise<'_>, min: Option<Scalar>, max: Option<Scalar>) -> Result<()> {
    static BOTH: Expression = Expression {
        name: "clamp",
        lanes: &["T", "T"],
        numbers: 2,
        // What is no number stays none.
        value: "(a < n0 ? n0 : a) > n1 ? n1 : (a < n0 ? n0 : a)",
        fault: None,
    };
    static MIN: Expression =
        Expression { name: "clamp_min", lanes: &["T", "T"], numbers: 1, value: "a < n0 ? n0 : a", fault: None };
    static MAX: Expression =
        Expression { name: "clamp_max", lanes: &["T", "T"], numbers: 1, value: "a > n0 ? n0 : a", fault: None };
    static NEITHER: Expression =
        Expression { name: "clamp_none", lanes: &["T", "T"], numbers: 0, value: "a", fault: None };
    let host = elementwise::on_cpu(cpu::select::CLAMP, E::DTYPE);
    let host = move |iter: &Elementwise<'_>| host.map_or(Ok(()), |host| host(iter, min, max));
    match (min, max) {
        (Some(min), Some(max)) => elementwise::run(iter, E::DTYPE, &BOTH, &[min, max], host),
        (Some(min), None) => elementwise::run(iter, E::DTYPE, &MIN, &[min], host),
        (None, Some(max)) => elementwise::run(iter, E::DTYPE, &MAX, &[max], host),
        (None, None) => elementwise::run(iter, E::DTYPE, &NEITHER, &[], host),
    }
}

fn nan_to_num<E: Element>(iter: &Elementwise<'_>, values: [f64; 3]) -> Result<()> {
    static EXPRESSION: Expression = Expression {
        name: "nan_to_num",
        lanes: &["T", "T"],
        numbers: 3,
        value: "is_nan(a) ? n0 : a == INFINITE(T) ? n1 : a == -INFINITE(T) ? n2 : a",
        fault: None,
    };
    let host = elementwise::on_cpu(cpu::select::NAN_TO_NUM, E::DTYPE);
    let host = move |iter: &Elementwise<'_>| host.map_or(Ok(()), |host| host(iter, values));
    elementwise::run(iter, E::DTYPE, &EXPRESSION, &values.map(Scalar::Float), host)
}
