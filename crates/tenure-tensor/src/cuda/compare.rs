//! Comparisons, logic, selection and clamping.

use smallvec::SmallVec;

use super::elementwise::{self, Expression, expressions};
use super::on_cpu;
use crate::cpu;
use crate::cpu::compare::{Clamp, Closeness, IsClose};
use crate::kernel::on_cuda;
use crate::{DType, Element, Elementwise, Entry, Result, Scalar};

expressions! {
    of compare:
    EQ: ["bool", "T", "T"] (wrapping lanes of all), "a == b";
    NE: ["bool", "T", "T"] (wrapping lanes of all), "a != b";
    LT: ["bool", "T", "T"] (lanes of all), "a < b";
    LE: ["bool", "T", "T"] (lanes of all), "a <= b";
    GT: ["bool", "T", "T"] (lanes of all), "a > b";
    GE: ["bool", "T", "T"] (lanes of all), "a >= b";
    LOGICAL_AND: ["bool", "T", "T"] (wrapping lanes of all), "a != (T)0 && b != (T)0";
    LOGICAL_OR: ["bool", "T", "T"] (wrapping lanes of all), "a != (T)0 || b != (T)0";
    LOGICAL_XOR: ["bool", "T", "T"] (wrapping lanes of all), "(a != (T)0) != (b != (T)0)";
    WHERE: ["T", "bool", "T", "T"] (bits of all), "a ? b : c";
    NAN_TO_NUM: ["T", "T"] (lanes of floats),
        "is_nan(a) ? n0 : a == INFINITE(T) ? n1 : a == -INFINITE(T) ? n2 : a", given values: [f64; 3];
}

pub(crate) const IS_CLOSE: &[Entry<IsClose>] = on_cuda!(all: is_close);

/// Compares in `f64`, whatever the dtype.
fn is_close(iter: &Elementwise<'_>, closeness: Closeness) -> Result<()> {
    static EXPRESSION: Expression = Expression {
        name: "isclose",
        lanes: &["bool", "T", "T"],
        values: &[
            "a == b || (fabs(a - b) <= n1 + n0 * fabs(b) && fabs(a - b) < INFINITE(T)) || (n2 != 0 && a != a && b != b)",
        ],
        fault: None,
    };
    let Closeness { relative, absolute, equal_nan } = closeness;
    let numbers = [relative, absolute, f64::from(u8::from(equal_nan))].map(Scalar::Float);
    elementwise::run(iter, DType::F64, &EXPRESSION, &numbers, move |iter| {
        on_cpu(iter.op(), &[cpu::compare::IS_CLOSE], DType::F64)?(iter, closeness)
    })
}

pub(crate) const CLAMP: &[Entry<Clamp>] = on_cuda!(lanes of numbers: clamp::<T>);

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
        on_cpu(iter.op(), &[cpu::compare::CLAMP], dtype)?(iter, min, max)
    })
}
