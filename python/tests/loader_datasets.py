"""Data sets and functions of the loader's tests, which worker processes import."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import tenure
from tenure.data import Dataset, IterableDataset, get_worker_info


class Squares(Dataset[Any]):
    """Tensors of two equal numbers, the index's square."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Any:
        return {"square": tenure.tensor([index * index, index * index]), "name": str(index)}


class Failing(Squares):
    """Raises an error for the index 3."""

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise KeyError("no sample three")
        return super().__getitem__(index)


class Dying(Squares):
    """Kills its process at the index 3."""

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Stuck(Squares):
    """Never returns the index 3."""

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            signal.pause()
        return super().__getitem__(index)


class Seeds(Squares):
    """The worker's number, process and random numbers."""

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None and info.dataset is self
        return info.id, info.num_workers, os.getpid(), random.random(), tenure.rand(()).item()


class Counting(IterableDataset[int]):
    """The numbers up to 10, divided among the workers."""

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 10, step))


class Arrays(Squares):
    """NumPy arrays."""

    def __getitem__(self, index: int) -> Any:
        import numpy

        return numpy.full(3, index, dtype=numpy.float32)


def as_they_are(samples: Any) -> Any:
    """Returns the list of samples."""
    return samples


def refuse(number: int) -> None:
    """Fails in the worker 1."""
    if number == 1:
        raise ValueError("no second worker")
