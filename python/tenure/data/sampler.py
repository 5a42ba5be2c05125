"""Samplers: the order in which a loader takes the samples of a data set."""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import accumulate, islice
from typing import Any, Generic, TypeVar

from tenure._native import Generator, float64
from tenure._operations import rand, randint, randperm

_T_co = TypeVar("_T_co", covariant=True)

#: Indices drawn at a time with replacement.
_DRAWN = 1024


def _random_seed(generator: Generator | None = None) -> int:
    seed: int = randint(0, 2**63 - 1, (), generator=generator).item()
    return seed


def _check_count(name: str, count: object) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count <= 0:
        raise ValueError(f"{name} must be a positive integer, not {count!r}")


class Sampler(Generic[_T_co]):
    """An iterable of indices, or of lists of indices. A subclass has `__iter__`, and usually `__len__`."""

    def __iter__(self) -> Iterator[_T_co]:
        raise NotImplementedError(f"{type(self).__name__} needs a method __iter__")


class SequentialSampler(Sampler[int]):
    """All indices in their order.

    Parameters
    ----------
    data_source : Sized
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """All indices in a random order, or random indices.

    Parameters
    ----------
    data_source : Sized
    replacement : bool, default False
        Whether an index may be drawn again.
    num_samples : int, default None
        The number of indices; by default the number of samples. Without replacement, each index comes once before
        any comes twice.
    generator : Generator, default None
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        if num_samples is not None:
            _check_count("num_samples", num_samples)
        self.data_source = data_source
        self.replacement = replacement
        self.generator = generator
        self._num_samples = num_samples

    @property
    def num_samples(self) -> int:
        """The number of indices."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        size = len(self.data_source)
        generator = Generator().manual_seed(_random_seed()) if self.generator is None else self.generator
        left = self.num_samples if size else 0
        while left > 0:
            if self.replacement:
                drawn = randint(0, size, (min(left, _DRAWN),), generator=generator).tolist()
            else:
                drawn = randperm(size, generator=generator).tolist()[:left]
            yield from drawn
            left -= len(drawn)

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """Some indices in a random order.

    Parameters
    ----------
    indices : sequence of int
    generator : Generator, default None
    """

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        for position in randperm(len(self.indices), generator=self.generator).tolist():
            yield self.indices[position]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Random indices, each drawn with a probability in proportion to its weight.

    Parameters
    ----------
    weights : sequence of float
        One weight for each sample. They need not add up to 1.
    num_samples : int
        The number of indices.
    replacement : bool, default True
        Whether an index may be drawn again.
    generator : Generator, default None
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        _check_count("num_samples", num_samples)
        self.weights = [float(weight) for weight in weights]
        if any(not 0 <= weight < math.inf for weight in self.weights) or not any(self.weights):
            raise ValueError("weights must be finite and not negative, and one must be positive")
        positive = sum(weight > 0 for weight in self.weights)
        if not replacement and num_samples > positive:
            raise ValueError(f"num_samples is {num_samples}: without replacement there are {positive} indices to draw")
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        return iter(self._with_replacement() if self.replacement else self._without_replacement())

    def _with_replacement(self) -> list[int]:
        ends = list(accumulate(self.weights))
        last = max(index for index, weight in enumerate(self.weights) if weight > 0)
        drawn = rand((self.num_samples,), dtype=float64, generator=self.generator).tolist()
        return [min(bisect_right(ends, number * ends[-1]), last) for number in drawn]

    def _without_replacement(self) -> list[int]:
        # The order of exponentially distributed times, whose rates are the weights (Efraimidis and Spirakis 2006).
        uniform = rand((len(self.weights),), dtype=float64, generator=self.generator)
        times = [
            -math.log1p(-number) / weight if weight > 0 else math.inf
            for number, weight in zip(uniform.tolist(), self.weights, strict=True)
        ]
        return sorted(range(len(times)), key=times.__getitem__)[: self.num_samples]

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of `batch_size` indices of another sampler.

    Parameters
    ----------
    sampler : iterable of int
    batch_size : int
    drop_last : bool
        Whether to leave out the last list if it is shorter.

    Examples
    --------
    >>> from tenure.data import BatchSampler
    >>> list(BatchSampler(range(5), batch_size=2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        _check_count("batch_size", batch_size)
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        while batch := list(islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)


def _from_environment(name: str, variable: str) -> int:
    value = os.environ.get(variable)
    if value is None:
        raise ValueError(f"pass {name}, or start the program with {variable} in the environment, as torchrun does")
    return int(value)


class DistributedSampler(Sampler[int]):
    """One process's part of the indices, when several processes train on one data set.

    Its indices are compared with PyTorch's in one process. Tenure's tensors exchange no gradients between processes:
    the program does.

    Call `set_epoch` at the beginning of each epoch; else every epoch has the same order.

    Parameters
    ----------
    dataset : Sized
    num_replicas : int, default None
        The number of processes; by default the environment variable `WORLD_SIZE`.
    rank : int, default None
        This process's number, from 0; by default the environment variable `RANK`.
    shuffle : bool, default True
    seed : int, default 0
        The seed of the order, which must be the same in all processes.
    drop_last : bool, default False
        Whether to leave out the last samples where they do not divide evenly, rather than repeat the first.
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.num_replicas = _from_environment("num_replicas", "WORLD_SIZE") if num_replicas is None else num_replicas
        self.rank = _from_environment("rank", "RANK") if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"rank must be from 0 to {self.num_replicas - 1}, not {self.rank}")
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        size = len(dataset)
        self.num_samples = size // self.num_replicas if drop_last else -(-size // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the epoch, which the order depends on."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        if self.shuffle:
            indices = randperm(size, generator=Generator().manual_seed(self.seed + self.epoch)).tolist()
        else:
            indices = list(range(size))
        if size:
            indices = (indices * -(-self.total_size // size))[: self.total_size]
        return iter(indices[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
