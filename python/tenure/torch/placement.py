"""Placement of PyTorch's CPU tensors in tiers of memory, by a mapping."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor

from tenure import Error, _native
from tenure.torch.installation import InstallError, build
from tenure.torch.purpose import address_of, new_token

if TYPE_CHECKING:
    from tenure.plan import Problem

__all__ = ["Placement", "Recording", "WhenFull", "install", "is_alone", "put_under", "record", "settle"]

#: The treatment of an allocation whose tier is full.
WhenFull = Literal["refuse", "miss"]

_installing = threading.Lock()
_shim: ctypes.CDLL | None = None


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
        from tenure.torch.tagging.holdings import held_on_cpu

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


def settle(tensor: Tensor, tag: int, key: int, settled: dict[int, tuple[int, int]]) -> bool:
    """Moves a CPU tensor's memory to its key's place, if this thread is placed or recorded.

    `settled` has, by a tensor's id, its address and its placement. Memory that the tensor shares stays where it is:
    with other processes, NumPy arrays, views, or tensors saved for backward. Then returns False: a later call may find
    it unshared.
    """
    placed_in = _native.placed_in()
    address = address_of(tensor)
    if not placed_in or not address or tensor.device.type != "cpu" or settled.get(id(tensor)) == (address, placed_in):
        return True
    if not is_alone(tensor):
        return False
    token = new_token()
    _native.enter_purpose(token, tag, key)
    try:
        tensor.data = tensor.data.clone()
    finally:
        _native.leave_purpose(token)
    settled[id(tensor)] = address_of(tensor), placed_in
    return True


def is_alone(tensor: Tensor) -> bool:
    """Returns whether a CPU tensor shares its memory with nothing, so that it can be moved."""
    storage = tensor.untyped_storage()
    # The count includes the tensor and the storage object made here.
    is_own = storage.nbytes() == tensor.nbytes and torch._C._storage_Use_Count(storage._cdata) == 2
    return is_own and storage.resizable() and not storage.is_shared()


def put_under() -> None:
    """Installs the shim of PyTorch's CPU allocator, once."""
    global _shim
    with _installing:
        if _shim is not None:
            return
        try:
            library = build.built(build.Torch.current(), build.on_cpu())
            shim = ctypes.CDLL(str(library))
        except (build.BuildError, OSError) as error:
            raise InstallError(f"Tenure cannot be put under PyTorch's memory of the CPU: {error}") from error
        shim.tenure_cpu_install.restype = ctypes.c_bool
        message = ctypes.create_string_buffer(4096)
        if not shim.tenure_cpu_install(ctypes.c_void_p(_native.cpu_api()), message, ctypes.c_size_t(len(message))):
            raise InstallError(message.value.decode(errors="replace"))
        _shim = shim


def is_installed() -> bool:
    """Returns whether the shim is under PyTorch."""
    return _shim is not None
