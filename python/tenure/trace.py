"""Traces: recordings of a program's use of device memory, and their replay on other allocators.

A trace is recorded with PyTorch, from before its first CUDA allocation::

    torch.cuda.memory._record_memory_history(max_entries=2000000, context=None)
    ...
    torch.cuda.memory._dump_snapshot("snapshot.pickle")

The module can be called: ``tenure.trace(matrix)`` is the sum of a matrix's diagonal, as ``torch.trace``.

Examples
--------
>>> import tenure
>>> tenure.trace(tenure.eye(3))
tensor(3.)
>>> trace = tenure.trace.load("tests/data/resnet50_step.pickle.xz")
>>> native, paged = tenure.trace.replay(trace, ["native", "paged"])
>>> paged.peak_requested_bytes <= paged.peak_reserved_bytes < native.peak_reserved_bytes
True
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from tenure import _native, _operations
from tenure._arguments import whole_number
from tenure._errors import TraceError
from tenure._files import write_whole
from tenure._html import line, size, table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "ACTIONS",
    "ALLOCATORS",
    "Call",
    "DriverCalls",
    "Held",
    "OnDevice",
    "Outcome",
    "Trace",
    "load",
    "replay",
    "report",
]

Allocator: TypeAlias = Literal["native", "expandable", "paged"]
FilePath: TypeAlias = str | bytes | PathLike[str] | PathLike[bytes]

#: The largest numbers of 32 and 64 bits, which the extension module accepts.
_MOST_32, _MOST_64 = 2**32 - 1, 2**64 - 1

ALLOCATORS: tuple[Allocator, ...] = ("native", "expandable", "paged")
"""The allocators that a trace can be replayed on: PyTorch's default, its ``expandable_segments:True``, and Tenure's."""

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "user_defined",
    "annotate",
)
"""PyTorch's names of an allocator's actions: an event's ``action`` is an index into them."""


class Trace:
    """All actions of one device's allocator, from an empty device on. `load` makes it.

    A trace has been validated: times never go back, live blocks never overlap, and every free names a live block and
    its size. Its length is the number of its events. It is immutable.

    Examples
    --------
    >>> import tenure
    >>> trace = tenure.trace.load("tests/data/resnet50_step.pickle.xz")
    >>> trace
    <tenure.trace.Trace 'resnet50_step': 2914 events, 5954812784 bytes requested at the peak>
    """

    def __init__(self, native: _native.Trace) -> None:
        self._native = native
        self._facts: dict[str, Any] = json.loads(native.facts())

    def __len__(self) -> int:
        events: int = self._facts["events"]
        return events

    def __repr__(self) -> str:
        peak = self.peak_requested_bytes
        return f"<tenure.trace.Trace {self.name!r}: {len(self)} events, {peak} bytes requested at the peak>"

    def _repr_html_(self) -> str:
        rows = (
            ("Device", self.device),
            ("Events", f"{len(self):,}"),
            ("Allocations", f"{self.allocations:,}"),
            ("Streams", len(self.streams)),
            ("Duration", "not recorded" if self.duration_us is None else f"{self.duration_us / 1e6:.3f} s"),
            ("Peak of requested bytes", size(self.peak_requested_bytes)),
            ("Live at the end", size(self.live_at_end_bytes)),
            ("Live before the first event", size(self.earlier_bytes)),
            ("Out of memory", f"{self.ooms} times"),
        )
        return table((f"Trace {self.name!r}", ""), rows) + "".join(map(line, self.notes))

    @property
    def name(self) -> str:
        """The source of the trace: usually the name of the program or of the file."""
        return str(self._facts["name"])

    @property
    def device(self) -> int:
        """The device's number."""
        return int(self._facts["device"])

    @property
    def settings(self) -> str:
        """The value of ``PYTORCH_CUDA_ALLOC_CONF`` while the trace was recorded."""
        return str(self._facts["settings"])

    @property
    def allocations(self) -> int:
        """The number of blocks that were allocated."""
        return int(self._facts["allocations"])

    @property
    def streams(self) -> tuple[int, ...]:
        """The streams that blocks belong to, ascending."""
        return tuple(self._facts["streams"])

    @property
    def duration_us(self) -> int | None:
        """The time from the first event to the last, in µs; None if the recorder had no clock."""
        duration_us: int | None = self._facts["duration_us"]
        return duration_us

    @property
    def segments(self) -> int:
        """The number of segments that were allocated from the driver."""
        return int(self._facts["segments"])

    @property
    def ooms(self) -> int:
        """The number of allocations that failed."""
        return int(self._facts["ooms"])

    @property
    def earlier_events(self) -> int:
        """The number of first events that stand for memory from before the recorded history began."""
        return int(self._facts["earlier_events"])

    @property
    def earlier_bytes(self) -> int:
        """The bytes that were live before the recorded history began. Peaks include them."""
        return int(self._facts["earlier_bytes"])

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the snapshot's reader, one line each: what it skipped, and the devices that it could choose from."""
        return tuple(self._facts["notes"])

    @property
    def peak_requested_bytes(self) -> int:
        """The peak of bytes that the program had requested and not yet freed, not rounded."""
        return int(self._facts["peak_requested_bytes"])

    @property
    def live_at_end_bytes(self) -> int:
        """The bytes still live after the last event."""
        return int(self._facts["live_at_end_bytes"])

    def events(self) -> NDArray[np.void]:
        """Returns the events as a structured array. Needs NumPy.

        Returns
        -------
        numpy.ndarray
            Read-only, with the fields ``time_us``, ``address``, ``bytes`` and ``stream``, unsigned integers of 64 bits,
            and ``action``, one of 8 bits: an index into `ACTIONS`. The address of an ``oom`` is the number of bytes
            free on the device.

        Examples
        --------
        >>> import tenure
        >>> events = tenure.trace.load("tests/data/resnet50_step.pickle.xz").events()
        >>> allocs = events[events["action"] == tenure.trace.ACTIONS.index("alloc")]
        >>> int(allocs["bytes"].max())
        314453136
        """
        import numpy as np

        words = ("time_us", "address", "bytes", "stream")
        dtype = np.dtype([*((word, "<u8") for word in words), ("action", "u1")], align=True)
        return np.frombuffer(self._native.events(), dtype)

    def save(self, path: FilePath) -> None:
        """Writes the trace to a file. The file appears whole or not at all.

        Parameters
        ----------
        path
            The file. Its extension is the format: ``.ttrace`` for Tenure's own, the smallest; ``.pickle``,
            ``.pickle.xz`` or ``.pickle.gz`` for PyTorch's.

        Raises
        ------
        ValueError
            The name has no known extension.
        tenure.TraceError
            The file cannot be written.

        Warns
        -----
        UserWarning
            The file lacks what its format cannot hold, or what `load` did not keep of the snapshot.
        """
        for left_out in self._native.save(os.fsdecode(path)):
            warnings.warn(f"{os.fsdecode(path)}: {left_out}", stacklevel=2)


@dataclass(frozen=True, kw_only=True)
class DriverCalls:
    """The driver calls that map or unmap memory. A call over several chunks counts once for each.

    Attributes
    ----------
    malloc, free
        Segments allocated and freed.
    create, release
        Chunks created and released.
    map, unmap
        Chunks mapped and unmapped.
    set_access
        Chunks made accessible.
    """

    malloc: int
    free: int
    create: int
    map: int
    set_access: int
    unmap: int
    release: int


@dataclass(frozen=True, kw_only=True)
class Held:
    """The memory that an allocator holds, by its own count and by the device's.

    Attributes
    ----------
    reserved_bytes
        The bytes that the allocator got and did not give back.
    used_bytes
        The bytes in use beyond those before the first allocation, by the device's own count.
    """

    reserved_bytes: int
    used_bytes: int


@dataclass(frozen=True, kw_only=True)
class Call:
    """The driver calls of one kind.

    Attributes
    ----------
    call
        The driver function.
    count
        The number of calls; a call over several chunks counts once for each.
    measured_us
        The wall-clock time of all of them, in µs.
    modelled_us
        The time that the model predicts for them, in µs; None if it does not model them.
    """

    call: str
    count: int
    measured_us: float
    modelled_us: float | None


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """A real device's figures of a replay.

    Attributes
    ----------
    measured_driver_us
        The measured time in µs of the calls that the model knows, over all passes.
    calls
        Every kind of call that the allocator made, over all passes.
    at_peak
        The memory at the peak of reserved bytes, as far as seen between two events.
    at_end
        The memory after the last pass, with everything freed and given back.
    blocks_checked
        The number of blocks that were read before their free and still had the bytes written to them.
    """

    measured_driver_us: float
    calls: tuple[Call, ...]
    at_peak: Held
    at_end: Held
    blocks_checked: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a replay: the figures of ``tenure replay --json``.

    Attributes
    ----------
    trace
        The trace's name.
    allocator
        The allocator.
    events
        The events of the trace's history, of every kind.
    earlier_bytes
        The bytes that were live before the trace's history began. Every peak includes them.
    recorded_reserved_bytes
        The peak of device bytes that the recorded allocator held; 0 if the trace does not record segments.
    recorded_reserved_end_bytes
        The device bytes that the recorded allocator held after the last event; 0 if the trace does not record segments.
    operations
        The allocations and frees of one pass, with those after its last event.
    peak_requested_bytes
        The peak of requested live bytes, over all passes.
    peak_allocated_bytes
        The peak of bytes in live blocks, as the allocator rounds them.
    peak_reserved_bytes
        The peak of device bytes held, as the driver counted them.
    peak_segments
        The peak of the number of segments. PyTorch does not count expandable ones; for ``paged``: maximal mapped runs.
    created_bytes
        The bytes obtained from the device, over all passes.
    driver_calls, driver_calls_last_repeat
        The driver calls of all passes, and of the last.
    modelled_driver_us, modelled_driver_us_last_repeat
        Their modelled time in µs, with waits for the device.
    trace_duration_us
        The time in µs from the trace's first event to its last, for one pass; None if the recorder had no clock.
    host_syncs
        The number of times that the host waited for the device on the allocator's behalf.
    cross_stream_waits
        The number of times that one stream was made to wait for another.
    mismatched_addresses
        The allocations of the first pass at other addresses than PyTorch's. None where addresses need not match.
    alloc_ns_median, alloc_ns_p99, free_ns_median
        The wall-clock time in ns of an allocation and of a free, with the driver's part.
    device
        A real device's figures; None after a replay on the simulated device.
    """

    trace: str
    allocator: Allocator
    events: int
    earlier_bytes: int
    recorded_reserved_bytes: int
    recorded_reserved_end_bytes: int
    operations: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_segments: int
    created_bytes: int
    driver_calls: DriverCalls
    driver_calls_last_repeat: DriverCalls
    modelled_driver_us: float
    modelled_driver_us_last_repeat: float
    trace_duration_us: int | None
    host_syncs: int
    cross_stream_waits: int
    mismatched_addresses: int | None
    alloc_ns_median: int
    alloc_ns_p99: int
    free_ns_median: int
    device: OnDevice | None = None


def load(path: FilePath, device: int | None = None) -> Trace:
    """Reads a trace: a PyTorch memory snapshot or Tenure's compact format, plain, xz or gzip, detected by content.

    Snapshots are pickles; no code in them is ever executed. Ctrl-C ends a long read.

    Parameters
    ----------
    path
        The file to read.
    device
        The device in the file, from 0. By default, the one with the highest peak of live bytes.

    Returns
    -------
    Trace

    Raises
    ------
    tenure.TraceError
        The file cannot be read, or is no trace. The message names the byte or the event.
    ValueError
        The device is negative.
    """
    if device is not None:
        device = whole_number("device", device, 0, _MOST_32)
    return Trace(_native.Trace.load(os.fsdecode(path), device))


@overload
def replay(
    trace: Trace | FilePath,
    allocator: Allocator,
    *,
    repeat: int = 1,
    lag_us: int = 0,
    driver: Literal["sim", "cuda"] = "sim",
    device: int = 0,
) -> Outcome: ...
@overload
def replay(
    trace: Trace | FilePath,
    allocator: list[Allocator] | tuple[Allocator, ...] = ALLOCATORS,
    *,
    repeat: int = 1,
    lag_us: int = 0,
    driver: Literal["sim", "cuda"] = "sim",
    device: int = 0,
) -> list[Outcome]: ...
def replay(
    trace: Trace | FilePath,
    allocator: Allocator | list[Allocator] | tuple[Allocator, ...] = ALLOCATORS,
    *,
    repeat: int = 1,
    lag_us: int = 0,
    driver: Literal["sim", "cuda"] = "sim",
    device: int = 0,
) -> Outcome | list[Outcome]:
    """Replays a program's use of memory on one allocator or several.

    Ctrl-C ends a long replay and leaves nothing on the device. Other Python threads run meanwhile.

    Parameters
    ----------
    trace
        A trace, or a file to load.
    allocator
        One of `ALLOCATORS`, or several of them.
    repeat
        The number of passes over the trace, one after the other; at least one.
    lag_us
        The time after a block's free at which the simulated device completes its work on the block, in µs of the trace.
    driver
        ``"sim"`` for a simulated device with the costs of an H200; ``"cuda"`` for real memory, with the measured times
        of driver calls and the device's own figures.
    device
        The device's number, for ``"cuda"``. There is one simulated device, 0.

    Returns
    -------
    Outcome or list of Outcome
        One outcome for one allocator, a list for several.

    Raises
    ------
    tenure.OutOfMemoryError
        The device is too small for the program's requests.
    tenure.DeviceError
        There is no such device, or one of its driver's calls failed.
    ValueError
        There is no such allocator or driver, a number is too small, or ``lag_us`` or ``device`` is given to a driver
        that does not have it.

    Examples
    --------
    >>> import tenure
    >>> outcome = tenure.trace.replay("tests/data/resnet50_step.pickle.xz", "paged")
    >>> outcome.host_syncs
    0
    """
    if not isinstance(trace, Trace):
        trace = load(trace)
    repeat = whole_number("repeat", repeat, 1, _MOST_32)
    lag_us = whole_number("lag_us", lag_us, 0, _MOST_64)
    device = whole_number("device", device, 0, _MOST_32)

    def play(allocator: str) -> Outcome:
        return _outcome(trace._native.replay(allocator, repeat, lag_us, driver, device))

    return play(allocator) if isinstance(allocator, str) else [play(each) for each in allocator]


def report(trace: Trace | FilePath, path: FilePath) -> None:
    """Writes a report on a trace: one HTML file, which needs no network and no script.

    It shows memory over time, the live memory at the peak, fragmentation, and how each allocator would have done.
    Ctrl-C ends a long one.

    Parameters
    ----------
    trace
        A trace, or a file to load.
    path
        The HTML file to write. It appears whole or not at all.

    Raises
    ------
    tenure.TraceError
        The trace cannot be read, or the report cannot be written.
    """
    if not isinstance(trace, Trace):
        trace = load(trace)
    file = Path(os.fsdecode(path))
    page = trace._native.report()
    try:
        write_whole(file, page)
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror} (os error {error.errno})") from error


def _outcome(text: str) -> Outcome:
    figures = json.loads(text)
    for calls in ("driver_calls", "driver_calls_last_repeat"):
        figures[calls] = DriverCalls(**figures[calls])
    if device := figures.pop("device", None):
        device["calls"] = tuple(Call(**call) for call in device["calls"])
        device["at_peak"], device["at_end"] = Held(**device["at_peak"]), Held(**device["at_end"])
        figures["device"] = OnDevice(**device)
    return Outcome(**figures)


class _TraceModule(ModuleType):
    """The module's class, since the package has one name for two things."""

    def __call__(self, *args: Any, **kwargs: Any) -> _native.Tensor:
        return _operations.trace(*args, **kwargs)


sys.modules[__name__].__class__ = _TraceModule
