"""The memory of a worker's modules: the host's, or a GPU's backed by pinned memory of the host."""

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
    """A module that a worker calls. The server decides when its weights are in memory."""

    @property
    def bytes(self) -> int:
        """The most bytes that it takes of the memory that it computes in."""

    def bring(self) -> Callable[[], float] | None:
        """Starts to bring what is missing. Returns a function that waits for it and returns the copy time in
        seconds."""

    def evict(self, bytes: int) -> int:
        """Frees at least `bytes` bytes there. Returns the bytes that it still has."""

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Computes answers, with tensors on the CPU."""

    def copy_seconds(self) -> float:
        """Returns the time in seconds of the weight copies made for the last call."""

    def drop(self) -> None:
        """Frees the module entirely."""


class Memory(Protocol):
    """The weights of a worker's modules."""

    #: Whether a module that is not in memory is kept elsewhere.
    keeps_modules: bool

    @property
    def host_bytes(self) -> int:
        """The bytes of images in pinned memory."""

    def take(self, name: str, loaded: LoadedModule) -> Module:
        """Takes over a module that was loaded. It is not on the device yet."""

    def trim(self) -> None:
        """Gives memory that no module uses back to the system or the driver."""

    def check(self) -> None:
        """Raises an error if the device can no longer compute."""


class HostMemory:
    """Modules on the CPU: either in memory, or not loaded."""

    keeps_modules = False
    host_bytes = 0

    def take(self, name: str, loaded: LoadedModule) -> Module:
        """Takes over a module that was loaded."""
        return _HostModule(loaded)

    def trim(self) -> None:
        """Gives memory that no module uses back to the system."""
        # Frees also what an error's traceback refers to.
        gc.collect()
        with suppress(AttributeError):
            _LIBC.malloc_trim(0)

    def check(self) -> None:
        """Does nothing: the CPU can always compute."""


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
    """Modules on a GPU, in a `tenure.torch.Switcher`: images in pinned memory, and on the device what the server wants
    there.

    The server's budget also covers other processes. So no module is evicted unless the server orders it.
    """

    keeps_modules = True

    def __init__(self, device: str, device_bytes: int, chunk_bytes: int, host_bytes: int) -> None:
        # Imported here because it is not needed on the CPU.
        from tenure.torch import Switcher

        self.switcher = Switcher(device, device_bytes=device_bytes, chunk_bytes=chunk_bytes, host_bytes=host_bytes)
        self.stream = torch.cuda.Stream(self.switcher.device)

    @property
    def host_bytes(self) -> int:
        """The bytes of images in pinned memory."""
        return self.switcher._native.image_bytes

    def take(self, name: str, loaded: LoadedModule) -> Module:
        """Takes over a module that was loaded."""
        return _DeviceModule(self, name, loaded)

    def trim(self) -> None:
        """Gives chunks that no module uses back to the driver."""
        self.switcher.trim()

    def check(self) -> None:
        """Raises an error if the device has failed."""
        torch.cuda.synchronize(self.switcher.device)


class _DeviceModule:
    def __init__(self, memory: DeviceMemory, name: str, loaded: LoadedModule) -> None:
        self._memory, self._name, self._loaded = memory, name, loaded
        switcher = memory.switcher
        # Pinned models are not evicted to make room for others.
        loaded.move(lambda module: switcher.add(name, module, pinned=True))
        self._model = switcher[name]
        self.bytes = self._model._native.room_bytes
        #: Events around the last copies, until a call reports them.
        self._copied: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        # Frees the module's own values, which are now in the image.
        gc.collect()

    def bring(self) -> Callable[[], float]:
        with self._memory.switcher._lock:
            copied = self._copied = self._model._start_copies()
        return lambda: _seconds(copied)

    def evict(self, bytes: int) -> int:
        with self._memory.switcher._lock:
            if self._model._held() is not None:
                # A reference cycle or an error's traceback may still hold a tensor.
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
    """Waits for the copies between two events. Returns their time in seconds."""
    if copied is None:
        return 0.0
    begun, ended = copied
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1e3
