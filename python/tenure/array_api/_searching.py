"""Selection, search, order and sets of elements."""

from __future__ import annotations

from typing import Literal, NamedTuple

import tenure
from tenure._native import Tensor
from tenure.array_api._operands import Operand, binary, tensors
from tenure.array_api._statistics import reduced

__all__ = [
    "argmax",
    "argmin",
    "argsort",
    "count_nonzero",
    "isin",
    "nonzero",
    "searchsorted",
    "sort",
    "take",
    "take_along_axis",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "where",
]


class UniqueAll(NamedTuple):
    """The distinct elements, the place of the first occurrence of each, the number of each input element among them,
    and how often each occurs: what `unique_all` returns."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The distinct elements, and how often each occurs: what `unique_counts` returns."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The distinct elements, and the number of each input element among them: what `unique_inverse` returns."""

    values: Tensor
    inverse_indices: Tensor


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Returns the index of the first largest element along an axis, or among all elements."""
    return tenure.argmax(x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Returns the index of the first smallest element along an axis, or among all elements."""
    return tenure.argmin(x, axis, keepdims)


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Returns the indices that sort the elements along an axis."""
    return tenure.argsort(x, axis, descending, stable)


def count_nonzero(x: Tensor, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """Counts the nonzero elements over axes."""
    return reduced(tenure.count_nonzero, x, axis, keepdims)


def isin(x1: Tensor | int, x2: Tensor | int, /, *, invert: bool = False) -> Tensor:
    """Tells for each element of `x1` whether it is among `x2`, or with `invert`, is not."""
    elements, among = tensors(x1, x2)
    return tenure.isin(elements, among, invert=invert)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Returns the indices of the nonzero elements, one array for each axis."""
    if x.ndim == 0:
        raise ValueError("nonzero needs an array with axes: reshape(x, (1,)) gives one to a single element")
    return tuple(tenure.nonzero(x, as_tuple=True))


def searchsorted(
    x1: Tensor, x2: Operand, /, *, side: Literal["left", "right"] = "left", sorter: Tensor | None = None
) -> Tensor:
    """Returns the places in the sorted vector `x1` at which the elements of `x2` keep it sorted.

    `sorter` holds the indices that sort `x1`.
    """
    if sorter is not None:
        x1 = x1.index_select(0, sorter)
    ordered, values = tensors(x1, x2)
    return tenure.searchsorted(ordered, values, side=side)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Sorts the elements along an axis."""
    values: Tensor = tenure.sort(x, axis, descending, stable)[0]
    return values


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Selects the entries of an axis at indices. Negative ones count from the end."""
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"take needs an axis, since the array has {x.ndim} axes")
        axis = 0
    axis %= x.ndim
    chosen = x.index_select(axis, _counted(indices, x.shape[axis]).reshape(-1))
    return chosen.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Selects elements along an axis, each by an index of its own. Negative ones count from the end."""
    return tenure.take_along_dim(x, _counted(indices, x.shape[axis]), axis)


def unique_all(x: Tensor, /) -> UniqueAll:
    """Returns the distinct elements with their places, numbers and counts."""
    values, inverse, counts = tenure.unique(x, return_inverse=True, return_counts=True)
    order = inverse.reshape(-1).argsort(stable=True)
    return UniqueAll(values, order.index_select(0, counts.cumsum(0) - counts), inverse, counts)


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Returns the distinct elements, and how often each occurs."""
    values, counts = tenure.unique(x, return_counts=True)
    return UniqueCounts(values, counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Returns the distinct elements, and the number of each input element among them."""
    values, inverse = tenure.unique(x, return_inverse=True)
    return UniqueInverse(values, inverse)


def unique_values(x: Tensor, /) -> Tensor:
    """Returns the distinct elements."""
    values: Tensor = tenure.unique(x)
    return values


def where(condition: Tensor, x1: Operand, x2: Operand, /) -> Tensor:
    """Selects elements of `x1` where a condition is true, and of `x2` elsewhere."""
    return binary(lambda chosen, other: tenure.where(condition, chosen, other), x1, x2)


def _counted(indices: Tensor, size: int) -> Tensor:
    """Returns indices of which none counts from the end."""
    indices = indices.to(tenure.int64)
    return tenure.where(indices < 0, indices + size, indices)
