//! Comparisons and logic.

use super::elementwise::{self, Expression, expressions};
use super::on_cpu;
use crate::cpu;
use crate::cpu::compare::{Closeness, IsClose};
use crate::kernel::on_cuda;
use crate::{DType, Elementwise, Entry, Result, Scalar};

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
