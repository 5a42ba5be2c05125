"""Creation of arrays."""

from __future__ import annotations

import math
from typing import Any, Literal

import tenure
from tenure._native import Tensor, device, dtype
from tenure._native import asarray as _asarray
from tenure._native import from_dlpack as _from_dlpack

__all__ = [
    "arange",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "from_dlpack",
    "full",
    "full_like",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]

_Shape = int | tuple[int, ...]
_DType = dtype | None
_Device = device | str | None


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: _DType = None,
    device: _Device = None,
) -> Tensor:
    """Returns the numbers from `start` up to but without `stop`, `step` apart; up to `start` if `stop` is None.

    An interval against the direction of `step` has no numbers.
    """
    first, end = (0, start) if stop is None else (start, stop)
    if dtype is None:
        is_integer = all(isinstance(number, int) for number in (first, end, step))
        dtype = tenure.int64 if is_integer else tenure.get_default_dtype()
    if (end - first) * math.copysign(1, step) <= 0:
        return tenure.empty(0, dtype=dtype, device=_placed(device))
    return tenure.arange(first, end, step, dtype=dtype, device=_placed(device))


def asarray(obj: Any, /, *, dtype: _DType = None, device: _Device = None, copy: bool | None = None) -> Tensor:
    """Returns an array of an object's values, on the same memory if that is possible and `copy` is not True."""
    return _asarray(obj, dtype=dtype, device=device, copy=copy)


def empty(shape: _Shape, *, dtype: _DType = None, device: _Device = None) -> Tensor:
    """Returns an uninitialised array."""
    return tenure.empty(_sizes(shape), dtype=dtype or tenure.get_default_dtype(), device=_placed(device))


def empty_like(x: Tensor, /, *, dtype: _DType = None, device: _Device = None) -> Tensor:
    """Returns an uninitialised array of the shape of another."""
    return tenure.empty_like(x, dtype=dtype, device=device)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: _DType = None, device: _Device = None
) -> Tensor:
    """Returns a matrix with ones on the diagonal that is `k` above the main one, and zeros elsewhere."""
    n_cols = n_rows if n_cols is None else n_cols
    matrix = zeros((n_rows, n_cols), dtype=dtype, device=device)
    if -n_rows < k < n_cols:
        matrix.diagonal(k).fill_(1)
    return matrix


def from_dlpack(x: object, /, *, device: _Device = None, copy: bool | None = None) -> Tensor:
    """Returns an array on the memory of another library's array."""
    return _from_dlpack(x, device=device, copy=copy)


def full(shape: _Shape, fill_value: complex, *, dtype: _DType = None, device: _Device = None) -> Tensor:
    """Returns an array filled with a number, whose type decides the default dtype."""
    return tenure.full(_sizes(shape), _real(fill_value), dtype=dtype or _of_number(fill_value), device=_placed(device))


def full_like(x: Tensor, /, fill_value: complex, *, dtype: _DType = None, device: _Device = None) -> Tensor:
    """Returns an array of the shape of another, filled with a number."""
    return tenure.full_like(x, _real(fill_value), dtype=dtype, device=device)


def linspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    *,
    dtype: _DType = None,
    device: _Device = None,
    endpoint: bool = True,
) -> Tensor:
    """Returns `num` evenly spaced numbers from `start` to `stop`, which is among them if `endpoint`."""
    first, last = _real(start), _real(stop)
    dtype = dtype or tenure.get_default_dtype()
    if endpoint or num == 0:
        return tenure.linspace(first, last, num, dtype=dtype, device=_placed(device))
    return tenure.linspace(first, last, num + 1, dtype=dtype, device=_placed(device))[:-1]


def meshgrid(*arrays: Tensor, indexing: Literal["xy", "ij"] = "xy") -> tuple[Tensor, ...]:
    """Returns the coordinates of the points of a grid, one array for each of its dimensions."""
    return tuple(tenure.meshgrid(list(arrays), indexing=indexing)) if arrays else ()


def ones(shape: _Shape, *, dtype: _DType = None, device: _Device = None) -> Tensor:
    """Returns an array of ones."""
    return tenure.ones(_sizes(shape), dtype=dtype or tenure.get_default_dtype(), device=_placed(device))


def ones_like(x: Tensor, /, *, dtype: _DType = None, device: _Device = None) -> Tensor:
    """Returns an array of ones of the shape of another."""
    return tenure.ones_like(x, dtype=dtype, device=device)


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Returns matrices with zeros above the diagonal that is `k` above the main one."""
    return tenure.tril(x, k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Returns matrices with zeros below the diagonal that is `k` above the main one."""
    return tenure.triu(x, k)


def zeros(shape: _Shape, *, dtype: _DType = None, device: _Device = None) -> Tensor:
    """Returns an array of zeros."""
    return tenure.zeros(_sizes(shape), dtype=dtype or tenure.get_default_dtype(), device=_placed(device))


def zeros_like(x: Tensor, /, *, dtype: _DType = None, device: _Device = None) -> Tensor:
    """Returns an array of zeros of the shape of another."""
    return tenure.zeros_like(x, dtype=dtype, device=device)


def _sizes(shape: _Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _placed(device: _Device) -> device | str:
    return "cpu" if device is None else device


def _real(number: complex) -> float:
    if isinstance(number, complex):
        raise TypeError("Tenure has no complex numbers: keep the real and the imaginary part in two arrays")
    return number


def _of_number(number: complex) -> dtype:
    if isinstance(number, bool):
        return tenure.bool
    return tenure.int64 if isinstance(number, int) else tenure.get_default_dtype()
