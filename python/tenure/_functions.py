"""Functions that the table of operations does not express."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenure import _operations as _ops
from tenure._native import Tensor, asarray, device, dtype, from_dlpack


def as_tensor(data: Any, dtype: dtype | None = None, device: device | str | None = None) -> Tensor:
    """Returns a tensor of an object's values, on the same memory if that is possible: `asarray`.

    Parameters
    ----------
    data : number, sequence, array or Tensor
    dtype : dtype, default None
    device : device, default None
    """
    return asarray(data, dtype=dtype, device=device)


def from_numpy(array: Any) -> Tensor:
    """Returns a tensor on the memory of `array`, an array of NumPy."""
    return from_dlpack(array)


def is_tensor(obj: Any) -> bool:
    """Returns whether `obj` is a tensor."""
    return isinstance(obj, Tensor)


def tensordot(a: Tensor, b: Tensor, dims: int | Tensor | Sequence[Any] = 2) -> Tensor:
    """Sums products over dimensions of two tensors.

    Parameters
    ----------
    a, b : Tensor
    dims : int or pair of sequences of int, default 2
        The number of dimensions: the last of `a` and the first of `b`. Or these dimensions of `a`, and those of `b`.
    """
    if isinstance(dims, (int, Tensor)):
        return _ops.tensordot(a, b, int(dims))
    of_a, of_b = dims
    return _ops.tensordot(a, b, of_a, of_b)
