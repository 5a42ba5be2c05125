"""Functions of each pair of elements of two operands, of which one may be a number."""

from __future__ import annotations

import builtins

import tenure
from tenure._native import Tensor
from tenure.array_api._data_types import finfo, iinfo, isdtype
from tenure.array_api._manipulation import broadcast_arrays
from tenure.array_api._operands import Operand, binary, tensors

__all__ = [
    "add",
    "atan2",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "clip",
    "copysign",
    "divide",
    "equal",
    "floor_divide",
    "greater",
    "greater_equal",
    "hypot",
    "less",
    "less_equal",
    "logaddexp",
    "logical_and",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "nextafter",
    "not_equal",
    "pow",
    "remainder",
    "subtract",
]

#: Integers of the size of each floating-point dtype.
_BITS = {
    tenure.float16: tenure.int16,
    tenure.bfloat16: tenure.int16,
    tenure.float32: tenure.int32,
    tenure.float64: tenure.int64,
}


def add(x1: Operand, x2: Operand, /) -> Tensor:
    """Adds two operands."""
    return binary(tenure.add, x1, x2)


def atan2(x1: Operand, x2: Operand, /) -> Tensor:
    """Computes the angle of the point with the ordinate `x1` and the abscissa `x2`, from -π to π."""
    return tenure.atan2(*tensors(x1, x2))


def bitwise_and(x1: Operand, x2: Operand, /) -> Tensor:
    """Computes the bitwise and."""
    return binary(tenure.bitwise_and, x1, x2)


def bitwise_left_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """Shifts bits up and fills with zeros."""
    return binary(tenure.bitwise_left_shift, x1, x2)


def bitwise_or(x1: Operand, x2: Operand, /) -> Tensor:
    """Computes the bitwise or."""
    return binary(tenure.bitwise_or, x1, x2)


def bitwise_right_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """Shifts bits down and fills with the sign."""
    return binary(tenure.bitwise_right_shift, x1, x2)


def bitwise_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """Computes the bitwise exclusive or."""
    return binary(tenure.bitwise_xor, x1, x2)


def clip(x: Tensor, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Limits each element to the range from `min` to `max`. The result has the dtype of `x`."""
    if min is None and max is None:
        return x.clone()
    if min is not None:
        x = tenure.maximum(x, _bound(min, x))
    if max is not None:
        x = tenure.minimum(x, _bound(max, x))
    return x


def _bound(bound: Operand, x: Tensor) -> Tensor:
    """Returns a bound in the dtype of an array. A number beyond the dtype's range becomes the end of the range."""
    if isinstance(bound, Tensor):
        return bound.to(x.dtype)
    if isdtype(x.dtype, "integral"):
        limits = iinfo(x.dtype)
        bound = builtins.max(limits.min, builtins.min(bound, limits.max))
    return tenure.full((), bound, dtype=x.dtype, device=x.device)


def copysign(x1: Operand, x2: Operand, /) -> Tensor:
    """Computes the magnitude of `x1` with the sign of `x2`."""
    return binary(tenure.copysign, x1, x2)


def divide(x1: Operand, x2: Operand, /) -> Tensor:
    """Divides `x1` by `x2`. Integers are divided as floats, also a number that the dtype of `x2` does not hold."""
    return binary(tenure.div, x1 if isinstance(x1, Tensor) else float(x1), x2)


def equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Tells where two operands are equal."""
    return binary(tenure.eq, x1, x2)


def floor_divide(x1: Operand, x2: Operand, /) -> Tensor:
    """Computes the quotient, rounded down. Infinity divided by a number is infinity; in PyTorch it is NaN."""
    first, second = tensors(x1, x2)
    quotient = tenure.floor_divide(first, second)
    if not first.is_floating_point():
        return quotient
    is_finite = tenure.isfinite(first) & tenure.isfinite(second)
    return tenure.where(is_finite, quotient, tenure.floor(tenure.div(first, second)))


def greater(x1: Operand, x2: Operand, /) -> Tensor:
    """Tells where `x1` is greater than `x2`."""
    return binary(tenure.gt, x1, x2)


def greater_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Tells where `x1` is greater than or equal to `x2`."""
    return binary(tenure.ge, x1, x2)


def hypot(x1: Operand, x2: Operand, /) -> Tensor:
    """Computes the length of the hypotenuse of two legs."""
    return tenure.hypot(*tensors(x1, x2))


def less(x1: Operand, x2: Operand, /) -> Tensor:
    """Tells where `x1` is less than `x2`."""
    return binary(tenure.lt, x1, x2)


def less_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Tells where `x1` is less than or equal to `x2`."""
    return binary(tenure.le, x1, x2)


def logaddexp(x1: Operand, x2: Operand, /) -> Tensor:
    """Computes the logarithm of the sum of the exponentials."""
    return tenure.logaddexp(*tensors(x1, x2))


def logical_and(x1: Operand, x2: Operand, /) -> Tensor:
    """Tells where both operands are nonzero."""
    return binary(tenure.logical_and, x1, x2)


def logical_or(x1: Operand, x2: Operand, /) -> Tensor:
    """Tells where at least one operand is nonzero."""
    return binary(tenure.logical_or, x1, x2)


def logical_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """Tells where exactly one operand is nonzero."""
    return binary(tenure.logical_xor, x1, x2)


def maximum(x1: Operand, x2: Operand, /) -> Tensor:
    """Computes the larger element of each pair."""
    return binary(tenure.maximum, x1, x2)


def minimum(x1: Operand, x2: Operand, /) -> Tensor:
    """Computes the smaller element of each pair."""
    return binary(tenure.minimum, x1, x2)


def multiply(x1: Operand, x2: Operand, /) -> Tensor:
    """Multiplies two operands."""
    return binary(tenure.mul, x1, x2)


def nextafter(x1: Operand, x2: Operand, /) -> Tensor:
    """Returns the number next to `x1` in the direction of `x2` that the dtype has."""
    start, end = broadcast_arrays(*tensors(x1, x2))
    bits = start.contiguous().view(_BITS[start.dtype])
    # The bits of numbers of one sign, read as integers, are in the order of the magnitudes.
    grows = (start < end) == (start > 0)
    moved = tenure.where(grows, bits + 1, bits - 1).view(start.dtype)
    limits = finfo(start.dtype)
    from_zero = tenure.copysign(tenure.full_like(end, limits.smallest_normal * limits.eps), end)
    result = tenure.where(start == 0, from_zero, moved)
    result = tenure.where(start == end, end, result)
    return tenure.where(start.isnan() | end.isnan(), start + end, result)


def not_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Tells where two operands differ."""
    return binary(tenure.ne, x1, x2)


def pow(x1: Operand, x2: Operand, /) -> Tensor:
    """Raises `x1` to the power `x2`."""
    return binary(tenure.pow, x1, x2)


def remainder(x1: Operand, x2: Operand, /) -> Tensor:
    """Computes the remainder with the divisor's sign, also of zeros."""
    return binary(tenure.remainder, x1, x2)


def subtract(x1: Operand, x2: Operand, /) -> Tensor:
    """Subtracts `x2` from `x1`."""
    return binary(tenure.sub, x1, x2)
