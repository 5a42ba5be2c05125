"""Steps of a model within a memory budget: the parts that PyTorch's models and Tenure's have in common."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from tenure import Error, OutOfMemoryError, _native
from tenure._entries import Entries, Hook
from tenure._native import BudgetPhase
from tenure._nested import instances_in

_LOG = logging.getLogger("tenure")

#: The planner that decides what is kept and what is spilled.
Planner = Literal["scheduled", "flashneuron", "evolutionary", "milp"]

#: The codec of bytes on their way to a disk.
Codec = Literal["auto", "none", "zeros", "planes", "fp16", "csr-fp16"]

#: One folder, or several.
Folders = str | PathLike[str] | Sequence[str | PathLike[str]]

#: The part of the documentation that `tenure.budget` and `tenure.torch.budget` share.
_PARAMETERS = """\
memory
    The device memory that this process may hold, weights included: bytes, or text such as ``"12GiB"``. Or a share
    of the peak of a step without a budget, such as ``"50%"``; more than ``"100%"`` leaves room for larger steps. Memory
    that the budget itself takes comes on top. A share has no limit until the optimizer has stepped twice, or until two
    backward passes have ended, if the program does not add up gradients over several. A program that adds up gradients
    and never changes its parameters has no limit in the first 64. Later, a step that takes more than all before it may
    exceed the share once: the share is of the largest step so far.
spill
    A folder to spill to, or several that share the load. Default on the CPU: the folder for temporary files, or
    /var/tmp if that folder is in memory itself. Default on a GPU: none.
spill_bytes
    The bytes to reserve on these disks together, as a number or as ``"64GiB"``; they are reserved at once. Default:
    half of the free space, at most 64 GiB. On a GPU, only with ``spill``; so are the next and ``codec``.
spill_daily_bytes
    The bytes that this budget may write to the disks in 24 hours, to limit their wear. They are counted before
    encoding and include the writes that measure the disks. Default: no limit. A step that would write more, and has
    no room elsewhere, raises an error.
host_bytes
    The pinned host memory to spill a GPU's bytes to. Default: half of the available memory. A budget on the CPU refuses
    it.
planner
    The planner that decides what is spilled, and when. ``milp``, the slowest, is only in a package that was built
    with it: ``pip install --config-settings build-args="--features milp" .``, which needs cmake, C++ and libclang.
codec
    The codec of bytes on their way to a disk. Default: ``zeros`` or ``planes``, as measurements choose; both lose
    nothing. ``fp16`` and ``csr-fp16`` round numbers, which changes gradients.

Returns
-------
Budget
    The budget, to be entered in a ``with`` block. `Budget.report` reports on a step.

Raises
------
tenure.Error
    The budget, a folder or the model's device cannot be used; the message says why. Inside the block: the budget is
    too small (raised before it is exceeded), or a transfer failed."""

_EXAMPLE = """\
Examples
--------
>>> with {maker}(model, "50%", spill="/mnt/ssd") as budget:  # doctest: +SKIP
...     for images, labels in loader:
...         loss = criterion(model(images), labels)
...         loss.backward()
...         optimizer.step()
...         optimizer.zero_grad()
...         print(budget.report())"""

#: All open budgets, by device index; None is the CPU.
_open: weakref.WeakValueDictionary[int | None, ModelBudget] = weakref.WeakValueDictionary()
_opening = threading.Lock()


_Function = TypeVar("_Function", bound=Callable[..., Any])


def described(maker: str) -> Callable[[_Function], _Function]:
    """Returns a decorator that puts the shared parts into the docstring of a function that makes budgets."""

    def describe(function: _Function) -> _Function:
        text = inspect.cleandoc(function.__doc__ or "")
        text = text.replace("{parameters}", _PARAMETERS)
        function.__doc__ = text.replace("{example}", _EXAMPLE.format(maker=maker))
        return function

    return describe


@dataclass(frozen=True)
class StepReport:
    """The report on a step."""

    #: The budget; None if the step was measured without one.
    budget_bytes: int | None
    #: The peak of allocated bytes, if it was measured, as it is in measured steps.
    peak_bytes: int | None
    #: The bytes that left the device's memory.
    spilled_bytes: int
    #: The bytes that were fetched back.
    fetched_bytes: int
    #: The bytes that were recomputed.
    recomputed_bytes: int
    #: The time of the operations that were recomputed, as measured when they first ran.
    recomputed_us: int
    #: The time that the host waited for transfers.
    stalled_us: int
    #: The number of moves outside of the plan, because there was no room otherwise.
    unplanned: int
    #: The bytes that lie in host memory and that the GPU uses in place: state of optimizers, and what found no room.
    zero_copy_bytes: int
    #: Whether the step followed a plan to the end.
    is_planned: bool
    #: The device time that the plan predicts from measurements; None without a plan.
    predicted_us: int | None
    #: The codec of the bytes written to a disk; a lossy one changes gradients.
    codec: str


class _ThreadState(threading.local):
    """The state of one thread in a budget."""

    def __init__(self) -> None:
        #: For each `with` block that the thread is in, what `ModelBudget._enter_thread` returned.
        self.entered: list[Any] = []
        #: The depth of nested calls of the model's modules that have hooks.
        self.calls = 0


class ModelBudget:
    """A model's memory budget for the work of threads inside a ``with`` block."""

    #: The function that makes budgets of this class.
    _maker: str
    #: The class of the model's tensors.
    _tensor: type
    #: The exception of an allocation of such tensors that finds no room.
    _out_of_memory: type[BaseException] = OutOfMemoryError

    def __init__(self, module: Any, native: _native.BudgetSteps, device: Any) -> None:
        self._module = module
        self._native = native
        self._device = device
        self._threads = _ThreadState()
        self._entering = threading.Lock()
        self._entered = 0
        self._is_closed = False
        self._is_marked = False
        self._report: StepReport | None = None
        self._entries = Entries(module, *self._hooks())
        #: A parameter that is trained, and how often it had been written to when the step began.
        self._parameter = next((each for each in module.parameters() if each.requires_grad), None)
        self._writes = 0
        #: The writes to all parameters when the step began, while a share is not settled.
        self._all_writes: int | None = None

    def _hooks(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Returns the hooks before and after a call of the model, which refer to the budget weakly."""
        return BeforeModel(self), AfterModel(self)

    def _enter_thread(self) -> Any:
        """Connects the calling thread to the budget. Returns what `_leave_thread` needs to undo it."""
        raise NotImplementedError

    def _leave_thread(self, entered: Any) -> None:
        raise NotImplementedError

    def _stay(self) -> None:
        """Keeps the model's own tensors in memory during the step that begins."""
        raise NotImplementedError

    def _is_in_backward(self) -> bool:
        raise NotImplementedError

    def _is_grad_enabled(self) -> bool:
        raise NotImplementedError

    def _precision(self) -> Hashable:
        """Returns the dtype of autocast, or None outside of it."""
        raise NotImplementedError

    @property
    def bytes(self) -> int | None:
        """The budget; None until the peak of a step without one is known."""
        return self._native.bytes

    @property
    def plain_bytes(self) -> int | None:
        """The peak of the largest step without a budget; None if none was measured.

        It is measured in the first steps of a share, and computed of larger ones that follow.
        """
        return self._native.plain_bytes

    @property
    def least_bytes(self) -> int | None:
        """The smallest budget that the steps measured so far can keep to; None if none was measured.

        It takes room to spill to: ``spill_bytes`` must be enough for all that has to leave at once.
        """
        return self._native.least_bytes

    @contextmanager
    def step(self) -> Iterator[None]:
        """Marks where a step begins and ends, for programs in which the budget would find other steps.

        Without it, a step begins where the model is called or a tensor is saved for backward. It ends where backward
        has freed the first tensor that the step saved, or where the model is called after its parameters were changed.
        """
        self._end()
        self._is_marked = True
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._is_marked = False
        self._end()

    def report(self) -> StepReport | None:
        """Returns the report on the last step whose backward pass is over. Ends that step.

        Returns
        -------
        StepReport or None
            None if there was none.
        """
        if (self._native.is_needed or self._native.phase == BudgetPhase.UNWATCHED) and not self._is_marked:
            self._end()
        return self._report

    def write_problem(self, path: str | PathLike[str]) -> None:
        """Writes the planning problem of the last step, so that ``tenure plan`` can solve it with other planners.

        Parameters
        ----------
        path
            The JSON file to write.

        Raises
        ------
        tenure.Error
            No step was measured yet, or the file cannot be written.
        """
        if not self._native.write_problem(os.fspath(path)):
            raise Error("there is no plan yet: a budget makes one of steps that were measured")

    def close(self) -> None:
        """Ends the budget and its limit. Saved tensors can still be used."""
        with _opening:
            if self._is_closed:
                return
            self._is_closed = True
            self._leave_model(all_calls=True)
            self._entries.remove()
            self._native.close()
            _open.pop(self._device.index, None)

    def __enter__(self) -> Self:
        if self._is_closed:
            raise Error(f"this budget is over: make another by {self._maker}()")
        self._native.enforce()
        self._threads.entered.append(self._enter_thread())
        with self._entering:
            self._entered += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._threads.entered:
            raise Error("this thread has not entered it: what a thread enters, it leaves itself")
        self._leave_model(all_calls=True)
        self._leave_thread(self._threads.entered.pop())
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

    def _trains(self) -> bool:
        """Returns whether this thread is in the budget, and does work for a backward pass.

        Backward itself may call the model: a checkpoint recomputes.
        """
        return bool(self._threads.entered) and self._is_grad_enabled() and not self._is_in_backward()

    def _enter_model(self, module: Any, args: Any, kwargs: Any) -> None:
        """Runs when the program calls the model or a part of it, or when the model calls itself."""
        self._threads.calls += 1
        if not self._trains():
            return
        is_entered = self._threads.calls == 1
        if is_entered:
            self._entries.enter(module)
        if self._begins_step(is_entered):
            # An earlier call may have been interrupted, and interrupts do not reach hooks.
            self._threads.calls = 1
            self._begin(*self._signature(module, args, kwargs))
            self._follow()

    def _follow(self) -> None:
        """Runs after a step began at a call of the model."""

    def _begins_step(self, is_entered: bool) -> bool:
        """Returns whether a step begins at this call of the model."""
        phase = self._native.phase
        if phase == BudgetPhase.NO_STEP:
            return True
        if self._is_marked:
            return False
        has_learned = self._parameter is not None and self._parameter._version != self._writes
        return has_learned or (phase == BudgetPhase.UNWATCHED and is_entered)

    def _begin_by_saving(self, tensor: Any) -> None:
        """Begins a step when a tensor is saved while none is open. The native budget calls this."""
        if self._is_closed or self._is_in_backward():
            return
        self._entries.watch()
        self._begin((tensor.dtype, tensor.dim()), tensor.shape, tensor.nbytes)

    def _adds_up(self) -> bool:
        """Returns whether the step that begins adds its gradients to those before, in a share's first steps."""
        if self._is_marked or self._native.bytes is not None:
            return False
        parameters = [each for each in self._module.parameters() if each.requires_grad]
        writes = sum(each._version for each in parameters)
        is_unchanged = writes == self._all_writes
        self._all_writes = writes
        return is_unchanged and any(each.grad is not None for each in parameters)

    def _begin(self, kind: Hashable, sizes: Hashable, input_bytes: int) -> None:
        self._end()
        if self._parameter is not None:
            self._writes = self._parameter._version
        signature = (_number(kind, sizes), _number(kind), input_bytes)
        is_unwatched = self._native.begin(signature, self._is_marked, self._adds_up())
        if planning := self._native.take_planning():
            _LOG.info("budget of %s: %s", self._device, planning)
        if not is_unwatched:
            self._stay()

    def _leave_model(self, *, all_calls: bool = False, has_failed: bool = False) -> None:
        """Runs when the model has returned or raised an error."""
        self._threads.calls = 0 if all_calls else max(self._threads.calls - 1, 0)
        if self._threads.calls == 0 and has_failed and self._trains():
            # No backward pass follows the failed call. The next call does the same work again, or more.
            self._native.interrupt()

    def _end(self) -> None:
        report = self._native.finish()
        if report is not None:
            self._report = StepReport(**report)
            self._entries.settle()

    def _fail(self, error: BaseException) -> None:
        """Ends an interrupted step. If the engine failed, raises its error."""
        failure = self._native.abandon(isinstance(error, self._out_of_memory))
        if failure is not None and isinstance(error, Exception):
            raise Error(failure) from error

    def _signature(self, module: Any, args: Any, kwargs: Any) -> tuple[Hashable, Hashable, int]:
        """Returns the identity of a step: its kind, the sizes of the model's inputs, and their bytes."""
        tensors: list[Any] = list(instances_in((args, kwargs), self._tensor))
        sizes = tuple(tensor.shape for tensor in tensors)
        kinds = tuple((tensor.dim(), tensor.dtype, tensor.requires_grad) for tensor in tensors)
        input_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return (id(module), kinds, module.training, self._precision()), sizes, input_bytes


class BeforeModel(Hook):
    """A hook before each call of the model, or of a part at which a program enters it.

    The budget refers to its hooks and they only weakly to it. So the budget's resources, such as room on a disk, are
    freed with the last reference to it.
    """

    def __init__(self, budget: ModelBudget) -> None:
        self._budget = weakref.ref(budget)

    def __call__(self, module: Any, args: Any, kwargs: Any) -> None:
        if (budget := self._budget()) is not None:
            budget._enter_model(module, args, kwargs)


class AfterModel(Hook):
    """A hook after each such call."""

    def __init__(self, budget: ModelBudget) -> None:
        self._budget = weakref.ref(budget)

    def __call__(self, module: Any, args: Any, result: Any) -> None:
        if (budget := self._budget()) is not None:
            budget._leave_model(has_failed=result is None and sys.exception() is not None)


_Budget = TypeVar("_Budget", bound=ModelBudget)


@dataclass(frozen=True)
class Limits:
    """The limits of a budget, as a program gave them."""

    #: Bytes as an int, or a share in percent as a float.
    memory: int | float
    folders: list[str]
    spill_bytes: int | None
    spill_daily_bytes: int | None
    host_bytes: int | None

    @classmethod
    def of(
        cls,
        memory: int | str,
        spill: Folders | None,
        spill_bytes: int | str | None,
        spill_daily_bytes: int | str | None,
        host_bytes: int | str | None,
    ) -> Self:
        """Reads the limits.

        Raises
        ------
        Error
            One of them is not an amount of bytes.
        """
        folders = [spill] if isinstance(spill, str | PathLike) else list(spill or ())
        return cls(
            _amount("memory", memory),
            [os.fspath(folder) for folder in folders],
            _bytes("spill_bytes", spill_bytes),
            _bytes("spill_daily_bytes", spill_daily_bytes),
            _bytes("host_bytes", host_bytes),
        )

    @property
    def spill(self) -> tuple[list[str], int | None, int | None]:
        """The folders to spill to, their capacity, and the bytes that may be written to them a day."""
        return self.folders, self.spill_bytes, self.spill_daily_bytes

    def warn_of_folders_in_memory(self) -> None:
        """Warns of folders that are in memory themselves, for a budget of the host's memory."""
        for folder in filter(_native.BudgetSteps.is_in_memory, self.folders):
            text = f"{folder} is in memory itself, and what is spilled there takes some: spill to a disk"
            warnings.warn(text, stacklevel=3)

    def _refuse_idle_options(self, device: Any, codec: str) -> None:
        """Refuses options that change nothing for this device: their user expects an effect."""
        if device.type == "cpu":
            if self.host_bytes is not None:
                raise Error(
                    f"host_bytes={self.host_bytes}: it has no meaning for a budget of the CPU's memory, which spills "
                    "to disks: leave it out, or limit the disks by spill_bytes"
                )
            return
        options = {
            "spill_bytes": self.spill_bytes,
            "spill_daily_bytes": self.spill_daily_bytes,
            "codec": None if codec == "auto" else codec,
        }
        for name, value in options.items():
            if value is not None and not self.folders:
                raise Error(
                    f"{name}={value!r}: it is about disks, and this budget has none: give a folder as spill, or leave "
                    f"{name} out"
                )

    def open(self, device: Any, codec: str, make: Callable[[], _Budget]) -> _Budget:
        """Returns the one budget of a device's memory, with these limits.

        Raises
        ------
        Error
            The device has a budget already, it cannot be made, or an option has no effect there.
        """
        self._refuse_idle_options(device, codec)
        with _opening:
            if device.index in _open:
                raise Error(f"{device} has a budget already: leave its `with` block, or close() it")
            budget = make()
            budget._native.set_codec(codec)
            if isinstance(self.memory, int):
                budget._native.set_bytes(self.memory)
            else:
                budget._native.set_percent(self.memory)
            _open[device.index] = budget
            return budget


def device_of(module: Any) -> Any:
    """Returns the one device that all of a model is on."""
    devices = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    if len(devices) != 1:
        names = ", ".join(sorted(map(str, devices))) or "nowhere, as it has no parameters"
        raise Error(f"a budget is of one device's memory, and the model is on {names}: budget a part that is on one")
    (device,) = devices
    if device.type not in ("cuda", "cpu"):
        raise Error(f"a budget is of the memory of a GPU or of the CPU, and the model is on {device}")
    return device


def _number(*of: Hashable) -> int:
    """Returns a hash as a number of 64 bits: the same for equal things."""
    return hash(of) & (1 << 64) - 1


def _amount(name: str, value: object) -> int | float:
    """Returns an amount in bytes as an int, or a share in percent as a float."""
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


def _bytes(name: str, value: object) -> int | None:
    if value is None:
        return None
    amount = _amount(name, value)
    if isinstance(amount, float):
        raise Error(f"{name}={value!r}: a share has no meaning here: expected bytes, as a number or as '12GiB'")
    return amount
