"""The loader: batches of a data set's samples, made in this process or by workers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tenure._native import Generator
from tenure.data._fetch import Fetcher
from tenure.data._worker import Duties
from tenure.data.collate import default_collate, default_convert
from tenure.data.dataset import Dataset, IterableDataset
from tenure.data.sampler import BatchSampler, RandomSampler, SequentialSampler, _random_seed

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from tenure.data._workers import Workers

_T_co = TypeVar("_T_co", covariant=True)


class DataLoader(Generic[_T_co]):
    """An iterable of the batches of a data set.

    Workers send tensors and NumPy arrays through memory that both processes map, without a copy or a pickle of their
    bytes. By default they are started by a server process ("forkserver"), so that the data set and the functions must
    be picklable, and a program begins with `if __name__ == "__main__":`. A forked worker lacks the threads that
    compute tensors: choose "fork" only if no tensor operation runs before the loader.

    Parameters
    ----------
    dataset : Dataset
    batch_size : int, default 1
        The number of samples of a batch; `None` gives the samples themselves.
    shuffle : bool, default False
        Whether to take the samples in a new random order in each epoch.
    sampler : iterable of int, default None
        The order of the samples' indices.
    batch_sampler : iterable of list of int, default None
        The indices of each batch. It excludes `batch_size`, `shuffle`, `sampler` and `drop_last`.
    num_workers : int, default 0
        The number of processes that make batches; 0 makes them in this process.
    collate_fn : callable, default None
        Makes a batch of a list of samples; by default `default_collate`, or `default_convert` without batches.
    pin_memory : bool, default False
        Accepted for programs written for PyTorch. Batches stay in pageable memory.
    drop_last : bool, default False
        Whether to leave out the last batch if it has fewer samples.
    timeout : float, default 0
        Seconds to wait for a worker's batch; 0 waits for ever.
    worker_init_fn : callable, default None
        Called in each worker with its number, before it makes batches.
    multiprocessing_context : str or BaseContext, default None
        The way to start workers: "forkserver", "spawn" or "fork".
    generator : Generator, default None
        The random numbers of the order and of the workers' seeds; by default the default generator.
    prefetch_factor : int, default None
        The number of batches that each worker makes in advance: 2 by default.
    persistent_workers : bool, default False
        Whether workers stay for the next epoch.

    Examples
    --------
    >>> from tenure.data import DataLoader
    >>> [batch.tolist() for batch in DataLoader(range(5), batch_size=2, drop_last=True)]
    [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        dataset: Dataset[_T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        if pin_memory:
            warnings.warn("pin_memory has no effect: batches stay in pageable memory", UserWarning, stacklevel=2)
        self.dataset = dataset
        self.num_workers = num_workers
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        self._is_iterable = isinstance(dataset, IterableDataset)
        if self._is_iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("an IterableDataset has its own order: it takes no shuffle, sampler or batch_sampler")
        if sampler is not None and shuffle:
            raise ValueError("sampler excludes shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError("batch_sampler excludes batch_size, shuffle, sampler and drop_last")
            batch_size = None
        elif batch_size is None and drop_last:
            raise ValueError("batch_size=None makes no batches, and excludes drop_last")
        if sampler is None:
            sampler = self._default_sampler(bool(shuffle))
        if batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        if collate_fn is None:
            collate_fn = default_convert if batch_sampler is None else default_collate
        self.collate_fn = collate_fn
        self._workers: Workers | None = None

    def _default_sampler(self, shuffle: bool) -> Iterable[Any]:
        if self._is_iterable:
            return repeat(None)
        if shuffle:
            return RandomSampler(self.dataset, generator=self.generator)  # type: ignore[arg-type]
        return SequentialSampler(self.dataset)  # type: ignore[arg-type]

    def __len__(self) -> int:
        if not self._is_iterable:
            return len(self.sampler if self.batch_sampler is None else self.batch_sampler)  # type: ignore[arg-type]
        count = len(self.dataset)  # type: ignore[arg-type]
        if self.batch_size is None:
            return count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        is_batched = self.batch_sampler is not None
        indices: Iterable[Any] = self.sampler if self.batch_sampler is None else self.batch_sampler
        seed = _random_seed(self.generator)
        if not self.num_workers:
            return _epoch(Fetcher(self.dataset, self.collate_fn, is_batched, self.drop_last), iter(indices))
        from tenure.data._workers import WorkersEpoch

        return WorkersEpoch(self._started(is_batched), iter(indices), seed, self.persistent_workers)

    def _started(self, is_batched: bool) -> Workers:
        from tenure.data._workers import Workers

        if self._workers is not None and not self._workers.is_stopped:
            return self._workers
        duties = Duties(
            self.dataset, self.collate_fn, is_batched, self.drop_last, self.worker_init_fn, self.num_workers
        )
        workers = Workers(duties, self.multiprocessing_context, self.timeout, self.prefetch_factor or 2)
        if self.persistent_workers:
            self._workers = workers
        return workers


def _check_workers(num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool) -> None:
    if num_workers < 0:
        raise ValueError(f"num_workers must not be negative, as {num_workers} is")
    if timeout < 0:
        raise ValueError(f"timeout must not be negative, as {timeout} is")
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError(f"prefetch_factor must be positive, not {prefetch_factor}")
    if num_workers == 0 and (timeout or prefetch_factor is not None or persistent_workers):
        raise ValueError("timeout, prefetch_factor and persistent_workers need num_workers")


def _epoch(fetcher: Fetcher, indices: Iterator[Any]) -> Iterator[Any]:
    for index in indices:
        try:
            batch = fetcher.fetch(index)
        except StopIteration:
            return
        yield batch
