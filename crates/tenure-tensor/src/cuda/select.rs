//! Selection and clamping of elements.

use smallvec::SmallVec;

use super::elementwise::{self, Expression, expressions};
use super::on_cpu;
use crate::cpu;
use crate::cpu::select::Clamp;
use crate::kernel::on_cuda;
use crate::{DType, Element, Elementwise, Entry, Result, Scalar};

pub(crate) const CLAMP: &[Entry<Clamp>] = on_cuda!(lanes of numbers: clamp::<T>);

expressions! {
    of select:
    WHERE: ["T", "bool", "T", "T"] (bits of all), "a ? b : c";
    NAN_TO_NUM: ["T", "T"] (lanes of floats),
        "is_nan(a) ? n0 : a == INFINITE(T) ? n1 : a == -INFINITE(T) ? n2 : a", given values: [f64; 3];
}

fn clamp<E: Element>(iter: &Elementwise<'_>, min: Option<Scalar>, max: Option<Scalar>) -> Result<()> {
    clamp_as(E::DTYPE, iter, min, max)
}

fn clamp_as(dtype: DType, iter: &Elementwise<'_>, min: Option<Scalar>, max: Option<Scalar>) -> Result<()> {
    static BOTH: Expression = Expression {
        name: "clamp",
        lanes: &["T", "T"],
        // NaN stays NaN.
        values: &["(a < n0 ? n0 : a) > n1 ? n1 : (a < n0 ? n0 : a)"],
        fault: None,
    };
    static MIN: Expression =
        Expression { name: "clamp_min", lanes: &["T", "T"], values: &["a < n0 ? n0 : a"], fault: None };
    static MAX: Expression =
        Expression { name: "clamp_max", lanes: &["T", "T"], values: &["a > n0 ? n0 : a"], fault: None };
    static NEITHER: Expression = Expression { name: "clamp_none", lanes: &["T", "T"], values: &["a"], fault: None };
    let expression = match (min, max) {
        (Some(_), Some(_)) => &BOTH,
        (Some(_), None) => &MIN,
        (None, Some(_)) => &MAX,
        (None, None) => &NEITHER,
    };
    let limits: SmallVec<[Scalar; 2]> = min.into_iter().chain(max).collect();
    elementwise::run(iter, dtype, expression, &limits, move |iter| {
        on_cpu(iter.op(), &[cpu::select::CLAMP], dtype)?(iter, min, max)
    })
}
