"""Placement of PyTorch's CPU tensors in tiers of memory, by a mapping."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from tenure import Error, _native
from tenure.torch.installation.cpu import put_under
from tenure.torch.tagging.holdings import held_on_cpu

if TYPE_CHECKING:
    from tenure.plan import Problem

__all__ = ["Placement", "Recording", "WhenFull", "install", "record"]

#: The treatment of an allocation whose tier is full.
WhenFull = Literal["refuse", "miss"]


class _ThreadTokens(threading.local):
    """The tokens of a thread's open `with` blocks."""

    def __init__(self) -> None:
        self.tokens: list[int] = []


class _Entered:
    """A base class of placements and recordings, which threads enter and leave."""

    def __init__(self, native: _native.Placement | _native.Recorder) -> None:
        self._enter = native.enter
        self._threads = _ThreadTokens()

    def __enter__(self) -> Self:
        self._threads.tokens.append(self._enter())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._threads.tokens:
            raise Error("this thread has not entered it: what a thread enters, it leaves itself")
        _native.leave_placement(self._threads.tokens.pop())


class Placement(_Entered):
    """A mapping and its tiers. ``install(device="cpu", ...)`` makes it.

    It places nothing by itself: a thread's tensors are placed inside a ``with`` block, and those of other threads are
    not. Tensors allocated in a block stay where they are after it.
    """

    def __init__(self, native: _native.Placement) -> None:
        super().__init__(native)
        self._native = native

    def report(self) -> dict[str, Any]:
        """Returns where tensors are now, and which share of them is verified to be in its place.

        Returns
        -------
        dict
            ``tiers``: for each its ``nature`` in words, whether it ``is_emulated``, and bytes by tag;
            ``verified_share``: the share of tagged bytes that have a place, or are outside; ``mapped_share``: the share
            of all tagged bytes that have a place; ``unmapped_bytes``: those that have none; ``outside``: bytes by tag
            that tagged models and optimizers hold in no tier; ``keys``: those of the mapping that came, those that
            never came, and those of the program that have no place. Other tensors that PyTorch allocated outside of the
            block are not counted.
        """
        report: dict[str, Any] = json.loads(self._reports()[0])
        return report

    def empty_cache(self) -> None:
        """Gives memory that no tensor uses back to the system. Only DRAM is given back: files keep their size."""
        self._native.release_cached()

    def measure(self, problem: Problem) -> None:
        """Measures the kernel times of a problem that was recorded from this program.

        From here on, call `begin_iteration` before each step, then `kernel_times`. Each allocation reads the clock
        once.
        """
        self._native.measure(problem._native)

    def begin_iteration(self) -> None:
        """Begins a step. Its kernels are measured if `measure` was called."""
        self._native.begin_iteration()

    def kernel_times(self) -> list[int]:
        """Ends the measured step. Steps whose allocations differ from the problem's do not count.

        Returns
        -------
        list of int
            The time in nanoseconds of each of the problem's kernels, the mean over steps, for
            `tenure.plan.Agent.report`. An allocator cannot tell the optimizer's kernel from the one before it: these
            two share their time in proportion to the bytes that they access.

        Raises
        ------
        tenure.Error
            No step made the problem's allocations; the message names the first difference.
        """
        return self._native.kernel_times_ns()

    def check(self) -> None:
        """Raises `tenure.Error` if a key of the mapping was never allocated: then the mapping is another program's."""
        self._native.check_all_came()

    def __str__(self) -> str:
        return self._reports()[1].rstrip()

    def _reports(self) -> tuple[str, str]:
        outside: dict[int, int] = {}
        for address, number_of_bytes, tag in held_on_cpu():
            if not self._native.contains(address):
                outside[tag] = outside.get(tag, 0) + number_of_bytes
        return self._native.report(list(outside.items()))


class Recording(_Entered):
    """A recording of a program's CPU allocations. `record` makes it."""

    def __init__(self, native: _native.Recorder) -> None:
        super().__init__(native)
        self._native = native

    def begin_iteration(self) -> None:
        """Begins the problem here: it contains what is held now and what is allocated from now on."""
        self._native.begin_iteration()

    def write(self, path: str | PathLike[str], *, name: str = "program") -> None:
        """Writes the recording's placement problem, which ``tenure plan`` reads (docs/reference/problem-format.md)."""
        self._native.write(path, name)


def install(
    mapping: str | PathLike[str],
    tiers: Mapping[str, str],
    *,
    strict: bool = False,
    when_full: WhenFull = "refuse",
) -> Placement:
    """Installs like `tenure.torch.install` with ``device="cpu"``."""
    if when_full not in ("refuse", "miss"):
        raise Error(f"when_full={when_full!r}: expected 'refuse' or 'miss'")
    native = _native.Placement(mapping, list(tiers.items()), strict, when_full == "miss")
    try:
        put_under()
    except BaseException:
        native.discard()
        raise
    return Placement(native)


def record() -> Recording:
    """Records PyTorch's CPU allocations, so that a mapping can be planned.

    Returns
    -------
    Recording
        The recording. A thread is recorded inside a ``with`` block, with the tags and keys of `tag`.

    Raises
    ------
    InstallError
        Tenure cannot be put under PyTorch; the message says what to do.

    Examples
    --------
    >>> with tenure.torch.record() as recording, tenure.torch.tag(model, optimizer):  # doctest: +SKIP
    ...     step(model, optimizer)
    >>> recording.write("problem.json")  # doctest: +SKIP
    """
    put_under()
    return Recording(_native.Recorder())
