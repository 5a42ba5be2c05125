"""CUDA devices: their number, their properties, and the thread's current one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

from tenure import _native
from tenure._native import Tensor

#: A device: a `tenure.device`, its name or its number. `None` is the current device.
DeviceLike: TypeAlias = "_native.device | str | int | None"


def index_of(device: DeviceLike) -> int:
    """Returns the number of a device, without a check that there is one."""
    if device is None:
        return _native.current_device()
    index = _native.device(device).index
    if index is None:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return index


def is_available() -> bool:
    """Returns whether there is a CUDA device. Raises no error where there is no driver.

    Examples
    --------
    >>> import tenure
    >>> device = "cuda" if tenure.cuda.is_available() else "cpu"
    >>> tenure.ones(2, device=device).sum().item()
    2.0
    """
    return device_count() > 0


def device_count() -> int:
    """Returns the number of CUDA devices: 0 where there is no driver, or where it does not start."""
    return _native.device_count()


def init() -> None:
    """Raises an error if there is no CUDA device. Devices are opened when they are first used."""
    _native.check_cuda_device(0)


def is_initialized() -> bool:
    """Returns whether a device's memory was opened in this process."""
    return bool(_native.installed())


def current_device() -> int:
    """Returns the number of the thread's current device."""
    index = _native.current_device()
    _native.check_cuda_device(index)
    return index


def set_device(device: DeviceLike) -> None:
    """Makes a device the thread's current one. A negative number changes nothing."""
    if isinstance(device, int) and device < 0:
        return
    index = index_of(device)
    _native.check_cuda_device(index)
    _native.set_device(index)


def synchronize(device: DeviceLike = None) -> None:
    """Waits until everything put on a device, by default the current one, has completed."""
    _native.synchronize_device(index_of(device))


class device:
    """Makes a device the thread's current one within a `with` block.

    Parameters
    ----------
    device : device, str or int
        A negative number, and None, change nothing.

    Examples
    --------
    >>> import tenure
    >>> if tenure.cuda.device_count() > 1:
    ...     with tenure.cuda.device(1):
    ...         assert tenure.ones(3, device="cuda").device == tenure.device("cuda:1")
    """

    def __init__(self, device: DeviceLike) -> None:
        self.idx = -1 if device is None or (isinstance(device, int) and device < 0) else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _native.current_device()
        set_device(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _native.set_device(self.prev_idx)


@contextmanager
def device_of(obj: Any) -> Iterator[None]:
    """Makes the device of a tensor the current one within a `with` block. A tensor on the CPU changes nothing."""
    with device(obj.device if isinstance(obj, Tensor) and obj.is_cuda else None):
        yield


@dataclass(frozen=True)
class DeviceProperties:
    """The properties of a device, by PyTorch's names. Sizes are in bytes."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    L2_cache_size: int
    uuid: uuid.UUID
    pci_address: str


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Returns the properties of a device."""
    fields: dict[str, Any] = _native.cuda_properties(index_of(device))
    return DeviceProperties(**{**fields, "uuid": uuid.UUID(bytes=bytes(fields["uuid"]))})


def get_device_name(device: DeviceLike = None) -> str:
    """Returns the name of a device, such as ``"NVIDIA H200"``."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """Returns the major and minor number of a device's compute capability."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Returns whether a device can reach the memory of another one in place."""
    return _native.can_access_peer(index_of(device), index_of(peer_device))


def is_bf16_supported() -> bool:
    """Returns whether the current device computes with bfloat16: those of compute capability 8.0 and later do."""
    return is_available() and get_device_capability()[0] >= 8
