//! Functions of one number.

use super::elementwise::expressions;

expressions! {
    of unary:
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
}
