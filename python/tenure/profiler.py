"""A profiler of operations, the devices' work, and memory, by the names of `torch.profiler`.

Examples
--------
>>> import tenure
>>> from tenure.profiler import profile, record_function
>>> x = tenure.ones(64, 64, requires_grad=True)
>>> with profile(record_shapes=True) as prof:
...     with record_function("forward"):
...         y = (x @ x).sum()
...     y.backward()
>>> [row.count for row in prof.key_averages() if row.key == "forward"]
[1]
"""

from __future__ import annotations

import enum
import gzip
import json
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tenure import _native
from tenure._files import write_whole
from tenure._profile_events import EventList, FunctionEvent, FunctionEventAvg
from tenure.autograd import _Setting

__all__ = [
    "EventList",
    "FunctionEvent",
    "FunctionEventAvg",
    "ProfilerAction",
    "ProfilerActivity",
    "profile",
    "record_function",
    "schedule",
    "tensorboard_trace_handler",
]


class ProfilerActivity(enum.Enum):
    """The kinds of work that a profile can have: that of the host, and that of devices."""

    CPU = 0
    CUDA = 1


class ProfilerAction(enum.Enum):
    """What a profiler does during a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


_RECORDS = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Callable[[int], ProfilerAction]:
    """Returns a schedule of steps, for `profile`.

    Parameters
    ----------
    wait, warmup, active : int
        The steps of a cycle that are left out, that are left out to warm up, and that are recorded, in this order.
    repeat : int, default 0
        The number of cycles; 0 for no end.
    skip_first : int, default 0
        The number of steps before the first cycle.
    skip_first_wait : int, default 0
        Whether the first cycle has no `wait`, if it is not 0.

    Returns
    -------
    callable
        The action for each number of a step.

    Examples
    --------
    >>> from tenure.profiler import schedule
    >>> plan = schedule(wait=1, warmup=1, active=2, repeat=1)
    >>> [plan(step).name for step in range(5)]
    ['NONE', 'WARMUP', 'RECORD', 'RECORD_AND_SAVE', 'NONE']
    """
    if min(wait, warmup, repeat, skip_first, skip_first_wait) < 0 or active < 1:
        raise ValueError("a schedule records at least one step of each cycle, and no number of it is negative")

    def action(step: int) -> ProfilerAction:
        if step < skip_first:
            return ProfilerAction.NONE
        since = step - skip_first + (wait if skip_first_wait else 0)
        cycle, position = divmod(since, wait + warmup + active)
        if (repeat > 0 and cycle >= repeat) or position < wait:
            return ProfilerAction.NONE
        if position < wait + warmup:
            return ProfilerAction.WARMUP
        is_last = position == wait + warmup + active - 1
        return ProfilerAction.RECORD_AND_SAVE if is_last else ProfilerAction.RECORD

    return action


def tensorboard_trace_handler(
    dir_name: str | PathLike[str], worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """Returns a function that writes each profile into a folder, for ``profile(on_trace_ready=)``.

    Parameters
    ----------
    dir_name : path
        The folder. It is made if necessary.
    worker_name : str, default None
        The beginning of the files' names; by default the names of the host and the process.
    use_gzip : bool, default False
        Whether the files are compressed.
    """
    worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"

    def handle(prof: profile) -> None:
        folder = Path(dir_name)
        folder.mkdir(parents=True, exist_ok=True)
        ending = ".json.gz" if use_gzip else ".json"
        prof.export_chrome_trace(folder / f"{worker}.{time.time_ns()}.pt.trace{ending}")

    return handle


class record_function(_Setting):
    """Names a section of the program in profiles: a context manager, and a decorator of functions.

    Parameters
    ----------
    name : str
        The name.
    args : str, default None
        Added to the name, in parentheses.

    Examples
    --------
    >>> from tenure.profiler import record_function
    >>> @record_function("loss")
    ... def loss(x):
    ...     return x.square().mean()
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        super().__init__()
        self._name = name if args is None else f"{name}({args})"

    def _enter(self) -> int:
        return _native.enter_section(self._name)


class profile:
    """Records the operations of all threads, the devices' work, and memory: a context manager.

    A process records one profile at a time.

    Parameters
    ----------
    activities : iterable of ProfilerActivity, default None
        The kinds of work to record: both by default. Without ``CPU`` there are no operations and sections; without
        ``CUDA`` there is no work of devices.
    schedule : callable, default None
        The action for each number of a step, such as `schedule` returns; `step` begins the next step. By default
        everything is recorded.
    on_trace_ready : callable, default None
        Called with the profiler when a profile is complete: after each cycle of the schedule, or at the end.
    record_shapes : bool, default False
        Whether the sizes and dtypes of operations' arguments are recorded.
    profile_memory : bool, default False
        Whether changes of the bytes in use are recorded.
    with_stack, with_flops, with_modules : bool, default False
        Have no effect, with a warning: stacks, counts of additions and products, and modules are not recorded.
    max_events : int, default 1000000
        The number of events of each kind that are kept; the number of the others is printed with the table.

    Raises
    ------
    ValueError
        There are no activities.

    Examples
    --------
    >>> import tenure
    >>> from tenure.profiler import profile, schedule
    >>> steps = []
    >>> with profile(schedule=schedule(wait=1, warmup=0, active=2), on_trace_ready=steps.append) as prof:
    ...     for _ in range(3):
    ...         y = tenure.ones(4).exp()
    ...         prof.step()
    >>> sum(row.count for row in steps[0].key_averages() if row.key == "exp")
    2
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        max_events: int = 1_000_000,
    ) -> None:
        kinds = set(ProfilerActivity if activities is None else activities)
        if not kinds or not kinds <= set(ProfilerActivity):
            raise ValueError("give at least one of ProfilerActivity.CPU and ProfilerActivity.CUDA, or no activities")
        ignored = {"with_stack": with_stack, "with_flops": with_flops, "with_modules": with_modules}
        for name in (name for name, is_asked in ignored.items() if is_asked):
            warnings.warn(f"{name} has no effect: Tenure's profiler does not record it", stacklevel=2)
        self._schedule = schedule
        self._on_trace_ready = on_trace_ready
        has_host, has_devices = ProfilerActivity.CPU in kinds, ProfilerActivity.CUDA in kinds
        self._settings = (has_host, has_devices, record_shapes, profile_memory, max_events)
        self._running: _native.Profiler | None = None
        self._profile: _native.Profile | None = None
        self._section: record_function | None = None
        self.step_num = 0

    def start(self) -> None:
        """Starts to record, or the first step of the schedule.

        Raises
        ------
        RuntimeError
            Another profile is being recorded.
        """
        self._enter_action(self._action())

    def stop(self) -> None:
        """Stops recording. Waits for the devices' work."""
        self._end_section()
        if self._running is not None:
            self._finish()
            self._tell()

    def step(self) -> None:
        """Ends a step of the schedule, and begins the next one."""
        self._end_section()
        before = self._action()
        self.step_num += 1
        after = self._action()
        if self._schedule is not None and self._running is not None:
            if before is ProfilerAction.RECORD_AND_SAVE or after not in _RECORDS:
                self._finish()
                self._tell()
        self._enter_action(after)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def key_averages(self, group_by_input_shape: bool = False) -> EventList:
        """Returns the sums of the profile by name.

        Parameters
        ----------
        group_by_input_shape : bool, default False
            Whether calls with arguments of other sizes have rows of their own. Needs ``record_shapes``.

        Raises
        ------
        RuntimeError
            No profile is complete.
        """
        native = self._complete()
        rows = (
            FunctionEventAvg(
                key=row["name"],
                count=row["calls"],
                is_device_work=row["is_device_work"],
                input_shapes=row["shapes"],
                self_cpu_time_total=row["own_us"],
                cpu_time_total=row["total_us"],
                self_device_time_total=row["own_device_us"],
                device_time_total=row["device_us"],
                self_cpu_memory_usage=row["own_cpu_bytes"],
                cpu_memory_usage=row["cpu_bytes"],
                self_device_memory_usage=row["own_device_bytes"],
                device_memory_usage=row["device_bytes"],
            )
            for row in json.loads(native.averages(group_by_input_shape))
        )
        return EventList(rows, native, group_by_input_shape)

    def events(self) -> list[FunctionEvent]:
        """Returns each operation, backward formula and section, in the order in which they began.

        Raises
        ------
        RuntimeError
            No profile is complete.
        """
        return [FunctionEvent(**event) for event in json.loads(self._complete().events())]

    def export_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Writes the profile as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing open.

        Parameters
        ----------
        path : path
            The file. It is compressed if its name ends with ``.gz``.

        Raises
        ------
        RuntimeError
            No profile is complete.
        OSError
            The file cannot be written.
        """
        text = self._complete().chrome_trace()
        file = Path(path)
        write_whole(file, gzip.compress(text.encode()) if file.suffix == ".gz" else text)

    def _action(self) -> ProfilerAction:
        return ProfilerAction.RECORD if self._schedule is None else self._schedule(self.step_num)

    def _enter_action(self, action: ProfilerAction) -> None:
        if action in _RECORDS and self._running is None:
            self._running = _native.start_profiler(*self._settings)
        if self._schedule is not None and self._running is not None:
            self._section = record_function(f"ProfilerStep#{self.step_num}")
            self._section.__enter__()

    def _end_section(self) -> None:
        if self._section is not None:
            self._section.__exit__(None, None, None)
            self._section = None

    def _finish(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            self._profile = running.stop()

    def _tell(self) -> None:
        if self._on_trace_ready is not None:
            self._on_trace_ready(self)

    def _complete(self) -> _native.Profile:
        if self._profile is None:
            raise RuntimeError("no profile is complete: ask after the `with` block, after stop(), or in on_trace_ready")
        return self._profile
