"""Batches of a data set's samples, which a loader and its workers make in the same way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from tenure.data.dataset import IterableDataset


class Fetcher:
    """Makes batches of the samples of a data set, or single samples.

    Parameters
    ----------
    dataset : Dataset
    collate_fn : callable
        Makes a batch of a list of samples, or converts a sample.
    is_batched : bool
        Whether `fetch` gets lists of indices.
    drop_last : bool
        Whether to leave out an iterable data set's last batch if it has fewer samples.
    """

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any], is_batched: bool, drop_last: bool) -> None:
        self._dataset = dataset
        self._collate = collate_fn
        self._is_batched = is_batched
        self._drop_last = drop_last
        self._samples = iter(dataset) if isinstance(dataset, IterableDataset) else None

    def fetch(self, index: Any) -> Any:
        """Returns the batch of a list of indices, or the sample of an index.

        Raises
        ------
        StopIteration
            An iterable data set has no more samples.
        """
        if self._samples is not None:
            return self._collate(self._following(index))
        if not self._is_batched:
            return self._collate(self._dataset[index])
        together = getattr(self._dataset, "__getitems__", None)
        samples = [self._dataset[one] for one in index] if together is None else together(index)
        return self._collate(samples)

    def _following(self, index: Any) -> Any:
        assert self._samples is not None
        if not self._is_batched:
            return next(self._samples)
        samples = list(islice(self._samples, len(index)))
        if not samples or self._drop_last and len(samples) < len(index):
            raise StopIteration
        return samples
