"""Reductions over axes, and sums and products along one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tenure
from tenure._native import Tensor, dtype
from tenure.array_api._data_types import summed
from tenure.array_api._operands import alike

__all__ = [
    "all",
    "any",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
]

_Axis = int | tuple[int, ...] | None


def reduced(function: Callable[..., Tensor], x: Tensor, axis: _Axis, keepdims: bool, **options: Any) -> Tensor:
    """Reduces an array over axes: over all if `axis` is None, and over none if it is empty, as PyTorch never does."""
    if axis is None:
        dims: tuple[int, ...] = tuple(range(x.ndim))
    else:
        dims = (axis,) if isinstance(axis, int) else axis
    if not dims:
        return function(x.unsqueeze(0), dim=0, **options)
    return function(x, dim=dims, keepdim=keepdims, **options)


def all(x: Tensor, /, *, axis: _Axis = None, keepdims: bool = False) -> Tensor:
    """Tells whether all elements over axes are nonzero."""
    return reduced(tenure.all, x.to(tenure.bool), axis, keepdims)


def any(x: Tensor, /, *, axis: _Axis = None, keepdims: bool = False) -> Tensor:
    """Tells whether any element over axes is nonzero."""
    return reduced(tenure.any, x.to(tenure.bool), axis, keepdims)


def cumulative_prod(
    x: Tensor, /, *, axis: int | None = None, dtype: dtype | None = None, include_initial: bool = False
) -> Tensor:
    """Computes the product of the elements up to each one along an axis, from 1 on if `include_initial`."""
    return _cumulative(tenure.cumprod, 1, x, axis, dtype, include_initial)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: dtype | None = None, include_initial: bool = False
) -> Tensor:
    """Computes the sum of the elements up to each one along an axis, from 0 on if `include_initial`."""
    return _cumulative(tenure.cumsum, 0, x, axis, dtype, include_initial)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Computes the differences of neighbours along an axis, `n` times."""
    parts = [part for part in (prepend, x, append) if part is not None]
    result = tenure.cat(alike(parts), axis) if len(parts) > 1 else x
    for _ in range(n):
        size = result.size(axis)
        if size == 0:
            break
        result = result.narrow(axis, 1, size - 1) - result.narrow(axis, 0, size - 1)
    return result


def max(x: Tensor, /, *, axis: _Axis = None, keepdims: bool = False) -> Tensor:
    """Computes the largest element over axes."""
    return reduced(tenure.amax, x, axis, keepdims)


def mean(x: Tensor, /, *, axis: _Axis = None, keepdims: bool = False) -> Tensor:
    """Computes the mean over axes."""
    return reduced(tenure.mean, x, axis, keepdims)


def min(x: Tensor, /, *, axis: _Axis = None, keepdims: bool = False) -> Tensor:
    """Computes the smallest element over axes."""
    return reduced(tenure.amin, x, axis, keepdims)


def prod(x: Tensor, /, *, axis: _Axis = None, dtype: dtype | None = None, keepdims: bool = False) -> Tensor:
    """Computes the product over axes."""
    return reduced(tenure.prod, x, axis, keepdims, dtype=dtype or summed(x.dtype))


def std(x: Tensor, /, *, axis: _Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Computes the standard deviation over axes, of the whole population by default."""
    return reduced(tenure.std, x, axis, keepdims, correction=correction)


def sum(x: Tensor, /, *, axis: _Axis = None, dtype: dtype | None = None, keepdims: bool = False) -> Tensor:
    """Computes the sum over axes."""
    return reduced(tenure.sum, x, axis, keepdims, dtype=dtype or summed(x.dtype))


def var(x: Tensor, /, *, axis: _Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Computes the variance over axes, of the whole population by default."""
    return reduced(tenure.var, x, axis, keepdims, correction=correction)


def _cumulative(
    function: Callable[..., Tensor],
    initial: int,
    x: Tensor,
    axis: int | None,
    dtype: dtype | None,
    include_initial: bool,
) -> Tensor:
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"an axis is needed, since the array has {x.ndim} axes")
        axis = 0
    dtype = dtype or summed(x.dtype)
    result = function(x, axis, dtype=dtype)
    if include_initial:
        shape = list(x.shape)
        shape[axis] = 1
        result = tenure.cat([tenure.full(shape, initial, dtype=dtype, device=x.device), result], axis)
    return result
