"""A process that computes PyTorch modules for the server that started it: ``python3 -m tenure.serving.worker``.

The server decides which modules are in memory; this process loads, drops and calls them on its orders. It loads and
computes at the same time. Standard input is the server's socket, and standard output goes to standard error. With
``--device cuda:0`` modules are computed on that GPU. Their weights lie in pinned memory and are copied to the GPU while
the modules compute.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from torch import OutOfMemoryError, Tensor

from tenure import Error
from tenure.serving import frames, modules
from tenure.serving.computing import Computing, Jobs, execute
from tenure.serving.memory import DeviceMemory, HostMemory, Memory, Module

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1

#: The out-of-memory score: the system kills a worker before its server.
_OOM_SCORE = "500"

_LIBC = ctypes.CDLL(None, use_errno=True)


class _Worker:
    """The modules of a server, and the threads that follow its orders."""

    def __init__(self, connection: socket.socket, memory: Memory) -> None:
        self._connection = connection
        self._memory = memory
        self._sending = threading.Lock()
        #: Modules by number: loaded ones, those being loaded, and those that could not be loaded.
        self._models: dict[int, Future[Module]] = {}
        #: A lock for loading: libraries change global state while they load, which other loading threads would see.
        self._loading = threading.Lock()
        self._moves: Jobs = SimpleQueue()
        #: A queue for opening modules, which takes long, so that computations do not wait for it.
        self._openings: Jobs = SimpleQueue()
        #: A queue of waits for copies, in the order of the copies.
        self._copies: Jobs = SimpleQueue()
        self._computing = Computing()

    def serve(self) -> None:
        """Follows orders until the server is gone. Then the process ends."""
        threads = [threading.Thread(target=self._follow, daemon=True)]
        for queue in (self._moves, self._openings, self._copies):
            threads.append(threading.Thread(target=execute, args=(queue,), daemon=True))
        for thread in threads:
            thread.start()
        self._computing.others = threads
        self._report({"report": "ready"})
        self._computing.run()

    def _follow(self) -> None:
        """Receives orders and queues them for the threads that execute them."""
        status = 1
        try:
            while (frame := frames.receive(self._connection)) is not None:
                self._take(*frame)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            # Without the server, results have no receiver.
            os._exit(status)

    def _take(self, order: dict[str, Any], inputs: list[Tensor]) -> None:
        call, model = order.get("call", 0), order.get("model", 0)
        match order["order"]:
            case "open":
                opening = self._models[model] = Future()
                queue = self._openings if self._memory.keeps_modules else self._moves
                queue.put(lambda: self._open(call, model, opening, order["place"]))
            case "load":
                future = self._models.get(model)
                is_open = future is not None and not (future.done() and future.exception())
                if future is None or not is_open:
                    future = self._models[model] = Future()
                self._moves.put(lambda: self._load(call, future, None if is_open else order))
            case "evict":
                keeps = self._memory.keeps_modules
                leaving = self._models.get(model) if keeps else self._models.pop(model, None)
                self._moves.put(lambda: self._free(call, leaving, order["bytes"]))
            case "close":
                closing = self._models.pop(model, None)
                self._moves.put(lambda: self._free(call, closing, None))
            case "ask":
                self._report({"report": "alive"})
            case "trim":
                self._moves.put(lambda: self._trim(call))
            case "run":
                running = self._models[model]
                self._computing.put(lambda: self._run(call, running, inputs))
            case "yield":
                self._computing.yield_processors(order["niceness"])
            case "compete":
                self._computing.compete()
            case other:
                raise ValueError(f"an order {other!r}: use the same release of tenure for the server and for Python")

    def _open(self, call: int, model: int, opening: Future[Module], place: dict[str, Any]) -> None:
        try:
            module = self._loaded(model, place)
        except BaseException as error:
            del self._models[model]
            self._failed(call, error)
            return
        size = module.bytes
        if self._memory.keeps_modules:
            opening.set_result(module)
        else:
            del self._models[model]
            module.drop()
            del module
            self._memory.trim()
        self._report({"report": "opened", "call": call, "bytes": size, "host_bytes": self._memory.host_bytes})

    def _load(self, call: int, future: Future[Module], order: dict[str, Any] | None) -> None:
        """Brings a module. If it is not open, loads it first as `order` says."""
        begun = time.monotonic()
        try:
            if order is not None:
                try:
                    future.set_result(self._reopened(order))
                except BaseException as error:
                    future.set_exception(Error(_reason(error)))
                    raise
            copied = future.result().bring()
        except BaseException as error:
            self._failed(call, error)
            return
        if copied is None:
            self._is_loaded(call, time.monotonic() - begun)
        else:
            self._copies.put(lambda: self._is_loaded(call, copied()))

    def _reopened(self, order: dict[str, Any]) -> Module:
        module = self._loaded(order["model"], order["place"])
        # Room is reserved for the promised size, so a module of another size is refused.
        if module.bytes != order["bytes"]:
            now, before = module.bytes, order["bytes"]
            module.drop()
            raise Error(f"it has {now} bytes of weights now, and had {before}: load the model again")
        return module

    def _loaded(self, model: int, place: dict[str, Any]) -> Module:
        with self._loading:
            loaded = modules.load(place["folder"], place["source"], place["function"], place["outputs"])
        try:
            return self._memory.take(f"{Path(place['folder']).name} ({model})", loaded)
        except BaseException:
            loaded.drop()
            raise

    def _is_loaded(self, call: int, seconds: float) -> None:
        host_bytes = self._memory.host_bytes
        self._report({"report": "loaded", "call": call, "seconds": seconds, "host_bytes": host_bytes})

    def _free(self, call: int, future: Future[Module] | None, bytes: int | None) -> None:
        """Evicts `bytes` bytes of a module, or drops it if `bytes` is None."""
        left = 0
        if future is not None and future.exception() is None:
            if bytes is None:
                future.result().drop()
            else:
                left = future.result().evict(bytes)
        if not self._memory.keeps_modules:
            self._memory.trim()
        self._is_free(call, left)

    def _trim(self, call: int) -> None:
        self._memory.trim()
        self._is_free(call, 0)

    def _is_free(self, call: int, left: int) -> None:
        host_bytes = self._memory.host_bytes
        self._report({"report": "freed", "call": call, "resident_bytes": left, "host_bytes": host_bytes})

    def _run(self, call: int, running: Future[Module], inputs: list[Tensor]) -> None:
        try:
            module = running.result()
            self._report({"report": "begun", "call": call})
            begun = time.monotonic()
            outputs = module(inputs)
            seconds, copy_seconds = time.monotonic() - begun, module.copy_seconds()
            self._report(
                {"report": "computed", "call": call, "seconds": seconds, "copy_seconds": copy_seconds}, outputs
            )
        except BaseException as error:
            self._failed(call, error)

    def _failed(self, call: int, error: BaseException) -> None:
        traceback.print_exception(error)
        try:
            self._memory.check()
        except BaseException:
            # A failed device fails all later work of this process. The server can go on with a new one.
            os._exit(1)
        report = {"report": "failed", "call": call, "reason": _reason(error)}
        self._report({**report, "is_out_of_memory": _is_out_of_memory(error)})

    def _report(self, report: dict[str, Any], outputs: list[Tensor] | None = None) -> None:
        with self._sending, suppress(ConnectionError):
            frames.send(self._connection, report, outputs or ())


def _reason(error: BaseException) -> str:
    """Returns an error in one line."""
    text = str(error) if type(error) is Error else f"{type(error).__name__}: {error}"
    return " ".join(text.split())


def _is_out_of_memory(error: BaseException) -> bool:
    """Returns whether memory was too little: PyTorch's allocator of host memory raises a RuntimeError then."""
    return isinstance(error, MemoryError | OutOfMemoryError) or "can't allocate memory" in str(error)


def _server() -> socket.socket:
    """Returns the server's socket, which is standard input. Replaces standard input by an empty file."""
    connection = socket.socket(fileno=os.dup(0))
    connection.getpeername()
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return connection


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m tenure.serving.worker", description="Started by tenure serve.")
    parser.add_argument("--device", help="a GPU, such as cuda:0; by default the CPU")
    for name in ("--device-bytes", "--chunk-bytes", "--host-bytes"):
        parser.add_argument(name, type=int, default=0, help="of a GPU's weights")
    return parser.parse_args()


def main() -> None:
    """Serves until the server is gone."""
    arguments = _arguments()
    try:
        connection = _server()
    except OSError as error:
        sys.exit(f"tenure.serving.worker: standard input is not the socket of a server, which starts it: {error}")
    # Kills this process with its server, even if this process is stopped and does not see the socket close.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # If this is not permitted, the system chooses which process to kill.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    memory: Memory = HostMemory()
    if arguments.device is not None:
        memory = DeviceMemory(arguments.device, arguments.device_bytes, arguments.chunk_bytes, arguments.host_bytes)
    _Worker(connection, memory).serve()


if __name__ == "__main__":
    main()
