"""The workers of a loader, and the batches of an epoch that they make."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import time
import weakref
from collections import deque
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from typing import Any

from tenure.data._transfer import receive, send
from tenure.data._worker import Duties, Task, work

#: Seconds that a worker has to end by itself after its loader is done.
_GRACE_S = 5.0

#: The loaders' ends of all connections: a forked process must not hold them, since a worker ends when its is closed.
_connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    for connection in list(_connections):
        connection.close()


os.register_at_fork(after_in_child=_close_in_child)


def _context(chosen: str | BaseContext | None) -> BaseContext:
    """Returns the way to start processes. By default it does not fork this one, whose threads a fork would lack."""
    if isinstance(chosen, BaseContext):
        return chosen
    return multiprocessing.get_context(chosen or "forkserver")


def _stop(owner: int, processes: list[Any], connections: list[socket.socket], grace_s: float) -> None:
    if os.getpid() != owner:
        return
    for connection in connections:
        connection.close()
    end = time.monotonic() + grace_s
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(_GRACE_S)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()
    processes.clear()


class Workers:
    """The processes of a loader. They end when this is dropped, when the program ends, and when it is killed.

    Parameters
    ----------
    duties : Duties
    context : str or BaseContext, default None
        The way to start processes.
    timeout : float
        Seconds to wait for a batch; 0 waits for ever.
    prefetch_factor : int
        The number of batches that each worker makes in advance.
    """

    def __init__(self, duties: Duties, context: str | BaseContext | None, timeout: float, prefetch_factor: int) -> None:
        self.count = duties.num_workers
        self.prefetch_factor = prefetch_factor
        self._timeout = timeout
        self._processes: list[Any] = []
        self._connections: list[socket.socket] = []
        #: The number of the newest epoch.
        self.epoch = -1
        self._finalizer = weakref.finalize(self, _stop, os.getpid(), self._processes, self._connections, _GRACE_S)
        try:
            for number in range(self.count):
                self._start(_context(context), number, duties)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.stop()
            raise RuntimeError(
                f"the workers cannot be started, since the data set or a function cannot be pickled ({error}). Define "
                "classes and functions at a module's top level, or pass multiprocessing_context='fork' if no tensor "
                "operation runs in this process before"
            ) from error
        except BaseException:
            self.stop()
            raise

    def _start(self, context: BaseContext, number: int, duties: Duties) -> None:
        ours, theirs = socket.socketpair()
        _connections.add(ours)
        self._connections.append(ours)
        ours.settimeout(self._timeout or None)
        with theirs:
            process = context.Process(  # type: ignore[attr-defined]
                target=work, args=(theirs, number, duties), daemon=True, name=f"DataLoader worker {number}"
            )
            process.start()
        self._processes.append(process)

    @property
    def is_stopped(self) -> bool:
        """Whether the workers were ended."""
        return not self._finalizer.alive

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """Ends the workers, at the latest after `grace_s` seconds."""
        if self._finalizer.detach() is not None:
            _stop(os.getpid(), self._processes, self._connections, grace_s)

    def begin(self) -> int:
        """Returns the number of a new epoch."""
        self.epoch += 1
        return self.epoch

    def ask(self, number: int, task: Task) -> None:
        """Sends a task to a worker."""
        try:
            send(self._connections[number], task)
        except (BrokenPipeError, ConnectionResetError):
            self._raise_death(number)

    def answer(self, number: int, epoch: int) -> Any:
        """Returns a worker's next answer of an epoch; those of epochs before it are dropped.

        Raises
        ------
        RuntimeError
            The worker ended, or the timeout passed.
        """
        try:
            while True:
                answer = receive(self._connections[number])
                if answer.epoch == epoch:
                    return answer
        except EOFError:
            self._raise_death(number)
        except TimeoutError:
            raise RuntimeError(
                f"DataLoader timed out after {self._timeout} seconds: worker {number} made no batch"
            ) from None
        except KeyboardInterrupt:
            self.stop(grace_s=0)
            raise

    def _raise_death(self, number: int) -> None:
        process = self._processes[number]
        process.join(_GRACE_S)
        pid, code = process.pid, process.exitcode
        self.stop()
        cause = f"killed by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        raise RuntimeError(f"DataLoader worker {number} (pid {pid}) exited unexpectedly, {cause}") from None


class WorkersEpoch(Iterator[Any]):
    """The batches of an epoch, in the sampler's order."""

    def __init__(self, workers: Workers, indices: Iterator[Any], seed: int, is_persistent: bool) -> None:
        self._workers = workers
        self._indices = indices
        self._seed = seed
        self._is_persistent = is_persistent
        self._epoch = workers.begin()
        #: The workers of the batches that were asked for.
        self._asked: deque[int] = deque()
        self._active = [True] * workers.count
        self._next_worker = 0
        for _ in range(workers.prefetch_factor * workers.count):
            self._ask()

    def _ask(self) -> None:
        """Asks the next worker that has samples for the next batch."""
        for _ in range(len(self._active)):
            number = self._next_worker
            self._next_worker = (number + 1) % len(self._active)
            if self._active[number]:
                break
        else:
            return
        try:
            index = next(self._indices)
        except StopIteration:
            return
        self._workers.ask(number, Task(self._epoch, self._seed, index))
        self._asked.append(number)

    def __next__(self) -> Any:
        while self._asked:
            if self._workers.is_stopped or self._workers.epoch != self._epoch:
                raise RuntimeError("the workers were ended, or began another epoch: begin a new one")
            number = self._asked[0]
            if not self._active[number]:
                self._asked.popleft()
                continue
            answer = self._workers.answer(number, self._epoch)
            self._asked.popleft()
            if answer.is_end:
                self._active[number] = False
            self._ask()
            if answer.failure is not None:
                answer.failure.raise_again()
            if not answer.is_end:
                return answer.batch
        if not self._is_persistent:
            self._workers.stop()
        raise StopIteration
