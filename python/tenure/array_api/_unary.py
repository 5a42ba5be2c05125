"""Functions of each element of one array."""

from __future__ import annotations

import tenure
from tenure._native import Tensor

__all__ = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bitwise_invert",
    "ceil",
    "conj",
    "cos",
    "cosh",
    "exp",
    "expm1",
    "floor",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log10",
    "log1p",
    "log2",
    "logical_not",
    "negative",
    "positive",
    "real",
    "reciprocal",
    "round",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
]


def abs(x: Tensor, /) -> Tensor:
    """Computes the absolute value of each element."""
    return tenure.abs(x)


def acos(x: Tensor, /) -> Tensor:
    """Computes the arccosine, in radians."""
    return tenure.acos(x)


def acosh(x: Tensor, /) -> Tensor:
    """Computes the inverse of the hyperbolic cosine."""
    return tenure.acosh(x)


def asin(x: Tensor, /) -> Tensor:
    """Computes the arcsine, in radians."""
    return tenure.asin(x)


def asinh(x: Tensor, /) -> Tensor:
    """Computes the inverse of the hyperbolic sine."""
    return tenure.asinh(x)


def atan(x: Tensor, /) -> Tensor:
    """Computes the arctangent, in radians."""
    return tenure.atan(x)


def atanh(x: Tensor, /) -> Tensor:
    """Computes the inverse of the hyperbolic tangent."""
    return tenure.atanh(x)


def bitwise_invert(x: Tensor, /) -> Tensor:
    """Inverts every bit."""
    return tenure.bitwise_not(x)


def ceil(x: Tensor, /) -> Tensor:
    """Rounds up to an integer."""
    return tenure.ceil(x)


def conj(x: Tensor, /) -> Tensor:
    """Returns the complex conjugate: the array itself, since its elements are real."""
    return x


def cos(x: Tensor, /) -> Tensor:
    """Computes the cosine of an angle in radians."""
    return tenure.cos(x)


def cosh(x: Tensor, /) -> Tensor:
    """Computes the hyperbolic cosine."""
    return tenure.cosh(x)


def exp(x: Tensor, /) -> Tensor:
    """Computes e to the power of each element."""
    return tenure.exp(x)


def expm1(x: Tensor, /) -> Tensor:
    """Computes e to the power of each element, minus 1, precisely also near 0."""
    return tenure.expm1(x)


def floor(x: Tensor, /) -> Tensor:
    """Rounds down to an integer."""
    return tenure.floor(x)


def imag(x: Tensor, /) -> Tensor:
    """Returns the imaginary part: zeros, since the elements are real."""
    return tenure.zeros_like(x)


def isfinite(x: Tensor, /) -> Tensor:
    """Tells where an element is neither infinite nor NaN."""
    return tenure.isfinite(x)


def isinf(x: Tensor, /) -> Tensor:
    """Tells where an element is infinite."""
    return tenure.isinf(x)


def isnan(x: Tensor, /) -> Tensor:
    """Tells where an element is NaN."""
    return tenure.isnan(x)


def log(x: Tensor, /) -> Tensor:
    """Computes the natural logarithm."""
    return tenure.log(x)


def log10(x: Tensor, /) -> Tensor:
    """Computes the logarithm to base 10."""
    return tenure.log10(x)


def log1p(x: Tensor, /) -> Tensor:
    """Computes the natural logarithm of 1 plus each element, precisely also near 0."""
    return tenure.log1p(x)


def log2(x: Tensor, /) -> Tensor:
    """Computes the logarithm to base 2."""
    return tenure.log2(x)


def logical_not(x: Tensor, /) -> Tensor:
    """Tells where an element is zero."""
    return tenure.logical_not(x)


def negative(x: Tensor, /) -> Tensor:
    """Negates each element."""
    return tenure.neg(x)


def positive(x: Tensor, /) -> Tensor:
    """Returns the array itself."""
    return tenure.positive(x)


def real(x: Tensor, /) -> Tensor:
    """Returns the real part: the array itself, since its elements are real."""
    return x


def reciprocal(x: Tensor, /) -> Tensor:
    """Computes 1 divided by each element."""
    return tenure.reciprocal(x)


def round(x: Tensor, /) -> Tensor:
    """Rounds to the nearest integer, and halves to the even integer."""
    return tenure.round(x)


def sign(x: Tensor, /) -> Tensor:
    """Computes the sign of each element: 1, 0 or -1, and NaN of NaN, of which PyTorch's is 0."""
    signs = tenure.sign(x)
    return tenure.where(tenure.isnan(x), x, signs) if x.is_floating_point() else signs


def signbit(x: Tensor, /) -> Tensor:
    """Tells where an element is negative, -0.0 included."""
    return tenure.signbit(x)


def sin(x: Tensor, /) -> Tensor:
    """Computes the sine of an angle in radians."""
    return tenure.sin(x)


def sinh(x: Tensor, /) -> Tensor:
    """Computes the hyperbolic sine."""
    return tenure.sinh(x)


def sqrt(x: Tensor, /) -> Tensor:
    """Computes the square root."""
    return tenure.sqrt(x)


def square(x: Tensor, /) -> Tensor:
    """Computes the square of each element."""
    return tenure.square(x)


def tan(x: Tensor, /) -> Tensor:
    """Computes the tangent of an angle in radians."""
    return tenure.tan(x)


def tanh(x: Tensor, /) -> Tensor:
    """Computes the hyperbolic tangent."""
    return tenure.tanh(x)


def trunc(x: Tensor, /) -> Tensor:
    """Rounds towards zero."""
    return tenure.trunc(x)
