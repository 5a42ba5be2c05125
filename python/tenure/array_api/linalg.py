"""The extension `linalg` of the Python array API standard, but for `eig` and `eigvals`, which need complex numbers."""

from __future__ import annotations

from typing import Any, Literal

import tenure
from tenure import linalg as _linalg
from tenure._native import Tensor, dtype
from tenure.array_api._linear_algebra import matmul, matrix_transpose, tensordot, vecdot
from tenure.array_api._operands import tensors as _tensors
from tenure.array_api._statistics import sum as _sum

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """Computes the lower triangular factors of symmetric positive definite matrices, or the upper ones."""
    return _linalg.cholesky(x, upper=upper)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Computes the cross products of vectors of three elements along an axis."""
    first, second = _tensors(x1, x2)
    if axis < 0:
        # Missing axes are the first ones.
        first, second = (x[(None,) * (max(first.ndim, second.ndim) - x.ndim)] for x in (first, second))
    return _linalg.cross(first, second, dim=axis)


def det(x: Tensor, /) -> Tensor:
    """Computes determinants."""
    return _linalg.det(x)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """Returns the diagonals of matrices: `offset` above the main one, or below it if it is negative."""
    return _linalg.diagonal(x, offset=offset)


def eigh(x: Tensor, /) -> Any:
    """Computes the eigenvalues and eigenvectors of symmetric matrices."""
    return _linalg.eigh(x)


def eigvalsh(x: Tensor, /) -> Tensor:
    """Computes the eigenvalues of symmetric matrices."""
    return _linalg.eigvalsh(x)


def inv(x: Tensor, /) -> Tensor:
    """Computes inverse matrices."""
    return _linalg.inv(x)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: float | Literal["fro", "nuc"] | None = "fro") -> Tensor:
    """Computes the norms of matrices."""
    return _linalg.matrix_norm(x, "fro" if ord is None else ord, keepdim=keepdims)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """Multiplies matrices with themselves, `n` times in all; their inverses if `n` is negative."""
    return _linalg.matrix_power(x, n)


def matrix_rank(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """Counts the singular values of more than `rtol` times the largest."""
    return _linalg.matrix_rank(x, rtol=rtol)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Computes the outer product of two vectors."""
    return tenure.outer(*_tensors(x1, x2))


def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """Computes pseudoinverses, without the singular values of at most `rtol` times the largest."""
    return _linalg.pinv(x, rtol=rtol)


def qr(x: Tensor, /, *, mode: Literal["reduced", "complete"] = "reduced") -> Any:
    """Computes orthogonal and upper triangular factors."""
    return _linalg.qr(x, mode)


def slogdet(x: Tensor, /) -> Any:
    """Computes the signs of determinants, and the logarithms of their absolute values."""
    return _linalg.slogdet(x)


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Solves systems of linear equations. `x2` has matrices, or it is one vector."""
    first, second = _tensors(x1, x2)
    if second.ndim > 1:
        # PyTorch takes a batch of vectors too, which has as many axes as a matrix.
        second = second[(None,) * (first.ndim - second.ndim)]
    return _linalg.solve(first, second)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> Any:
    """Computes singular values and vectors."""
    return _linalg.svd(x, full_matrices)


def svdvals(x: Tensor, /) -> Tensor:
    """Computes singular values."""
    return _linalg.svdvals(x)


def trace(x: Tensor, /, *, offset: int = 0, dtype: dtype | None = None) -> Tensor:
    """Computes the sums of the diagonals of matrices."""
    return _sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vector_norm(
    x: Tensor, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, ord: float = 2
) -> Tensor:
    """Computes the norms of vectors along axes, or of all elements."""
    if axis == ():
        return x.abs()
    return _linalg.vector_norm(x, ord, axis, keepdims)
