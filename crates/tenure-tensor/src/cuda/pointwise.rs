//! Functions of one number, and of two and three numbers.

use super::async_errors::DIVIDED_BY_ZERO;
use super::elementwise::expressions;
use crate::Scalar;

expressions! {
    of pointwise:
    NEG: ["T", "T"] (wrapping lanes of numbers), "(T)((T)0 - a)";
    ABS: ["T", "T"] (lanes of floats), "absolute(a)";
    ABS_INTEGERS: ["T", "T"] (lanes of whole numbers), "absolute(a)";
    SIGN: ["T", "T"] (lanes of numbers), "sign(a)";
    SQUARE: ["T", "T"] (wrapping lanes of numbers), "(T)(a * a)";
    CUBE: ["T", "T"] (wrapping lanes of numbers), "(T)(a * a * a)";
    SQRT: ["T", "T"] (lanes of floats), "sqrt(a)";
    RSQRT: ["T", "T"] (lanes of floats), "(T)1 / sqrt(a)";
    RECIPROCAL: ["T", "T"] (lanes of floats), "(T)1 / a";
    EXP: ["T", "T"] (lanes of floats), "exp(a)";
    EXPM1: ["T", "T"] (lanes of floats), "expm1(a)";
    LOG: ["T", "T"] (lanes of floats), "log(a)";
    LOG1P: ["T", "T"] (lanes of floats), "log1p(a)";
    LOG2: ["T", "T"] (lanes of floats), "log2(a)";
    LOG10: ["T", "T"] (lanes of floats), "log10(a)";
    SIN: ["T", "T"] (lanes of floats), "sin(a)";
    COS: ["T", "T"] (lanes of floats), "cos(a)";
    TAN: ["T", "T"] (lanes of floats), "tan(a)";
    ASIN: ["T", "T"] (lanes of floats), "asin(a)";
    ACOS: ["T", "T"] (lanes of floats), "acos(a)";
    ATAN: ["T", "T"] (lanes of floats), "atan(a)";
    SINH: ["T", "T"] (lanes of floats), "sinh(a)";
    COSH: ["T", "T"] (lanes of floats), "cosh(a)";
    ASINH: ["T", "T"] (lanes of floats), "asinh(a)";
    ACOSH: ["T", "T"] (lanes of floats), "acosh(a)";
    ATANH: ["T", "T"] (lanes of floats), "atanh(a)";
    TANH: ["T", "T"] (lanes of floats), "tanh(a)";
    SIGMOID: ["T", "T"] (lanes of floats), "sigmoid(a)";
    ERF: ["T", "T"] (lanes of floats), "erf(a)";
    ERFC: ["T", "T"] (lanes of floats), "erfc(a)";
    ERFINV: ["T", "T"] (lanes of floats), "erfinv(a)";
    FLOOR: ["T", "T"] (lanes of floats), "floor(a)";
    CEIL: ["T", "T"] (lanes of floats), "ceil(a)";
    ROUND: ["T", "T"] (lanes of floats), "rint(a)";
    TRUNC: ["T", "T"] (lanes of floats), "trunc(a)";
    FRAC: ["T", "T"] (lanes of floats), "a - trunc(a)";
    BITWISE_NOT: ["T", "T"] (bits of integers), "sizeof(T) == 1 && (T)2 == (T)1 ? (T)!a : (T)~(i64)a";
    IS_NAN: ["bool", "T"] (lanes of floats), "is_nan(a)";
    IS_INF: ["bool", "T"] (lanes of floats), "absolute(a) == INFINITE(T)";
    IS_FINITE: ["bool", "T"] (lanes of floats), "absolute(a) < INFINITE(T)";
    LOGICAL_NOT: ["bool", "T"] (wrapping lanes of all), "a == (T)0";
    LGAMMA: ["T", "T"] (lanes of floats), "lgamma(a)";
    DIGAMMA: ["T", "T"] (lanes of floats), "(T)digamma((double)a)";
    POLYGAMMA: ["T", "T"] (lanes of floats), "(T)polygamma((double)n0, (double)a)", given numbers: [f64; 1];
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
