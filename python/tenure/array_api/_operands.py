"""Operands of functions: numbers of Python beside arrays, and arrays of several dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tenure
from tenure._native import Tensor
from tenure.array_api._data_types import result_type, with_number

Operand = Tensor | float


def binary(function: Callable[[Tensor, Operand], Tensor], x1: Operand, x2: Operand) -> Tensor:
    """Computes a function of two operands in the dtype that they promote to.

    PyTorch's rule is another one: there, an array without dimensions changes no dtype.
    """
    return function(*pair(x1, x2))


def pair(x1: Operand, x2: Operand) -> tuple[Tensor, Operand]:
    """Returns two operands in the dtype that they promote to. The second may stay a number."""
    if isinstance(x1, Tensor) and isinstance(x2, Tensor):
        if x1.dtype == x2.dtype:
            return x1, x2
        dtype = tenure.promote_types(x1.dtype, x2.dtype)
        return x1.to(dtype), x2.to(dtype)
    if isinstance(x1, Tensor):
        return x1.to(with_number(x1.dtype, x2)), x2
    if not isinstance(x2, Tensor):
        raise TypeError(f"one of two operands must be an array, not {type(x1).__name__} and {type(x2).__name__}")
    dtype = with_number(x2.dtype, x1)
    return tenure.full((), x1, dtype=dtype, device=x2.device), x2.to(dtype)


def tensors(x1: Operand, x2: Operand) -> tuple[Tensor, Tensor]:
    """Returns two operands as tensors of the dtype that they promote to."""
    first, second = pair(x1, x2)
    if not isinstance(second, Tensor):
        second = tenure.full((), second, dtype=first.dtype, device=first.device)
    return first, second


def alike(arrays: Sequence[Tensor]) -> list[Tensor]:
    """Converts arrays to the dtype that they promote to."""
    dtype = result_type(*arrays)
    return [array.to(dtype) for array in arrays]


def axes_of(axis: int | tuple[int, ...] | None, ndim: int) -> list[int]:
    """Returns axes as a list: all if `axis` is None."""
    if axis is None:
        return list(range(ndim))
    return [axis] if isinstance(axis, int) else list(axis)
