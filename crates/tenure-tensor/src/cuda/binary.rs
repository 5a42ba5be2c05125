//! Functions of two numbers, and of three.

use super::elementwise::{self, Expression};
use super::late;
use crate::cpu;
use crate::cpu::binary::{Binary, Scaled};
use crate::kernel::on_cuda;
use crate::{Element, Elementwise, Entry, Result, Scalar};

/// Kernels that write an expression of elements, named as those on the CPU that stand for them.
macro_rules! binary {
    (of $module:ident: $($name:ident: $lanes:tt ($($dtypes:tt)*), $value:expr $(, fault $fault:expr)?;)*) => {$(
        pub(crate) const $name: &[Entry<Binary>] = {
            static EXPRESSION: Expression = Expression {
                name: concat!(module_path!(), "::", stringify!($name)),
                lanes: &$lanes,
                numbers: 0,
                value: $value,
                fault: { let _fault: Option<u64> = None; $(let _fault = Some($fault);)? _fault },
            };
            fn kernel<E: Element>(iter: &Elementwise<'_>) -> Result<()> {
                let host = elementwise::on_cpu(crate::cpu::$module::$name, E::DTYPE);
                elementwise::run(iter, E::DTYPE, &EXPRESSION, &[], move |iter| host.map_or(Ok(()), |host| host(iter)))
            }
            on_cuda!($($dtypes)*: kernel::<T>)
        };
    )*};
}
pub(super) use binary;

binary! {
    of binary:
    ADD: ["T", "T", "T"] (lanes of numbers), "(T)(a + b)";
    SUB: ["T", "T", "T"] (lanes of numbers), "(T)(a - b)";
    MUL: ["T", "T", "T"] (lanes of numbers), "(T)(a * b)";
    DIV: ["T", "T", "T"] (lanes of floats), "a / b";
    MAXIMUM: ["T", "T", "T"] (lanes of all), "maximum(a, b)";
    MINIMUM: ["T", "T", "T"] (lanes of all), "minimum(a, b)";
    ATAN2: ["T", "T", "T"] (lanes of floats), "atan2(a, b)";
    POW: ["T", "T", "T"] (lanes of numbers), "power(a, b)";
    AND: ["T", "T", "T"] (integers), "(T)(a & b)";
    OR: ["T", "T", "T"] (integers), "(T)(a | b)";
    XOR: ["T", "T", "T"] (integers), "(T)(a ^ b)";
    SHIFT_LEFT: ["T", "T", "T"] (whole numbers), "shift_left(a, b)";
    SHIFT_RIGHT: ["T", "T", "T"] (whole numbers), "shift_right(a, b)";
    DIV_FLOOR: ["T", "T", "T"] (lanes of numbers), "div_floor(a, b, fault, code)", fault late::DIVIDED_BY_ZERO;
    DIV_TRUNC: ["T", "T", "T"] (lanes of numbers), "div_trunc(a, b, fault, code)", fault late::DIVIDED_BY_ZERO;
    REMAINDER: ["T", "T", "T"] (lanes of numbers), "remainder_of(a, b, fault, code)", fault late::DIVIDED_BY_ZERO;
    FMOD: ["T", "T", "T"] (lanes of numbers), "fmod_of(a, b, fault, code)", fault late::DIVIDED_BY_ZERO;
    // From the nearer end, so that both are met exactly.
    LERP: ["T", "T", "T", "T"] (lanes of floats), "absolute(c) < (T)0.5 ? a + c * (b - a) : b - (b - a) * ((T)1 - c)";
    ADD_BOOL: ["T", "T", "T"] (only Bool bool), "a | b";
    MUL_BOOL: ["T", "T", "T"] (only Bool bool), "a & b";
}

/// The same of a number too.
macro_rules! scaled {
    ($($name:ident: $lanes:tt ($($dtypes:tt)*), $value:expr;)*) => {$(
        pub(crate) const $name: &[Entry<Scaled>] = {
            static EXPRESSION: Expression = Expression {
                name: concat!(module_path!(), "::", stringify!($name)),
                lanes: &$lanes,
                numbers: 1,
                value: $value,
                fault: None,
            };
            fn kernel<E: Element>(iter: &Elementwise<'_>, factor: Scalar) -> Result<()> {
                let host = elementwise::on_cpu(cpu::binary::$name, E::DTYPE);
                let host = move |iter: &Elementwise<'_>| host.map_or(Ok(()), |host| host(iter, factor));
                elementwise::run(iter, E::DTYPE, &EXPRESSION, &[factor], host)
            }
            on_cuda!($($dtypes)*: kernel::<T>)
        };
    )*};
}

scaled! {
    ADD_SCALED: ["T", "T", "T"] (lanes of numbers), "(T)(a + n0 * b)";
    ADDCMUL: ["T", "T", "T", "T"] (lanes of numbers), "(T)(a + n0 * b * c)";
    ADDCDIV: ["T", "T", "T", "T"] (lanes of floats), "a + n0 * b / c";
}
