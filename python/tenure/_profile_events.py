"""Events of profiles, and their sums by name. `tenure.profiler` has these names."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from tenure import _native
from tenure._html import escaped


@dataclass(frozen=True, kw_only=True)
class FunctionEvent:
    """One call of an operation, one backward formula, or one section. Times are in µs.

    Attributes
    ----------
    id, parent
        The number of the event, and that of the event around it on the same thread.
    name, kind
        The name, and ``"operation"``, ``"backward"`` or ``"section"``.
    thread
        The number of the thread.
    start_us, duration_us, own_us
        The time from the profile's start, the time that it took, and that without the events within.
    input_shapes
        The sizes of the tensors among the arguments, with ``record_shapes``.
    """

    id: int
    parent: int | None
    name: str
    kind: str
    thread: int
    start_us: float
    duration_us: float
    own_us: float
    input_shapes: list[list[int]]


@dataclass(frozen=True, kw_only=True)
class FunctionEventAvg:
    """The sums over all events of one name. Times are in µs, memory in bytes.

    Attributes
    ----------
    key
        The name. ``"[memory]"`` is memory that was allocated or freed outside of all events, such as by ``del``.
    count
        The number of events.
    is_device_work
        Whether it is a device's kernel or copy.
    input_shapes
        The sizes of the tensors among the arguments, if they are grouped by.
    self_cpu_time_total, cpu_time_total
        The time on the host, without and with the events within.
    self_device_time_total, device_time_total
        The time of the devices' work that the events launched, without and with that of the events within.
    self_cpu_memory_usage, cpu_memory_usage
        The bytes allocated on the host, less those freed.
    self_device_memory_usage, device_memory_usage
        The bytes allocated on devices, less those freed.
    """

    key: str
    count: int
    is_device_work: bool
    input_shapes: list[list[int]]
    self_cpu_time_total: float
    cpu_time_total: float
    self_device_time_total: float
    device_time_total: float
    self_cpu_memory_usage: int
    cpu_memory_usage: int
    self_device_memory_usage: int
    device_memory_usage: int

    @property
    def cpu_time(self) -> float:
        """The time on the host of one event, on average."""
        return self.cpu_time_total / self.count

    @property
    def device_time(self) -> float:
        """The devices' time of one event, on average."""
        return self.device_time_total / self.count

    @property
    def cuda_time(self) -> float:
        """PyTorch's older name of `device_time`."""
        return self.device_time

    @property
    def cuda_time_total(self) -> float:
        """PyTorch's older name of `device_time_total`."""
        return self.device_time_total

    @property
    def self_cuda_time_total(self) -> float:
        """PyTorch's older name of `self_device_time_total`."""
        return self.self_device_time_total

    @property
    def cuda_memory_usage(self) -> int:
        """PyTorch's older name of `device_memory_usage`."""
        return self.device_memory_usage

    @property
    def self_cuda_memory_usage(self) -> int:
        """PyTorch's older name of `self_device_memory_usage`."""
        return self.self_device_memory_usage


class EventList(list[FunctionEventAvg]):
    """The sums of a profile by name."""

    def __init__(self, rows: Iterable[FunctionEventAvg], native: _native.Profile, by_shape: bool) -> None:
        super().__init__(rows)
        self._native = native
        self._by_shape = by_shape

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        *,
        max_name_column_width: int | None = 55,
        max_shapes_column_width: int | None = 80,
    ) -> str:
        """Returns a table of text.

        Parameters
        ----------
        sort_by : str, default None
            The figure to sort by, the largest first: the name of an attribute of `FunctionEventAvg`. By default
            ``"self_cpu_time_total"``.
        row_limit : int, default 100
            The most rows; -1 for all.
        max_name_column_width, max_shapes_column_width : int, default 55 and 80
            The most characters of a name and of sizes. Longer ones are cut; None cuts none.

        Raises
        ------
        AttributeError
            There is no such figure.
        """
        rows = len(self) if row_limit < 0 else row_limit
        widths = [
            sys.maxsize if width is None else max(width, 0)
            for width in (max_name_column_width, max_shapes_column_width)
        ]
        return self._native.table(sort_by or "self_cpu_time_total", rows, self._by_shape, *widths)

    @property
    def self_cpu_time_total(self) -> float:
        """The time on the host of all events, in µs."""
        return sum(row.self_cpu_time_total for row in self)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return f'<pre style="background: none">{escaped(self.table())}</pre>'
