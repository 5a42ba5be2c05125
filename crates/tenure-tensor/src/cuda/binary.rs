//! Functions of two and of three numbers.

use super::async_errors::DIVIDED_BY_ZERO;
use super::elementwise::expressions;
use crate::Scalar;

expressions! {
    of binary:
    ADD: ["T", "T", "T"] (wrapping lanes of numbers), "(T)(a + b)";
    SUB: ["T", "T", "T"] (wrapping lanes of numbers), "(T)(a - b)";
    MUL: ["T", "T", "T"] (wrapping lanes of numbers), "(T)(a * b)";
    DIV: ["T", "T", "T"] (lanes of floats), "a / b";
    MAXIMUM: ["T", "T", "T"] (lanes of all), "maximum(a, b)";
    MINIMUM: ["T", "T", "T"] (lanes of all), "minimum(a, b)";
    ATAN2: ["T", "T", "T"] (lanes of floats), "atan2(a, b)";
    POW: ["T", "T", "T"] (lanes of numbers), "power(a, b)";
    AND: ["T", "T", "T"] (bits of integers), "(T)(a & b)";
    OR: ["T", "T", "T"] (bits of integers), "(T)(a | b)";
    XOR: ["T", "T", "T"] (bits of integers), "(T)(a ^ b)";
    SHIFT_LEFT: ["T", "T", "T"] (bits of whole numbers), "shift_left(a, b)";
    SHIFT_RIGHT: ["T", "T", "T"] (lanes of whole numbers), "shift_right(a, b)";
    DIV_FLOOR: ["T", "T", "T"] (lanes of numbers), "div_floor(a, b, fault, code)", fault DIVIDED_BY_ZERO;
    DIV_TRUNC: ["T", "T", "T"] (lanes of numbers), "div_trunc(a, b, fault, code)", fault DIVIDED_BY_ZERO;
    REMAINDER: ["T", "T", "T"] (lanes of numbers), "remainder_of(a, b, fault, code)", fault DIVIDED_BY_ZERO;
    FMOD: ["T", "T", "T"] (lanes of numbers), "fmod_of(a, b, fault, code)", fault DIVIDED_BY_ZERO;
    // Starting from the nearer end gives both ends exactly.
    LERP: ["T", "T", "T", "T"] (lanes of floats), "absolute(c) < (T)0.5 ? a + c * (b - a) : b - (b - a) * ((T)1 - c)";
    ADD_BOOL: ["T", "T", "T"] (only Bool bool), "a | b";
    MUL_BOOL: ["T", "T", "T"] (only Bool bool), "a & b";
    ADD_SCALED: ["T", "T", "T"] (wrapping lanes of numbers), "(T)(a + n0 * b)", given factor: Scalar;
    ADDCMUL: ["T", "T", "T", "T"] (wrapping lanes of numbers), "(T)(a + n0 * b * c)", given factor: Scalar;
    ADDCDIV: ["T", "T", "T", "T"] (lanes of floats), "a + n0 * b / c", given factor: Scalar;
}
