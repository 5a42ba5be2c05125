"""A worker: a process that makes the batches that its loader asks for."""

from __future__ import annotations

import random
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tenure.data._fetch import Fetcher
from tenure.random import manual_seed


@dataclass(frozen=True)
class WorkerInfo:
    """A worker, as `get_worker_info` tells it.

    Attributes
    ----------
    id : int
        The worker's number, from 0.
    num_workers : int
    seed : int
        The seed of the worker's random numbers in its loader's first epoch.
    dataset : Dataset
        The worker's copy of the data set.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


_worker_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Returns the worker that this process is, or `None` if it is none."""
    return _worker_info


@dataclass(frozen=True)
class Duties:
    """The things that all workers of a loader have in common."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    is_batched: bool
    drop_last: bool
    worker_init_fn: Callable[[int], object] | None
    num_workers: int


@dataclass(frozen=True)
class Failure:
    """An exception of a worker."""

    kind: type[BaseException]
    text: str

    def raise_again(self) -> None:
        """Raises an exception of the same class, with the worker's traceback; a `RuntimeError` if that cannot be."""
        message = _Verbatim(self.text) if issubclass(self.kind, KeyError) else self.text
        try:
            exception = self.kind(message)
        except Exception:
            raise RuntimeError(self.text) from None
        raise exception


class _Verbatim(str):
    """The message of a `KeyError`, which would print it as a `repr` on one line."""

    def __repr__(self) -> str:
        return self


@dataclass(frozen=True)
class Task:
    """A batch to make. The first task of an epoch has the epoch's seed."""

    epoch: int
    seed: int
    index: Any


@dataclass(frozen=True)
class Answer:
    """A batch, the exception that was raised in its place, or the end of an iterable data set (`is_end`)."""

    epoch: int
    batch: Any = None
    failure: Failure | None = None
    is_end: bool = False


def _failure(number: int) -> Failure:
    kind = sys.exc_info()[0] or RuntimeError
    text = f"Caught {kind.__name__} in DataLoader worker process {number}.\nOriginal {traceback.format_exc()}"
    return Failure(kind, text)


def _seed(seed: int) -> None:
    random.seed(seed)
    manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


class _Worker:
    def __init__(self, number: int, duties: Duties) -> None:
        self._number = number
        self._duties = duties
        self._epoch = -1
        self._fetcher: Fetcher | None = None
        self._failure: Failure | None = None

    def answer(self, task: Task) -> Answer:
        """Makes a batch."""
        try:
            if task.epoch != self._epoch:
                self._begin(task)
            if self._failure is not None:
                return Answer(task.epoch, failure=self._failure)
            if self._fetcher is None:
                return Answer(task.epoch, is_end=True)
            return Answer(task.epoch, self._fetcher.fetch(task.index))
        except StopIteration:
            self._fetcher = None
            return Answer(task.epoch, is_end=True)
        except Exception:
            return Answer(task.epoch, failure=_failure(self._number))

    def _begin(self, task: Task) -> None:
        global _worker_info
        seed = (task.seed + self._number) % 2**63
        _seed(seed)
        duties = self._duties
        is_first = self._epoch < 0
        self._epoch = task.epoch
        self._fetcher = None
        try:
            if is_first:
                _worker_info = WorkerInfo(self._number, duties.num_workers, seed, duties.dataset)
                if duties.worker_init_fn is not None:
                    duties.worker_init_fn(self._number)
            self._fetcher = Fetcher(duties.dataset, duties.collate_fn, duties.is_batched, duties.drop_last)
        except Exception:
            self._failure = _failure(self._number)


def work(connection: socket.socket, number: int, duties: Duties) -> None:
    """Answers the tasks of a connection until the loader closes it."""
    from tenure.data._transfer import receive, send

    # Ctrl-C in a terminal interrupts all its processes: the loader's decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = _Worker(number, duties)
    while True:
        try:
            task = receive(connection)
        except EOFError:
            return
        answer = worker.answer(task)
        try:
            _send_answer(connection, answer, number, send)
        except (BrokenPipeError, ConnectionResetError):
            return


def _send_answer(
    connection: socket.socket, answer: Answer, number: int, send: Callable[[socket.socket, object], None]
) -> None:
    try:
        send(connection, answer)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception:
        # The batch, or the exception's class, cannot be pickled.
        failure = answer.failure
        failure = _failure(number) if failure is None else Failure(RuntimeError, failure.text)
        send(connection, Answer(answer.epoch, failure=failure))
