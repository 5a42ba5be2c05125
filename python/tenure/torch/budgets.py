"""Training steps of any model within a memory budget."""

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

#: The planner that decides what is kept and what is spilled.
Planner = Literal["scheduled", "flashneuron", "evolutionary", "milp"]

#: The codec of bytes on their way to a disk.
Codec = Literal["auto", "none", "zeros", "planes", "fp16", "csr-fp16"]

#: The values of `_native.Budget.phase`: no step is open; the open step reports all saved tensors to the budget; or
#: none.
_NO_STEP, _WATCHED, _UNWATCHED = range(3)

#: All open budgets, by device index; None is the CPU.
_open: weakref.WeakValueDictionary[int | None, Budget] = weakref.WeakValueDictionary()
_opening = threading.Lock()


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
    #: Whether the step followed a plan to the end.
    is_planned: bool
    #: The device time that the plan predicts from measurements; None without a plan.
    predicted_us: int | None
    #: The codec of the bytes written to a disk; a lossy one changes gradients.
    codec: str


class _ThreadState(threading.local):
    """The state of one thread in a budget."""

    def __init__(self) -> None:
        self.hooks: list[SavedHooks] = []
        #: The depth of nested calls of the model's modules that have hooks.
        self.calls = 0


class _Nested(threading.local):
    """The budgets that a thread is in, of several devices, the innermost last."""

    def __init__(self) -> None:
        self.entered: list[Budget] = []
        #: The budgets that record the operations of their models.
        self.noting: list[Budget] = []

    def hooks(self) -> SavedHooks:
        """Returns hooks that pass each saved tensor to the budget of its device."""
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
    """A model's memory budget for the work of threads inside a ``with`` block. `budget` makes it."""

    def __init__(self, module: nn.Module, native: _native.Budget, device: torch.device) -> None:
        self._module = module
        self._native = native
        self._device = device
        self._threads = _ThreadState()
        self._entering = threading.Lock()
        self._entered = 0
        self._is_closed = False
        self._is_marked = False
        self._report: StepReport | None = None
        self._entries = Entries(module, _BeforeModel(self), _AfterModel(self))
        #: A parameter that is trained, and how often it had been written to when the step began.
        self._parameter = next((each for each in module.parameters() if each.requires_grad), None)
        self._writes = 0
        native.attach(weakref.ref(self))

    @property
    def bytes(self) -> int | None:
        """The budget; None until the peak of a step without one is known."""
        return self._native.bytes

    @property
    def plain_bytes(self) -> int | None:
        """The peak of a step without a budget; None if none was measured."""
        return self._native.plain_bytes

    @property
    def least_bytes(self) -> int | None:
        """The smallest budget that the steps measured so far can keep to; None if none was measured."""
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
        if (self._native.is_needed or self._native.phase == _UNWATCHED) and not self._is_marked:
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
        """Runs when the program calls the model or a part of it, or when the model calls itself."""
        self._threads.calls += 1
        is_here = bool(self._threads.hooks) and torch.is_grad_enabled()
        # Skipped where a checkpoint recomputes.
        if not is_here or torch._C._current_graph_task_id() != -1:
            return
        is_entered = self._threads.calls == 1
        if is_entered:
            self._entries.enter(module)
        if self._begins_step(is_entered):
            # An earlier call may have been interrupted, and interrupts do not reach hooks.
            self._threads.calls = 1
            self._begin(*self._signature(module, args, kwargs))
            self._set_hooks()
        if self._native.phase == _WATCHED:
            if self not in _nested.noting:
                _nested.noting.append(self)
            self._native.listen(True)

    def _begins_step(self, is_entered: bool) -> bool:
        """Returns whether a step begins at this call of the model."""
        phase = self._native.phase
        if phase == _NO_STEP:
            return True
        if self._is_marked:
            return False
        has_learned = self._parameter is not None and self._parameter._version != self._writes
        return has_learned or (phase == _UNWATCHED and is_entered)

    def _begin_by_saving(self, tensor: Tensor) -> None:
        """Begins a step when a tensor is saved while none is open. The native budget calls this."""
        if self._is_closed or torch._C._current_graph_task_id() != -1:
            return
        self._entries.watch()
        self._begin((tensor.dtype, tensor.dim()), tensor.shape, tensor.nbytes)

    def _begin(self, kind: Hashable, sizes: Hashable, input_bytes: int) -> None:
        self._end()
        if self._parameter is not None:
            self._writes = self._parameter._version
        signature = (_number(kind, sizes), _number(kind), input_bytes)
        is_unwatched = self._native.begin(signature, self._is_marked)
        if planning := self._native.take_planning():
            _LOG.info("budget of %s: %s", self._device, planning)
        if not is_unwatched:
            self._native.stay(self._staying())

    def _set_hooks(self) -> None:
        """Sets this thread's hooks if the step is watched, else removes them.

        The hooks are also set if several threads are in this budget, or if this thread is in several budgets.
        """
        hooks = self._threads.hooks[-1]
        if self._native.phase == _WATCHED or self._entered > 1 or len(_nested.entered) > 1:
            hooks.resume()
        else:
            hooks.pause()

    def _wake(self) -> bool:
        """Sets the hooks when an unwatched step finds no room. The native budget calls this in the allocating thread.

        Returns whether the step is watched from now on. In backward it is not: backward has a hook stack of its own.
        """
        if not self._threads.hooks or torch._C._current_graph_task_id() != -1:
            return False
        self._native.stay(self._staying())
        self._threads.hooks[-1].resume()
        return True

    def _leave_model(self, *, all_calls: bool = False, has_failed: bool = False) -> None:
        """Runs when the model has returned or raised an error."""
        self._threads.calls = 0 if all_calls else max(self._threads.calls - 1, 0)
        if self._threads.calls > 0:
            return
        if has_failed and self._threads.hooks and torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            # No backward pass follows the failed call. The next call does the same work again, or more.
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
        """Ends an interrupted step. If the engine failed, raises its error."""
        failure = self._native.abandon()
        if failure is not None and isinstance(error, Exception):
            raise Error(failure) from error

    def _staying(self) -> list[int]:
        """Returns the addresses of the model's own tensors, which stay in memory."""
        return [address_of(tensor) for tensor in (*self._module.parameters(), *self._module.buffers())]

    def _signature(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Hashable, Hashable, int]:
        """Returns the identity of a step: its kind, the sizes of the model's inputs, and their bytes."""
        tensors = list(tensors_in((args, kwargs)))
        sizes = tuple(tensor.shape for tensor in tensors)
        kinds = tuple((tensor.dim(), tensor.dtype, tensor.requires_grad) for tensor in tensors)
        device = self._device.type
        precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        input_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return (id(module), kinds, module.training, precision), sizes, input_bytes


def _number(*of: Hashable) -> int:
    """Returns a hash as a number of 64 bits: the same for equal things."""
    return hash(of) & (1 << 64) - 1


# The same as torch.compiler.disable() does, without importing all of Dynamo. A step begins where compiled code is
# called, not where it is compiled.
Budget._enter_model._torchdynamo_disable = True  # type: ignore[attr-defined]
Budget._leave_model._torchdynamo_disable = True  # type: ignore[attr-defined]
Budget._enter_model._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
    "a budget's step begins here: give tenure.torch.budget() what torch.compile() returned"
)


class _BeforeModel(Hook):
    """A hook before each call of the model, or of a part at which a program enters it.

    The budget refers to its hooks and they only weakly to it. So the budget's resources, such as room on a disk, are
    freed with the last reference to it.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = weakref.ref(budget)

    @runs_beside_compiled_code
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if (budget := self._budget()) is not None:
            budget._enter_model(module, args, kwargs)


class _AfterModel(Hook):
    """A hook after each such call."""

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
    """Keeps training steps of a model within a memory budget, with the same losses and gradients, bit for bit.

    Tensors that the forward pass saves for the backward pass are kept, leave the device's memory and come back in time,
    or are freed and recomputed. A plan decides which. It is made from measured steps: the first two, and the first of
    each other kind; a kind is given by the inputs of the model. Steps that differ in sizes alone are estimated from two
    measured ones. Neither the model nor its training loop changes. The budget holds inside a ``with`` block, for the
    threads that enter it.

    Parameters
    ----------
    module
        The model, all of it on one device: a GPU with Tenure's allocator (`install`), or the CPU.
    memory
        The device memory that this process may hold, weights included: bytes, or text such as ``"12GiB"``. Or a share
        of the peak of a step without a budget, such as ``"50%"``: then the first two steps have no limit.
    spill
        A folder to spill to, or several that share the load. Default on the CPU: the folder for temporary files, or
        /var/tmp if that folder is in memory itself. Default on a GPU: none.
    spill_bytes
        The bytes to reserve on these disks together, as a number or as ``"64GiB"``; they are reserved at once. Default:
        half of the free space, at most 64 GiB.
    spill_daily_bytes
        The bytes that this budget may write to the disks in 24 hours, to limit their wear. They are counted before
        encoding and include the writes that measure the disks. Default: no limit. A step that would write more, and has
        no room elsewhere, raises an error.
    host_bytes
        The pinned host memory to spill a GPU's bytes to. Default: half of the available memory.
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
        too small (raised before it is exceeded), or a transfer failed.

    Notes
    -----
    A step is the work between two changes of the model's parameters, or the work that a backward pass ends, however the
    model is called. A step that by its sizes fits into three quarters of the budget is left alone: its hooks are not
    called, and no byte moves.

    A budget in bytes holds from the first allocation in the block on, also in measured steps: their saved tensors leave
    the device or are recomputed where there is no room. A budget that cannot be kept raises an error at once. A share
    sets no limit in its first two steps; after them `Budget.least_bytes` says how small a budget may be.

    A C++ compiler is needed once for each version of PyTorch, unless the compiled shim came with the package.

    A step that does other work than the earlier steps of its kind runs without a plan and is measured again. So is a
    step that begins with more memory held than before, such as an optimizer's state.

    Saved tensors smaller than 1 MiB, parameters and buffers stay in memory. So do tensor subclasses and memory that
    Tenure did not allocate. A saved tensor that is later written to in ways that autograd does not see (``.data``,
    NumPy) may come back with its old values.

    ``torch.compile`` works. The backward pass of a compiled graph needs all its saved tensors at once: so compile
    layers rather than the whole model, and pass this function the model that the program calls. The memory of CUDA
    graphs stays.

    On the CPU, the budget covers all memory that PyTorch allocates while it is open, and the model, which is moved.

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


def _bytes(name: str, value: object) -> int:
    amount = _amount(name, value)
    if isinstance(amount, float):
        raise Error(f"{name}={value!r}: a share has no meaning here: expected bytes, as a number or as '12GiB'")
    return amount


def _device_of(module: nn.Module) -> torch.device:
    """Returns the one device that all of the model is on."""
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
    """Moves a CPU model's tensors into memory that the budget counts, where nothing else shares their memory."""
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    tensors: list[Tensor] = [*module.parameters(), *module.buffers(), *gradients]
    for tensor in tensors:
        if type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and is_alone(tensor):
            tensor.data = tensor.data.clone()
