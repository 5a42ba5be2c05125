"""Computes PyTorch modules for the server that started this process: ``python3 -m tenure.serving.worker``.

The server decides which modules are in memory; this process loads, drops and calls them as it is told. Loading goes on
beside computing. Standard input is the server's socket, and standard output is standard error.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from torch import Tensor

from tenure.serving import frames, modules

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1

#: What the system takes first when there is no memory: a worker, before its server.
_OOM_SCORE = "500"

_LIBC = ctypes.CDLL(None, use_errno=True)


class _Worker:
    """The modules of a server."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        #: Modules by number, which are there, come, or could not be loaded.
        self._models: dict[int, Future[modules.LoadedModule]] = {}
        self._moves: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._runs: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def serve(self) -> None:
        """Follows orders until the server is gone, which ends the process."""
        for work in (self._follow, self._move):
            threading.Thread(target=work, daemon=True).start()
        self._report({"report": "ready"})
        while True:
            # Modules compute on the main thread, as they would in a program of the user's.
            self._runs.get()()

    def _follow(self) -> None:
        """Takes orders, and leaves them to the threads that do them."""
        status = 1
        try:
            while (frame := frames.receive(self._connection)) is not None:
                self._take(*frame)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            # Whatever is computed is for nobody.
            os._exit(status)

    def _take(self, order: dict[str, Any], inputs: list[Tensor]) -> None:
        call, model = order["call"], order["model"]
        match order["order"]:
            case "load":
                future = self._models[model] = Future()
                self._moves.put(lambda: self._load(call, future, order["place"]))
            case "evict":
                leaving = self._models.pop(model, None)
                self._moves.put(lambda: self._evict(call, leaving))
            case "run":
                running = self._models[model]
                self._runs.put(lambda: self._run(call, running, inputs))
            case other:
                raise ValueError(f"an order {other!r}: use the same release of tenure for the server and for Python")

    def _move(self) -> None:
        while True:
            self._moves.get()()

    def _load(self, call: int, future: Future[modules.LoadedModule], place: dict[str, Any]) -> None:
        begun = time.monotonic()
        try:
            module = modules.load(place["folder"], place["source"], place["function"], place["outputs"])
        except BaseException as error:
            traceback.print_exc()
            future.set_exception(RuntimeError(_reason(error)))
            self._report({"report": "failed", "call": call, "reason": _reason(error)})
        else:
            future.set_result(module)
            seconds = time.monotonic() - begun
            self._report({"report": "loaded", "call": call, "bytes": module.bytes, "seconds": seconds})

    def _evict(self, call: int, leaving: Future[modules.LoadedModule] | None) -> None:
        if leaving is not None and leaving.exception() is None:
            leaving.result().drop()
        # Also what an error's traceback refers to.
        gc.collect()
        with suppress(AttributeError):
            _LIBC.malloc_trim(0)
        self._report({"report": "evicted", "call": call})

    def _run(self, call: int, running: Future[modules.LoadedModule], inputs: list[Tensor]) -> None:
        try:
            module = running.result()
            self._report({"report": "begun", "call": call})
            begun = time.monotonic()
            outputs = module(inputs)
            seconds = time.monotonic() - begun
            self._report({"report": "computed", "call": call, "seconds": seconds}, outputs)
        except BaseException as error:
            traceback.print_exc()
            self._report({"report": "failed", "call": call, "reason": _reason(error)})

    def _report(self, report: dict[str, Any], outputs: list[Tensor] | None = None) -> None:
        with self._sending, suppress(ConnectionError):
            frames.send(self._connection, report, outputs or ())


def _reason(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _server() -> socket.socket:
    """The server's socket, which is standard input: that is empty from then on."""
    connection = socket.socket(fileno=os.dup(0))
    connection.getpeername()
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return connection


def main() -> None:
    """Serves until the server is gone."""
    try:
        connection = _server()
    except OSError as error:
        sys.exit(f"tenure.serving.worker: standard input is no server, which starts it: {error}")
    # Interrupts are the server's to follow.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Also if this process is stopped, and sees nothing of the closed socket.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Where that is not allowed, the system chooses.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    _Worker(connection).serve()


if __name__ == "__main__":
    main()
