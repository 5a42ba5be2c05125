"""Data sets: collections of samples, by index or in an order of their own."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Generic, TypeVar

from tenure._native import Generator, Tensor
from tenure._operations import randperm

_T_co = TypeVar("_T_co", covariant=True)
_T = TypeVar("_T")


class Dataset(Generic[_T_co]):
    """Samples by index: a subclass has `__getitem__`, and `__len__` for samplers and the loader.

    A subclass may have `__getitems__`, which takes a list of indices and returns their samples.
    """

    def __getitem__(self, index: Any) -> _T_co:
        raise NotImplementedError(f"{type(self).__name__} needs a method __getitem__")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset[Any]:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[_T_co]):
    """Samples in an order of their own: a subclass has `__iter__`.

    With several workers, each iterates over its own copy: `get_worker_info` tells which part is whose.
    """

    def __iter__(self) -> Iterator[_T_co]:
        raise NotImplementedError(f"{type(self).__name__} needs a method __iter__")

    def __add__(self, other: Dataset[Any]) -> ChainDataset[Any]:  # type: ignore[override]
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """The entries of tensors' first dimension, which has the same size in all.

    Parameters
    ----------
    *tensors : Tensor
    """

    def __init__(self, *tensors: Tensor) -> None:
        if not tensors:
            raise ValueError("TensorDataset needs a tensor")
        if any(tensor.shape[0] != tensors[0].shape[0] for tensor in tensors):
            sizes = [tensor.shape[0] for tensor in tensors]
            raise ValueError(f"the tensors' first dimensions have different sizes: {sizes}")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        size: int = self.tensors[0].shape[0]
        return size


class ConcatDataset(Dataset[_T_co]):
    """The samples of data sets one after another, by index.

    Parameters
    ----------
    datasets : iterable of Dataset
    """

    def __init__(self, datasets: Iterable[Dataset[_T_co]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset needs a data set")
        if any(isinstance(dataset, IterableDataset) for dataset in self.datasets):
            raise TypeError("ConcatDataset takes no IterableDataset: use ChainDataset")
        self.cumulative_sizes = list(accumulate(len(dataset) for dataset in self.datasets))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> _T_co:
        position = index + len(self) if index < 0 else index
        if position < 0:
            raise ValueError(f"the index {index} is out of range for {len(self)} samples")
        which = bisect_right(self.cumulative_sizes, position)
        if which == len(self.datasets):
            raise IndexError(f"the index {index} is out of range for {len(self)} samples")
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][position - before]


class ChainDataset(IterableDataset[_T_co]):
    """The samples of iterable data sets one after another.

    Parameters
    ----------
    datasets : iterable of IterableDataset
    """

    def __init__(self, datasets: Iterable[Dataset[_T_co]]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[_T_co]:
        for dataset in self.datasets:
            if not isinstance(dataset, IterableDataset):
                raise TypeError(f"ChainDataset takes IterableDatasets, not {type(dataset).__name__}")
            yield from dataset

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.datasets)  # type: ignore[arg-type, misc]


class Subset(Dataset[_T_co]):
    """The samples of a data set at some indices.

    Parameters
    ----------
    dataset : Dataset
    indices : sequence of int
    """

    def __init__(self, dataset: Dataset[_T_co], indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        chosen = [self.indices[index] for index in indices]
        together = getattr(self.dataset, "__getitems__", None)
        if together is not None:
            samples: list[Any] = together(chosen)
            return samples
        return [self.dataset[index] for index in chosen]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(
    dataset: Dataset[_T],
    lengths: Sequence[int | float],
    generator: Generator | None = None,
) -> list[Subset[_T]]:
    """Divides a data set at random into subsets without common samples.

    Parameters
    ----------
    dataset : Dataset
    lengths : sequence of int or float
        The number of samples of each subset, or its fraction of all. Samples that the fractions round away go to the
        first subsets, one each.
    generator : Generator, default None

    Examples
    --------
    >>> from tenure.data import random_split
    >>> [len(part) for part in random_split(range(10), [0.33, 0.33, 0.34])]
    [4, 3, 3]
    """
    total = len(dataset)  # type: ignore[arg-type]
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        if any(not 0 <= fraction <= 1 for fraction in lengths):
            raise ValueError(f"the fractions {list(lengths)} must be from 0 to 1")
        counts = [math.floor(total * fraction) for fraction in lengths]
        for i in range(total - sum(counts)):
            counts[i % len(counts)] += 1
    else:
        counts = [int(length) for length in lengths]
    if sum(counts) != total:
        raise ValueError(f"the lengths {list(lengths)} do not add up to the {total} samples of the data set")
    indices = randperm(total, generator=generator).tolist()
    return [Subset(dataset, indices[end - count : end]) for count, end in zip(counts, accumulate(counts), strict=True)]
