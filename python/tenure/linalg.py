"""Linear algebra by the names of `torch.linalg`: decompositions, solvers, norms and products.

Matrices are in the last two dimensions; the dimensions before are batches. Decompositions and solvers take `float32`
and `float64`. Matrices of a CUDA device are computed on the host, in the order of the thread's stream; cuSOLVER is not
used. `eig` and `eigvals` are missing, since their results are complex numbers.

Examples
--------
>>> import tenure
>>> a = tenure.tensor([[4.0, 2.0], [2.0, 3.0]])
>>> tenure.linalg.solve(a, tenure.tensor([8.0, 7.0]))
tensor([1.2500, 1.5000])
>>> tenure.linalg.eigvalsh(a)
tensor([1.4384, 5.5616])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, overload

from tenure import _operations as _ops
from tenure._errors import Error, LinAlgError
from tenure._native import Tensor, dtype, float64
from tenure._native import tensor as _tensor

__all__ = [
    "LinAlgError",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
    "vector_norm",
]

#: A tolerance: one number, or a tensor with one for each matrix.
Tolerance = float | Tensor | None


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """Computes the lower triangular L of symmetric positive definite matrices A = L·Lᵀ; the upper one if `upper`.

    Raises
    ------
    LinAlgError
        A matrix is not positive definite.
    """
    return _ops.linalg_cholesky(A, upper)


def qr(A: Tensor, mode: Literal["reduced", "complete", "r"] = "reduced") -> Any:
    """Computes orthogonal Q and upper triangular R with A = Q·R, as a tuple with the names `Q` and `R`.

    Parameters
    ----------
    A : Tensor
    mode : {"reduced", "complete", "r"}, default "reduced"
        Q has as many columns as A has singular values, or as A has rows, or is empty.
    """
    return _ops.linalg_qr(A, mode)


def svd(A: Tensor, full_matrices: bool = True) -> Any:
    """Computes A = U·diag(S)·Vᵀ, as a tuple with the names `U`, `S` and `Vh`.

    The gradients are defined for functions that do not depend on the vectors' signs, if the singular values differ.
    """
    return _ops.linalg_svd(A, full_matrices)


def svdvals(A: Tensor) -> Tensor:
    """Computes singular values in descending order."""
    return _ops.linalg_svdvals(A)


def eigh(A: Tensor, UPLO: str = "L") -> Any:
    """Computes eigenvalues and eigenvectors of symmetric matrices, as a tuple with these names.

    Parameters
    ----------
    A : Tensor
    UPLO : {"L", "U"}, default "L"
        The triangle that is read.
    """
    return _ops.linalg_eigh(A, UPLO)


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """Computes the eigenvalues of symmetric matrices in ascending order."""
    return _ops.linalg_eigvalsh(A, UPLO)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """Solves A·X = B, or X·A = B unless `left`. B has matrices, or one vector for each matrix of A.

    Raises
    ------
    LinAlgError
        A matrix is singular.
    """
    return _ops.linalg_solve(A, B, left)


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """Solves A·X = B, or X·A = B unless `left`, for triangular matrices A."""
    return _ops.linalg_solve_triangular(A, B, upper, left, unitriangular)


def inv(A: Tensor) -> Tensor:
    """Computes inverse matrices.

    Raises
    ------
    LinAlgError
        A matrix is singular.
    """
    return _ops.linalg_inv(A)


def det(A: Tensor) -> Tensor:
    """Computes determinants."""
    return _ops.det(A)


def slogdet(A: Tensor) -> Any:
    """Computes signs of determinants and logarithms of their sizes, as a tuple with the names `sign`, `logabsdet`."""
    return _ops.slogdet(A)


def pinv(A: Tensor, *, atol: Tolerance = None, rtol: Tolerance = None, hermitian: bool = False) -> Tensor:
    """Computes pseudoinverses, without the singular values of at most `atol`, or `rtol` times the largest."""
    return _ops.linalg_pinv(A, _limit(A, atol), _limit(A, rtol), hermitian)


def matrix_rank(A: Tensor, *, atol: Tolerance = None, rtol: Tolerance = None, hermitian: bool = False) -> Tensor:
    """Counts the singular values of more than `atol`, and `rtol` times the largest."""
    return _ops.linalg_matrix_rank(A, _limit(A, atol), _limit(A, rtol), hermitian)


def _limit(A: Tensor, tolerance: Tolerance) -> Tensor | None:
    """Returns a tolerance as a tensor."""
    if tolerance is None or isinstance(tolerance, Tensor):
        return tolerance
    return _tensor(float(tolerance), dtype=float64, device=A.device)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """Multiplies matrices with themselves, `n` times in all; their inverses if `n` is negative."""
    return _ops.matrix_power(A, n)


def matrix_exp(A: Tensor) -> Tensor:
    """Computes the exponentials of matrices."""
    return _ops.matrix_exp(A)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Computes the matrix product."""
    return _ops.matmul(input, other)


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Computes the cross products of vectors of three elements along a dimension."""
    return _ops.cross(input, other, dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Returns the diagonals of matrices, as a view."""
    return _ops.diagonal(A, offset, dim1, dim2)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Computes the dot products of vectors along a dimension, with broadcasting in the others."""
    if x.dtype != y.dtype:
        raise Error(
            f"linalg.vecdot: Expected x and y to have the same dtype, but found x of type {x.dtype} and y of type "
            f"{y.dtype} instead"
        )
    return (x * y).sum(dim)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """Multiplies a chain of matrices, in the order that takes the fewest multiplications of numbers.

    The first and the last may be vectors.
    """
    if len(tensors) < 2:
        raise Error(f"multi_dot(): expected at least 2 tensors but got {len(tensors)}")
    chain = list(tensors)
    is_row, is_column = chain[0].ndim == 1, chain[-1].ndim == 1
    chain[0] = chain[0].unsqueeze(0) if is_row else chain[0]
    chain[-1] = chain[-1].unsqueeze(1) if is_column else chain[-1]
    for index, matrix in enumerate(chain):
        if matrix.ndim != 2:
            raise Error(f"multi_dot(): tensor {index} must be 2D but got {matrix.ndim}D")
    product = _product(chain, _cuts([chain[0].shape[0], *(matrix.shape[1] for matrix in chain)]), 0, len(chain) - 1)
    product = product.squeeze(0) if is_row else product
    return product.squeeze(-1) if is_column else product


def _cuts(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Returns where to cut each part of a chain of matrices, by the first and the last matrix of the part."""
    count = len(sizes) - 1
    costs = {(i, i): 0 for i in range(count)}
    cuts: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost, cut = min(
                (costs[i, k] + costs[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )
            costs[i, j], cuts[i, j] = cost, cut
    return cuts


def _product(chain: Sequence[Tensor], cuts: dict[tuple[int, int], int], i: int, j: int) -> Tensor:
    """Multiplies the matrices from `i` to `j`."""
    if i == j:
        return chain[i]
    cut = cuts[i, j]
    return _product(chain, cuts, i, cut) @ _product(chain, cuts, cut + 1, j)


def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: dtype | None = None,
) -> Tensor:
    """Computes the norms of vectors: over dimensions, or of all elements.

    Parameters
    ----------
    x : Tensor
    ord : float, default 2
        The order: any number, `inf` or `-inf`.
    dim : int or sequence of int, default None
        The dimensions of the vectors. Default: all.
    keepdim : bool, default False
        Whether these dimensions stay, with size 1.
    dtype : dtype, default None
        The dtype that it is computed in.
    """
    x = x if dtype is None else x.to(dtype)
    if not x.dtype.is_floating_point:
        raise Error(
            f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {x.dtype}: convert it first"
        )
    return _ops.vector_norm(x, ord, [] if dim is None else dim, keepdim)


#: The orders of matrix norms, by the dimension that is summed: rows for 1, columns for infinity.
_SUMS = {1: 0, -1: 0, math.inf: 1, -math.inf: 1}


@overload
def matrix_norm(
    A: Tensor, ord: float = ..., dim: Sequence[int] = ..., keepdim: bool = ..., *, dtype: dtype | None = ...
) -> Tensor: ...
@overload
def matrix_norm(
    A: Tensor, ord: str = ..., dim: Sequence[int] = ..., keepdim: bool = ..., *, dtype: dtype | None = ...
) -> Tensor: ...
def matrix_norm(
    A: Tensor,
    ord: float | str = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: dtype | None = None,
) -> Tensor:
    """Computes the norms of matrices.

    Parameters
    ----------
    A : Tensor
    ord : {"fro", "nuc", inf, -inf, 1, -1, 2, -2}, default "fro"
        The root of the sum of squares; the sum of singular values; the largest or smallest sum of a row (`inf`) or of
        a column (1); the largest or smallest singular value (2).
    dim : pair of int, default (-2, -1)
        The dimensions of the rows and of the columns.
    keepdim : bool, default False
        Whether these dimensions stay, with size 1.
    dtype : dtype, default None
        The dtype that it is computed in.
    """
    if A.ndim < 2:
        raise Error("linalg.matrix_norm: The input tensor A must have at least 2 dimensions.")
    A = A if dtype is None else A.to(dtype)
    if not A.dtype.is_floating_point:
        raise Error(f"linalg.matrix_norm: Expected a floating point or complex tensor as input. Got {A.dtype}")
    dims = [int(place) for place in dim]
    if len(dims) != 2:
        raise Error(f"linalg.matrix_norm: dim must be a 2-tuple. Got {tuple(dims)}")
    rows, columns = (place % A.ndim if -A.ndim <= place < A.ndim else place for place in dims)
    if rows == columns:
        raise Error(f"linalg.matrix_norm: dims must be different. Got ({dims[0]}, {dims[1]})")
    if ord == "fro":
        return _ops.vector_norm(A, 2.0, [rows, columns], keepdim)
    if isinstance(ord, str) and ord != "nuc" or not isinstance(ord, str) and ord not in (*_SUMS, 2, -2):
        raise Error(f"linalg.matrix_norm: Order {ord} not supported.")
    A = A.movedim((rows, columns), (-2, -1))
    if ord == "nuc":
        norms = svdvals(A).sum(-1)
    elif ord in (2, -2):
        norms = _extreme(svdvals(A), ord)
    else:
        norms = _extreme(A.abs().sum(-1 if _SUMS[float(ord)] else -2), ord)
    if keepdim:
        for place in sorted((rows, columns)):
            norms = norms.unsqueeze(place)
    return norms


def _extreme(values: Tensor, ord: float | str) -> Tensor:
    """Returns the largest values of the last dimension, or the smallest if the order is negative."""
    if isinstance(ord, str) or ord > 0:
        return values.amax(-1) if values.shape[-1] else values.sum(-1)
    return values.amin(-1)


def norm(
    A: Tensor,
    ord: float | str | None = None,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: dtype | None = None,
) -> Tensor:
    """Computes the norms of vectors or of matrices.

    It is `matrix_norm` for two dimensions and an order, else `vector_norm`: of all elements for no order and no
    dimensions.
    """
    if ord is None:
        return vector_norm(A, 2, dim, keepdim, dtype=dtype)
    dims = [dim] if isinstance(dim, int) else dim
    if dims is None:
        if A.ndim not in (1, 2):
            raise Error(f"linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got {A.ndim}D.")
        dims = range(A.ndim)
    if len(dims) == 2:
        return matrix_norm(A, ord, dims, keepdim, dtype=dtype)
    if len(dims) != 1:
        raise Error(f"linalg.norm: If dim is specified, it must be of length 1 or 2. Got {list(dims)}")
    if isinstance(ord, str):
        raise Error(f"linalg.norm: Order {ord} needs two dimensions.")
    return vector_norm(A, ord, dims, keepdim, dtype=dtype)


def cond(A: Tensor, p: float | str | None = None) -> Tensor:
    """Computes the condition numbers of matrices: the norm of each, times the norm of its inverse.

    Parameters
    ----------
    A : Tensor
    p : order of `matrix_norm`, default 2
        With 2 and -2, the matrices may have any sizes.
    """
    if A.ndim < 2:
        raise Error("linalg.cond: The input tensor must have at least 2 dimensions.")
    if p is None or p in (2, -2):
        values = svdvals(A)
        if not values.shape[-1]:
            return values.sum(-1)
        largest, smallest = values[..., 0], values[..., -1]
        return smallest / largest if p == -2 else largest / smallest
    if A.shape[-2] != A.shape[-1]:
        raise Error(
            f"linalg.cond(ord={p}): A must be batches of square matrices, but they are {A.shape[-2]} by "
            f"{A.shape[-1]} matrices"
        )
    of_matrix = matrix_norm(A, p)
    try:
        return of_matrix * matrix_norm(inv(A), p)
    except LinAlgError:
        if A.ndim > 2:
            raise
        return of_matrix * math.inf


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """Computes the inverse of `tensordot` by A: of the matrix that has the first `ind` dimensions of A as its rows."""
    if ind <= 0:
        raise Error("Expected a strictly positive integer for 'ind'")
    rows, columns = A.shape[:ind], A.shape[ind:]
    if math.prod(rows) != math.prod(columns):
        raise Error(
            f"Expected self to satisfy the requirement prod(A.shape[ind:]) == prod(A.shape[:ind]), got {A.shape}"
        )
    return inv(A.reshape(math.prod(rows), -1)).reshape(*columns, *rows)


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """Solves tensordot(A, X, X.ndim) = B.

    Parameters
    ----------
    A, B : Tensor
    dims : sequence of int, default None
        Dimensions of A that are moved to its end first.
    """
    if dims is not None:
        A = A.movedim(tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    sizes = A.shape[B.ndim :]
    return solve(A.reshape(B.numel(), -1), B.reshape(-1)).reshape(sizes)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Returns the matrices whose columns are the powers 0 to `N` - 1 of the elements of vectors."""
    if x.ndim < 1:
        raise Error("linalg.vander: x must have at least one dimension")
    count = x.shape[-1] if N is None else N
    if count <= 1:
        raise Error("N must be greater than 1.")
    powers = x.unsqueeze(-1).expand(*x.shape, count - 1).cumprod(-1)
    return _ops.cat([_ops.ones_like(powers[..., :1]), powers], -1)
