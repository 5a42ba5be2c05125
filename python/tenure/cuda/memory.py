"""The memory of this process on a device. A device whose memory was never used has zeros and no counters."""

from __future__ import annotations

from tenure import _native
from tenure._errors import OutOfMemoryError
from tenure._html import escaped, size
from tenure.cuda._devices import DeviceLike, index_of

__all__ = [
    "OutOfMemoryError",
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def memory_stats(device: DeviceLike = None) -> dict[str, int | None]:
    """Returns counters, with PyTorch's keys: see `tenure.memory.stats`."""
    index = index_of(device)
    return _native.memory_stats(index) if index in _native.installed() else {}


def _figure(device: DeviceLike, name: str) -> int:
    return memory_stats(device).get(name) or 0


def memory_allocated(device: DeviceLike = None) -> int:
    """Returns the bytes that tensors occupy on a device."""
    return _figure(device, "allocated_bytes.all.current")


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Returns the most bytes that tensors occupied, since the start or `reset_peak_memory_stats`."""
    return _figure(device, "allocated_bytes.all.peak")


def memory_reserved(device: DeviceLike = None) -> int:
    """Returns the bytes that the process holds for tensors, with those that it keeps for the next ones."""
    return _figure(device, "reserved_bytes.all.current")


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Returns the most bytes that the process held for tensors, since the start or `reset_peak_memory_stats`."""
    return _figure(device, "reserved_bytes.all.peak")


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Resets every peak to the current value."""
    index = index_of(device)
    if index in _native.installed():
        _native.reset_peak_stats(index)


def empty_cache() -> None:
    """Gives memory that no tensor occupies back to the devices."""
    for index in _native.installed():
        _native.empty_cache(index)


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Returns the free and the total memory of a device in bytes, with what other processes hold in mind."""
    return _native.cuda_memory_info(index_of(device))


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits the memory that this process may hold on a device.

    Parameters
    ----------
    fraction : float
        The fraction of the device's memory, from 0 to 1.
    device : device, default None
        Default: the current device.
    """
    index = index_of(device)
    _native.cuda_memory_info(index)  # opens the device
    _native.set_memory_fraction(index, fraction)


_ROWS = (
    ("Allocated memory", "allocated_bytes", True),
    ("Active memory", "active_bytes", True),
    ("Requested memory", "requested_bytes", True),
    ("Reserved memory", "reserved_bytes", True),
    ("Allocations", "allocation", False),
    ("Segments", "segment", False),
)


class _Summary(str):
    """A table of a device's counters."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f'<pre style="background: none">{escaped(self)}</pre>'


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """Returns a table of a device's counters. A notebook shows it as a table.

    Parameters
    ----------
    device : device, default None
        Default: the current device.
    abbreviated : bool, default False
        Whether the totals since the start are left out.
    """
    counters = memory_stats(device)
    columns = ("current", "peak") if abbreviated else ("current", "peak", "allocated", "freed")
    lines = [f"Memory of cuda:{index_of(device)}", "".join(f"{head:>16}" for head in ("", *columns))]
    for title, name, in_bytes in _ROWS:
        figures = [counters.get(f"{name}.all.{column}") or 0 for column in columns]
        cells = [size(figure) if in_bytes else str(figure) for figure in figures]
        lines.append(f"{title:>16}" + "".join(f"{cell:>16}" for cell in cells))
    lines.append(f"Out of memory: {counters.get('num_ooms') or 0} times")
    return _Summary("\n".join(lines))
