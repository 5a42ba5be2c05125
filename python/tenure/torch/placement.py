"""Where PyTorch's tensors on the CPU live: in tiers of memory, by a mapping."""

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
from tenure.torch import build
from tenure.torch.purpose import address_of, new_token

if TYPE_CHECKING:
    from tenure.plan import Problem

__all__ = ["Placement", "Recording", "WhenFull", "install", "is_alone", "put_under", "record", "settle"]

#: What happens to an allocation whose tier is full.
WhenFull = Literal["refuse", "miss"]

_installing = threading.Lock()
_shim: ctypes.CDLL | None = None


class _Threads(threading.local):
    """The tokens with which a thread entered something."""

    def __init__(self) -> None:
        self.tokens: list[int] = []


class _Entered:
    """Something that threads enter and leave."""

    def __init__(self, native: _native.Placement | _native.Recorder) -> None:
        self._enter = native.enter
        self._threads = _Threads()

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
    """A mapping and the tiers that it is about. Made by ``install(device="cpu", ...)``.

    It places nothing by itself: a thread's tensors are placed inside of a ``with`` block, and those of other threads
    are not. What a block allocated stays where it is after it.
    """

    def __init__(self, native: _native.Placement) -> None:
        super().__init__(native)
        self._native = native

    def report(self) -> dict[str, Any]:
        """What is where at this moment, and how much of it is verified to be where it ought to be.

        Returns
        -------
        dict
            ``tiers``: of each its ``nature`` in words, whether it ``is_emulated``, and bytes by tag; ``verified_share``
            of tagged bytes that have a place, or are outside; ``mapped_share`` of all tagged bytes, and how many
            ``unmapped_bytes`` have no place; ``outside``: bytes by tag that tagged models and optimizers hold in no
            tier; ``keys`` of the mapping that came, that never came, and of the program that have no place. Other
            tensors that PyTorch allocated outside of the block are not in it.
        """
        report: dict[str, Any] = json.loads(self._reports()[0])
        return report

    def empty_cache(self) -> None:
        """Gives memory that no tensor uses back to the system: of DRAM, since files keep the room that they have."""
        self._native.release_cached()

    def measure(self, problem: Problem) -> None:
        """Measures how long the kernels of a problem take that was recorded of this program.

        Call `begin_iteration` before each step from here on, and then `kernel_times`. Each allocation reads the clock
        once.
        """
        self._native.measure(problem._native)

    def begin_iteration(self) -> None:
        """Has a step begin, whose kernels are measured if `measure` was called."""
        self._native.begin_iteration()

    def kernel_times(self) -> list[int]:
        """Ends the step that is measured. Steps that allocate something else than the problem says do not count.

        Returns
        -------
        list of int
            Nanoseconds of each of the problem's kernels, the mean over steps, for `tenure.plan.Agent.report`. An
            allocator cannot tell the optimizer's kernel from the one before it: they share their time by the bytes
            that they access.

        Raises
        ------
        tenure.Error
            No step allocated what the problem says; the text names the first difference.
        """
        return self._native.kernel_times_ns()

    def check(self) -> None:
        """Raises `tenure.Error` if a key of the mapping never came: it is another program's then."""
        self._native.check_all_came()

    def __str__(self) -> str:
        return self._reports()[1].rstrip()

    def _reports(self) -> tuple[str, str]:
        from tenure.torch.holdings import held_on_cpu

        outside: dict[int, int] = {}
        for address, number_of_bytes, tag in held_on_cpu():
            if not self._native.contains(address):
                outside[tag] = outside.get(tag, 0) + number_of_bytes
        return self._native.report(list(outside.items()))


class Recording(_Entered):
    """What a program allocates on the CPU. Made by `record`."""

    def __init__(self, native: _native.Recorder) -> None:
        super().__init__(native)
        self._native = native

    def begin_iteration(self) -> None:
        """Has the problem be of what comes from here on, and of what is held now."""
        self._native.begin_iteration()

    def write(self, path: str | PathLike[str], *, name: str = "program") -> None:
        """Writes the problem of placing what was recorded, which ``tenure plan`` reads (docs/problem-format.md)."""
        self._native.write(path, name)


def install(
    mapping: str | PathLike[str],
    tiers: Mapping[str, str],
    *,
    strict: bool = False,
    when_full: WhenFull = "refuse",
) -> Placement:
    """As `tenure.torch.install` with ``device="cpu"``."""
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
    """Records what PyTorch allocates on the CPU, for a mapping to be planned of.

    Returns
    -------
    Recording
        A thread is recorded inside of a ``with`` block, with the tags and keys of `tag`.

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
    """Brings what a tensor of the CPU holds to where its key lives, if this thread is placed or recorded.

    `settled` has where tensors went, and in which placement, by their identities. Memory that others have, too, stays
    where it is: other processes, arrays of NumPy, views, and what was saved for backward. False if so: later it may be
    the tensor's alone.
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
    """Whether nobody else has the memory of a tensor of the CPU, so that it may move."""
    storage = tensor.untyped_storage()
    # Two have it: the tensor, and the object that asks.
    is_own = storage.nbytes() == tensor.nbytes and torch._C._storage_Use_Count(storage._cdata) == 2
    return is_own and storage.resizable() and not storage.is_shared()


def put_under() -> None:
    """Installs the shim, once."""
    global _shim
    from tenure.torch.installation import InstallError

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
    """Whether the shim is under PyTorch."""
    return _shim is not None
