"""Products of matrices and vectors."""

from __future__ import annotations

from collections.abc import Sequence

import tenure
from tenure._native import Tensor
from tenure.array_api._operands import tensors

__all__ = ["matmul", "matrix_transpose", "tensordot", "vecdot"]


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Computes the matrix product."""
    return tenure.matmul(*tensors(x1, x2))


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Transposes the matrices of the last two axes."""
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose needs at least two axes, not {x.ndim}")
    return x.mT


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """Sums products over axes: the last `axes` of `x1` and the first of `x2`, or pairs of axes."""
    return tenure.tensordot(*tensors(x1, x2), axes)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Computes the dot products of the vectors along an axis."""
    first, second = tensors(x1, x2)
    if first.size(axis) != second.size(axis):
        raise ValueError(f"the vectors have different lengths: {first.size(axis)} and {second.size(axis)}")
    row = first.movedim(axis, -1).unsqueeze(-2)
    column = second.movedim(axis, -1).unsqueeze(-1)
    return tenure.matmul(row, column).squeeze((-2, -1))
