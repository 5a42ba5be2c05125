"""Where a worker has the weights of modules: on the CPU, or on a GPU above pinned memory of the host."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor

from tenure.serving.modules import LoadedModule

__all__ = ["DeviceMemory", "HostMemory", "Memory", "Module"]

_LIBC = ctypes.CDLL(None, use_errno=True)


class Module(Protocol):
    """A module that a worker calls. Its weights come and leave as the server says."""

    @property
    def bytes(self) -> int:
        """The most that it takes of the memory that it is computed in."""

    def bring(self) -> Callable[[], float] | None:
        """Begins to bring what is missing there; the function waits until that is there, and returns the seconds."""

    def evict(self, bytes: int) -> int:
        """Frees so many bytes there, or more, and returns how many it still has."""

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Answers inputs with tensors on the CPU."""

    def copy_seconds(self) -> float:
        """How long weights were copied that came since the last call before the one that is over."""

    def drop(self) -> None:
        """Frees all of it."""


class Memory(Protocol):
    """The weights of a worker's modules."""

    #: Whether a module that is not in memory is kept elsewhere.
    keeps_modules: bool

    @property
    def host_bytes(self) -> int:
        """What images take of pinned memory."""

    def take(self, name: str, loaded: LoadedModule) -> Module:
        """Takes a module that was loaded over. It is not on the device yet."""

    def trim(self) -> None:
        """Gives memory that no module has back to the system or the driver."""

    def check(self) -> None:
        """Raises an error if nothing can be computed any more."""


class HostMemory:
    """Modules on the CPU: in memory, or not loaded."""

    keeps_modules = False
    host_bytes = 0

    def take(self, name: str, loaded: LoadedModule) -> Module:
        """Takes a module that was loaded over."""
        return _HostModule(loaded)

    def trim(self) -> None:
        """Gives memory that no module has back to the system."""
        # Also what an error's traceback refers to.
        gc.collect()
        with suppress(AttributeError):
            _LIBC.malloc_trim(0)

    def check(self) -> None:
        """Raises no error: the CPU computes on."""


class _HostModule:
    def __init__(self, loaded: LoadedModule) -> None:
        self._loaded = loaded
        self.bytes = loaded.bytes

    def bring(self) -> None:
        return None

    def evict(self, bytes: int) -> int:
        self.drop()
        return 0

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return self._loaded(inputs)

    def copy_seconds(self) -> float:
        return 0.0

    def drop(self) -> None:
        self._loaded.drop()


class DeviceMemory:
    """Modules on a GPU, by a `tenure.torch.Switcher`: images are in pinned memory, and on the device what is to be.

    The server's budget is for other processes, too. So no module leaves unless the server says so.
    """

    keeps_modules = True

    def __init__(self, device: str, device_bytes: int, chunk_bytes: int, host_bytes: int) -> None:
        # On the CPU, nothing of it is needed.
        from tenure.torch import Switcher

        self.switcher = Switcher(device, device_bytes=device_bytes, chunk_bytes=chunk_bytes, host_bytes=host_bytes)
        self.stream = torch.cuda.Stream(self.switcher.device)

    @property
    def host_bytes(self) -> int:
        """What images take of pinned memory."""
        return self.switcher._native.image_bytes

    def take(self, name: str, loaded: LoadedModule) -> Module:
        """Takes a module that was loaded over."""
        return _DeviceModule(self, name, loaded)

    def trim(self) -> None:
        """Gives chunks that no module has back to the driver."""
        self.switcher.trim()

    def check(self) -> None:
        """Raises an error if the device has failed."""
        torch.cuda.synchronize(self.switcher.device)


class _DeviceModule:
    def __init__(self, memory: DeviceMemory, name: str, loaded: LoadedModule) -> None:
        self._memory, self._name, self._loaded = memory, name, loaded
        switcher = memory.switcher
        # Pinned ones make no room for others.
        loaded.move(lambda module: switcher.add(name, module, pinned=True))
        self._model = switcher[name]
        self.bytes = self._model._native.room_bytes
        #: Events around the last copies, until a call tells of them.
        self._copied: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        # The values are in the image.
        gc.collect()

    def bring(self) -> Callable[[], float]:
        with self._memory.switcher._lock:
            copied = self._copied = self._model._bring()
        return lambda: _seconds(copied)

    def evict(self, bytes: int) -> int:
        with self._memory.switcher._lock:
            if self._model._held() is not None:
                # A cycle may have it, or what an error's traceback refers to.
                gc.collect()
            self._model.evict(min(bytes, self.bytes))
            return self._model._native.resident_bytes

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        device = self._memory.switcher.device
        with torch.cuda.device(device), torch.cuda.stream(self._memory.stream):
            answers = self._loaded([tensor.to(device) for tensor in inputs])
            return [answer.cpu() for answer in answers]

    def copy_seconds(self) -> float:
        copied, self._copied = self._copied, None
        return _seconds(copied)

    def drop(self) -> None:
        self._loaded.drop()
        self._memory.switcher.remove(self._name)


def _seconds(copied: tuple[torch.cuda.Event, torch.cuda.Event] | None) -> float:
    """How long copies between two events took, which are waited for."""
    if copied is None:
        return 0.0
    begun, ended = copied
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1e3
