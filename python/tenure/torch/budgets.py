"""Training steps of any model within a budget of memory."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from tenure import Error, _native
from tenure.torch.dynamo import runs_beside_compiled_code
from tenure.torch.entries import Entries
from tenure.torch.holdings import tensors_in
from tenure.torch.placement import is_alone, put_under
from tenure.torch.purpose import address_of
from tenure.torch.recipes import operations
from tenure.torch.saved_hooks import SavedHooks
from tenure.torch.tags import Hook

__all__ = ["Budget", "StepReport", "budget"]

_LOG = logging.getLogger("tenure")

#: Who plans what is kept and what is spilled.
Planner = Literal["scheduled", "flashneuron", "evolutionary", "milp"]

#: By what bytes are encoded on their way to a disk.
Codec = Literal["auto", "none", "zeros", "planes", "fp16", "csr-fp16"]

#: What `_native.Budget.phase` says: there is no step; or the budget is told of all that is saved in it, or of nothing.
_BETWEEN, _WATCHED, _UNWATCHED = range(3)

#: By device, which None is for the CPU.
_open: weakref.WeakValueDictionary[int | None, Budget] = weakref.WeakValueDictionary()
_opening = threading.Lock()


@dataclass(frozen=True)
class StepReport:
    """What became of a step."""

    #: None if it was measured without one.
    budget_bytes: int | None
    #: The most that was allocated at once, if that was looked at: in steps that were measured.
    peak_bytes: int | None
    #: Bytes that went out.
    spilled_bytes: int
    #: Bytes that came back.
    fetched_bytes: int
    #: Bytes that were computed again.
    recomputed_bytes: int
    #: How long that takes, as measured when they were computed first.
    recomputed_us: int
    #: How long the host waited for bytes to go or come.
    stalled_us: int
    #: Moves that no plan asked for: there was no room otherwise.
    unplanned: int
    #: Whether it was made by a plan, to the end.
    is_planned: bool
    #: How long the plan takes the device, by what was measured; None without a plan.
    predicted_us: int | None
    #: By what bytes were encoded on their way to a disk; a lossy one changes gradients.
    codec: str


class _Threads(threading.local):
    """What a thread entered."""

    def __init__(self) -> None:
        self.hooks: list[SavedHooks] = []
        #: How many calls of the model's modules that have hooks go on, one in the other.
        self.calls = 0


class _Nested(threading.local):
    """Budgets of a thread, of several devices, the innermost last."""

    def __init__(self) -> None:
        self.entered: list[Budget] = []
        #: Those by which is noted what their models make.
        self.noting: list[Budget] = []

    def hooks(self) -> SavedHooks:
        """Hooks that give what is saved to the budget of its device."""
        natives = {budget._device: budget._native for budget in self.entered}
        innermost = self.entered[-1]._native
        if len(natives) == 1:
            return SavedHooks(innermost.pack, innermost.unpack)

        def pack(tensor: Tensor) -> tuple[_native.Budget, Any]:
            native = natives.get(tensor.device, innermost)
            return native, native.pack(tensor)

        def unpack(saved: tuple[_native.Budget, Any]) -> Tensor:
            native, packed = saved
            return native.unpack(packed)

        return SavedHooks(pack, unpack)


_nested = _Nested()


class Budget:
    """A model's budget of memory, for what threads compute inside of a ``with`` block. Made by `budget`."""

    def __init__(self, module: nn.Module, native: _native.Budget, device: torch.device) -> None:
        self._module = module
        self._native = native
        self._device = device
        self._threads = _Threads()
        self._entering = threading.Lock()
        self._entered = 0
        self._is_over = False
        self._is_told = False
        self._report: StepReport | None = None
        self._entries = Entries(module, _BeforeModel(self), _BehindModel(self))
        #: A parameter that training changes, and how often it was written to when the step began.
        self._parameter = next((each for each in module.parameters() if each.requires_grad), None)
        self._writes = 0
        native.attach(weakref.ref(self))

    @property
    def bytes(self) -> int | None:
        """The budget; None until it is known what a step takes without one."""
        return self._native.bytes

    @property
    def plain_bytes(self) -> int | None:
        """The most that a step took without a budget; None if none was measured."""
        return self._native.plain_bytes

    @property
    def least_bytes(self) -> int | None:
        """The least budget that the steps can keep to that were measured so far; None if none was."""
        return self._native.least_bytes

    @contextmanager
    def step(self) -> Iterator[None]:
        """Says where a step begins and ends, for programs that want other borders than those that are found without.

        Without it, a step begins where the model is called or something is saved for backward, and ends where backward
        has let go of what was saved first, or where the model is called after its parameters were changed.
        """
        self._end()
        self._is_told = True
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._is_told = False
        self._end()

    def report(self) -> StepReport | None:
        """What became of the last step whose backward pass is over; the step ends by this.

        Returns
        -------
        StepReport or None
            None if there was none.
        """
        if (self._native.is_needed or self._native.phase == _UNWATCHED) and not self._is_told:
            self._end()
        return self._report

    def write_problem(self, path: str | PathLike[str]) -> None:
        """Writes what the planner was asked for the last step, for ``tenure plan`` to answer by others.

        Parameters
        ----------
        path
            A file of JSON.

        Raises
        ------
        tenure.Error
            No step was measured yet, or the file cannot be written.
        """
        if not self._native.write_problem(os.fspath(path)):
            raise Error("there is no plan yet: a budget makes one of steps that were measured")

    def close(self) -> None:
        """Ends the budget: nothing is limited any more. What was saved can still be used."""
        with _opening:
            if self._is_over:
                return
            self._is_over = True
            self._leave_model(all_calls=True)
            self._entries.remove()
            self._native.close()
            _open.pop(self._device.index, None)

    def __enter__(self) -> Self:
        if self._is_over:
            raise Error("this budget is over: make another by tenure.torch.budget()")
        self._native.enforce()
        _nested.entered.append(self)
        hooks = _nested.hooks()
        hooks.enter()
        self._threads.hooks.append(hooks)
        with self._entering:
            self._entered += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._threads.hooks:
            raise Error("this thread has not entered it: what a thread enters, it leaves itself")
        self._leave_model(all_calls=True)
        self._threads.hooks.pop().leave()
        _nested.entered.remove(self)
        with self._entering:
            self._entered -= 1
            is_last = self._entered == 0
        if not is_last:
            return
        try:
            if error is None:
                self._end()
            else:
                self._fail(error)
        finally:
            self.close()

    def _enter_model(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The program calls the model, or a part of it; or the model calls itself."""
        self._threads.calls += 1
        is_here = bool(self._threads.hooks) and torch.is_grad_enabled()
        # Not where a checkpoint computes again.
        if not is_here or torch._C._current_graph_task_id() != -1:
            return
        is_entered = self._threads.calls == 1
        if is_entered:
            self._entries.enter(module)
        if self._is_between(is_entered):
            # A call before may have been interrupted, of which hooks are not told.
            self._threads.calls = 1
            self._begin(*self._signature(module, args, kwargs))
            self._follow()
        if self._native.phase == _WATCHED:
            if self not in _nested.noting:
                _nested.noting.append(self)
            self._native.listen(True)

    def _is_between(self, is_entered: bool) -> bool:
        """Whether a step begins where the model is called."""
        phase = self._native.phase
        if phase == _BETWEEN:
            return True
        if self._is_told:
            return False
        has_learned = self._parameter is not None and self._parameter._version != self._writes
        return has_learned or (phase == _UNWATCHED and is_entered)

    def _begin_by_saving(self, tensor: Tensor) -> None:
        """Something is saved, and there is no step: the native budget calls this."""
        if self._is_over or torch._C._current_graph_task_id() != -1:
            return
        self._entries.watch()
        self._begin((tensor.dtype, tensor.dim()), tensor.shape, tensor.nbytes)

    def _begin(self, kind: Hashable, sizes: Hashable, input_bytes: int) -> None:
        self._end()
        if self._parameter is not None:
            self._writes = self._parameter._version
        signature = (_number(kind, sizes), _number(kind), input_bytes)
        is_unwatched = self._native.begin(signature, self._is_told)
        if planning := self._native.take_planning():
            _LOG.info("budget of %s: %s", self._device, planning)
        if not is_unwatched:
            self._native.stay(self._staying())

    def _follow(self) -> None:
        """This thread's hooks are there where the step is watched. A thread of several cannot speak for the others."""
        hooks = self._threads.hooks[-1]
        if self._native.phase == _WATCHED or self._entered > 1 or len(_nested.entered) > 1:
            hooks.resume()
        else:
            hooks.pause()

    def _wake(self) -> bool:
        """A step finds no room that was not watched: the native budget calls this in the thread that allocates.

        Returns whether the step is watched from now on. In backward, which has a stack of hooks of its own, it is not.
        """
        if not self._threads.hooks or torch._C._current_graph_task_id() != -1:
            return False
        self._native.stay(self._staying())
        self._threads.hooks[-1].resume()
        return True

    def _leave_model(self, *, all_calls: bool = False, has_failed: bool = False) -> None:
        """The model has returned, or raised an error."""
        self._threads.calls = 0 if all_calls else max(self._threads.calls - 1, 0)
        if self._threads.calls > 0:
            return
        if has_failed and self._threads.hooks and torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            # Nobody goes back through it. The next call does the same again, or more.
            self._native.interrupt()
        if self not in _nested.noting:
            return
        _nested.noting.remove(self)
        if _nested.noting:
            _nested.noting[-1]._native.listen(True)
        else:
            self._native.listen(False)

    def _end(self) -> None:
        report = self._native.finish()
        if report is not None:
            self._report = StepReport(**report)
            self._entries.settle()

    def _fail(self, error: BaseException) -> None:
        """The step was interrupted. If that was for want of what the engine could not do, says so."""
        failure = self._native.abandon()
        if failure is not None and isinstance(error, Exception):
            raise Error(failure) from error

    def _staying(self) -> list[int]:
        """Where that is which the model itself has."""
        return [address_of(tensor) for tensor in (*self._module.parameters(), *self._module.buffers())]

    def _signature(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Hashable, Hashable, int]:
        """What tells steps apart: their kind, the sizes of what the model is given, and its bytes."""
        tensors = list(tensors_in((args, kwargs)))
        sizes = tuple(tensor.shape for tensor in tensors)
        kinds = tuple((tensor.dim(), tensor.dtype, tensor.requires_grad) for tensor in tensors)
        device = self._device.type
        precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        input_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return (id(module), kinds, module.training, precision), sizes, input_bytes


def _number(*of: Hashable) -> int:
    """The same number for the same things."""
    return hash(of) & (1 << 64) - 1


# As torch.compiler.disable() does, without importing all of Dynamo. A step begins where compiled code is called, not
# where it is compiled.
Budget._enter_model._torchdynamo_disable = True  # type: ignore[attr-defined]
Budget._leave_model._torchdynamo_disable = True  # type: ignore[attr-defined]
Budget._enter_model._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
    "a budget's step begins here: give tenure.torch.budget() what torch.compile() returned"
)


class _BeforeModel(Hook):
    """Is called before each call of the model, or of a part at which a program enters it.

    A budget has its hooks, and they do not have it: so what it holds, such as room on a disk, goes with the last
    reference to it.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = weakref.ref(budget)

    @runs_beside_compiled_code
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if (budget := self._budget()) is not None:
            budget._enter_model(module, args, kwargs)


class _BehindModel(Hook):
    """Is called after it."""

    def __init__(self, budget: Budget) -> None:
        self._budget = weakref.ref(budget)

    @runs_beside_compiled_code
    def __call__(self, module: nn.Module, args: Any, result: Any) -> None:
        if (budget := self._budget()) is not None:
            budget._leave_model(has_failed=result is None and sys.exception() is not None)


def budget(
    module: nn.Module,
    memory: int | str,
    *,
    spill: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    spill_bytes: int | str | None = None,
    spill_daily_bytes: int | str | None = None,
    host_bytes: int | str | None = None,
    planner: Planner = "scheduled",
    codec: Codec = "auto",
) -> Budget:
    """Keeps training steps of a model within a budget of memory, with the same losses and gradients, bit for bit.

    What the forward pass saves for the backward pass is kept, leaves the device's memory and comes back in time, or is
    given up and computed again, by a plan made of steps that were measured: the first two, and those of other kinds, by
    what the model is called with. Steps that differ in sizes alone are estimated by two that were measured. Neither the
    model nor the loop that trains it changes. The budget holds inside of a ``with`` block, for the threads that enter
    it.

    Parameters
    ----------
    module
        The model, all of it on one device: a GPU with Tenure's allocator (`install`), or the CPU.
    memory
        The device's memory that this process may hold, weights and all: bytes, or text such as ``"12GiB"``. Or a share
        of what a step takes without a budget, such as ``"50%"``, for which the first two steps have none.
    spill
        A folder to spill to, or several that share the load. On the CPU the folder for temporary files, or /var/tmp if
        that is in memory itself, if none is given; on a GPU none.
    spill_bytes
        Bytes to take of these disks together, as a number or as ``"64GiB"``, set aside at once: half of what is free
        and at most 64 GiB, if it is not given.
    spill_daily_bytes
        How many bytes this budget may write to them in 24 hours, as disks wear out, before they are encoded and with
        those by which disks are measured: any number, if it is not given. What would write more, and has no room
        elsewhere, is an error.
    host_bytes
        Pinned memory of the host to spill a GPU's bytes to: half of what is available, if it is not given.
    planner
        Who plans what is spilled, and when. ``milp``, which takes longest, is only in a package that was built with it:
        ``pip install --config-settings build-args="--features milp" .``, for which cmake, C++ and libclang are needed.
    codec
        By what bytes are encoded on their way to a disk: by what measurements choose of ``zeros`` and ``planes``, which
        lose nothing, if it is not given. ``fp16`` and ``csr-fp16`` round numbers: gradients are others than without.

    Returns
    -------
    Budget
        For the ``with`` block. `Budget.report` says what became of a step.

    Raises
    ------
    tenure.Error
        The budget, a folder or the model's device cannot be used; the message says why. In the block: the budget is too
        small, before it was exceeded; bytes could not go or come back.

    Notes
    -----
    A step is what lies between two changes of the model's parameters, or what a backward pass ends, whatever calls the
    model. A step that fits into three quarters of the budget, by what is known of its sizes, is left alone: no
    hook is called for it, and no byte moves.

    A budget in bytes holds from the first allocation in the block on, also in the steps that are measured: what they
    save leaves where there is no room, or is computed again. What cannot be kept to is an error at once. A share has no
    limit in its first two steps; then `Budget.least_bytes` says how small a budget may be.

    A C++ compiler is needed once for each PyTorch, unless what it makes came with the package.

    Steps that do something else than others of their kind are made without a plan, and measured again. So are those
    that begin with more memory held than there was, such as an optimizer's state.

    Saved tensors smaller than 1 MiB, parameters and buffers stay, and so do tensor subclasses and what was not
    allocated by Tenure. What is written to by ways that autograd does not see (``.data``, NumPy) after it was saved may
    come back as it was then.

    ``torch.compile`` works. What one compiled graph saves is needed all at once by its backward pass: compile layers
    rather than the whole model, and give this the model that the program calls. CUDA graphs' memory stays.

    On the CPU, all memory of PyTorch's counts that is allocated while there is a budget, and the model, which moves.

    Examples
    --------
    >>> with tenure.torch.budget(model, "50%", spill="/mnt/ssd") as budget:  # doctest: +SKIP
    ...     for images, labels in loader:
    ...         loss = criterion(model(images), labels)
    ...         loss.backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    ...         print(budget.report())
    """
    wanted = _amount("memory", memory)
    disk_bytes, daily_bytes, pinned_bytes = (
        limit if limit is None else _bytes(name, limit)
        for name, limit in (
            ("spill_bytes", spill_bytes),
            ("spill_daily_bytes", spill_daily_bytes),
            ("host_bytes", host_bytes),
        )
    )
    device = _device_of(module)
    folders = [spill] if isinstance(spill, str | PathLike) else list(spill or ())
    if device.type == "cpu":
        put_under()
        for folder in filter(_native.Budget.is_in_memory, folders):
            text = f"{os.fspath(folder)} is in memory itself, and what is spilled there takes some: spill to a disk"
            warnings.warn(text, stacklevel=2)
    elif device.index not in _native.installed():
        raise Error(
            f"Tenure does not manage the memory of {device}: call tenure.torch.install() before the program first uses "
            "CUDA"
        )
    with _opening:
        if device.index in _open:
            raise Error(f"{device} has a budget already: leave its `with` block, or close() it")
        paths = [os.fspath(folder) for folder in folders]
        disks = (paths, disk_bytes, daily_bytes)
        native = _native.Budget(device.index, disks, pinned_bytes, planner, operations())
        native.set_codec(codec)
        if isinstance(wanted, int):
            native.set_bytes(wanted)
        else:
            native.set_percent(wanted)
        if device.type == "cpu":
            _move_in(module)
        made = _open[device.index] = Budget(module, native, device)
        return made


def _amount(name: str, value: object) -> int | float:
    """Bytes; or a share in percent, as a float."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 63:
        return value
    if not isinstance(value, str):
        raise Error(f"{name}={value!r}: expected a number of bytes above 0, or text such as '12GiB'")
    size, share = _native.parse_amount(name, value)
    if size and size < 1 << 63:
        return size
    if share:
        return share
    raise Error(f"{name}={value!r}: expected more than none, and less than 2^63 bytes")


def _bytes(name: str, value: object) -> int:
    amount = _amount(name, value)
    if isinstance(amount, float):
        raise Error(f"{name}={value!r}: a share has no meaning here: expected bytes, as a number or as '12GiB'")
    return amount


def _device_of(module: nn.Module) -> torch.device:
    """Where all of the model is."""
    if not isinstance(module, nn.Module):
        raise Error(f"a budget is of a torch.nn.Module, not of {type(module).__name__}")
    devices = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    if len(devices) != 1:
        names = ", ".join(sorted(map(str, devices))) or "nowhere, as it has no parameters"
        raise Error(f"a budget is of one device's memory, and the model is on {names}: budget a part that is on one")
    (device,) = devices
    if device.type not in ("cuda", "cpu"):
        raise Error(f"a budget is of the memory of a GPU or of the CPU, and the model is on {device}")
    return device


def _move_in(module: nn.Module) -> None:
    """Has what a model on the CPU holds count, where nobody else has it."""
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    tensors: list[Tensor] = [*module.parameters(), *module.buffers(), *gradients]
    for tensor in tensors:
        if type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and is_alone(tensor):
            tensor.data = tensor.data.clone()
