"""What devices there are. Public as `tenure.devices`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from tenure import _native


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """What this process can use of the host. What the system does not tell is None.

    Attributes
    ----------
    name
        As the processor says itself.
    cores
        How many threads may run at once.
    free_bytes
        Memory that can be had without swapping.
    total_bytes
        Memory of the host.
    numa_nodes
        Memory nodes.
    """

    name: str | None
    cores: int | None
    free_bytes: int | None
    total_bytes: int | None
    numa_nodes: int | None


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process that uses a device.

    Attributes
    ----------
    pid
        Its number in the system.
    bytes
        What it holds; None where the system does not tell.
    """

    pid: int
    bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Link:
    """The way from one device to another.

    Attributes
    ----------
    to
        The other device's number.
    link
        What connects the two, such as ``18 NVLinks``; None where the system does not tell.
    peer_access
        Whether the other's memory can be reached in place.
    """

    to: int
    link: str | None
    peer_access: bool


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device, as far as it can be asked. What it does not tell is None.

    Attributes
    ----------
    number
        Its number, from 0.
    error
        Why it does not tell what it is, or does not start; None if it does both.
    name, uuid, pci_address
        As ``nvidia-smi`` writes them.
    compute_capability
        Such as ``9.0``.
    multiprocessors, copy_engines
        How many there are.
    l2_bytes
        Level 2 cache.
    has_virtual_memory
        Whether physical chunks and address space can be had apart, which Tenure's own allocator needs.
    shares_descriptors
        Whether chunks can be handed to other processes.
    numa_node
        The host's memory node next to it.
    free_bytes, total_bytes
        Its memory.
    processes
        Who uses it.
    links
        The ways to the other devices.
    """

    number: int
    error: str | None
    name: str | None = None
    uuid: str | None = None
    pci_address: str | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    copy_engines: int | None = None
    has_virtual_memory: bool | None = None
    shares_descriptors: bool | None = None
    numa_node: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    processes: tuple[Process, ...] | None = None
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Devices(Sequence[Device]):
    """The devices that there are, a sequence by their numbers.

    Attributes
    ----------
    cpu
        The host.
    driver_version
        The version of the NVIDIA driver in the kernel; None where there is none.
    cuda_version
        The newest CUDA that the driver serves, such as ``13.0``.
    unavailable
        Why there are no devices; None if there are any.
    """

    cpu: Cpu
    driver_version: str | None
    cuda_version: str | None
    unavailable: str | None
    _devices: tuple[Device, ...]

    @overload
    def __getitem__(self, index: int) -> Device: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Device, ...]: ...
    def __getitem__(self, index: int | slice) -> Device | tuple[Device, ...]:
        return self._devices[index]

    def __len__(self) -> int:
        return len(self._devices)


def devices(driver: Literal["cuda", "sim"] = "cuda") -> Devices:
    """What devices there are, what is on them, how they are linked; or why there are none.

    Each device is started, which takes a few hundred milliseconds the first time in a process, to be asked how much
    of its memory is free. The program ``tenure devices`` shows the same.

    Parameters
    ----------
    driver
        ``"cuda"`` for NVIDIA's devices, ``"sim"`` for one in software.

    Returns
    -------
    Devices
        Empty where there are none; ``unavailable`` says why. Nothing is raised for want of a GPU or a driver.

    Examples
    --------
    >>> import tenure
    >>> [(device.name, device.compute_capability) for device in tenure.devices("sim")]
    [('Simulated H200', '9.0')]
    """
    listing = json.loads(_native.devices(driver))
    cpu = Cpu(**listing.pop("cpu"))
    return Devices(cpu=cpu, _devices=tuple(map(_device, listing.pop("devices"))), **listing)


def _device(entry: dict[str, Any]) -> Device:
    processes = entry.get("processes")
    if processes is not None:
        entry["processes"] = tuple(Process(**process) for process in processes)
    entry["links"] = tuple(Link(**link) for link in entry["links"])
    return Device(**entry)
