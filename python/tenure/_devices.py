"""The list of devices. Public as `tenure.devices`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from tenure import _native
from tenure._html import line, size, table


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """The host's resources for this process. Values that the system does not report are None.

    Attributes
    ----------
    name
        The processor's own name.
    cores
        The number of threads that can run at once.
    free_bytes
        The memory in bytes that can be allocated without swapping.
    total_bytes
        The memory of the host in bytes.
    numa_nodes
        The number of NUMA nodes.
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
        The process's number in the system.
    bytes
        The bytes that it holds; None where the system does not report them.
    """

    pid: int
    bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Link:
    """The link from one device to another.

    Attributes
    ----------
    to
        The other device's number.
    link
        The kind of link, such as ``18 NVLinks``; None where the system does not report it.
    peer_access
        Whether this device can access the other's memory directly.
    """

    to: int
    link: str | None
    peer_access: bool


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device and its properties. Properties that it does not report are None.

    Attributes
    ----------
    number
        The device's number, from 0.
    error
        The reason why it does not report its properties, or does not start; None if it does both.
    name, uuid, pci_address
        The names that ``nvidia-smi`` shows.
    compute_capability
        The compute capability, such as ``9.0``.
    multiprocessors, copy_engines
        The numbers of multiprocessors and copy engines.
    l2_bytes
        The size of the level 2 cache in bytes.
    has_virtual_memory
        Whether physical chunks and address space can be allocated separately, which Tenure's own allocator needs.
    shares_descriptors
        Whether chunks can be shared with other processes.
    numa_node
        The host's nearest NUMA node.
    free_bytes, total_bytes
        Its memory in bytes.
    processes
        The processes that use it.
    links
        The links to the other devices.
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
    """All devices, a sequence by their numbers.

    Attributes
    ----------
    cpu
        The host.
    driver_version
        The version of the NVIDIA driver in the kernel; None where there is none.
    cuda_version
        The newest CUDA version that the driver supports, such as ``13.0``.
    unavailable
        The reason why there are no devices; None if there are any.
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

    def _repr_html_(self) -> str:
        if self.unavailable is not None:
            return line(self.unavailable)
        rows = [
            (
                device.number,
                device.error or device.name or "",
                device.compute_capability or "",
                "" if device.free_bytes is None else size(device.free_bytes),
                "" if device.total_bytes is None else size(device.total_bytes),
            )
            for device in self
        ]
        return table(("", "Device", "Compute capability", "Free memory", "Memory"), rows, texts=2)


def devices(driver: Literal["cuda", "sim"] = "cuda") -> Devices:
    """Lists the devices, the processes on them, and the links between them; or says why there are none.

    Each device is started to read its free memory, which takes a few hundred milliseconds the first time in a process.
    The program ``tenure devices`` shows the same.

    Parameters
    ----------
    driver
        ``"cuda"`` for NVIDIA's devices, ``"sim"`` for a simulated one.

    Returns
    -------
    Devices
        The devices. Empty if there are none; then ``unavailable`` says why. A missing GPU or driver raises no error.

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
