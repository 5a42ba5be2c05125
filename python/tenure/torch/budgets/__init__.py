"""Training steps of any model within a memory budget."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn

from tenure import Error, _native
from tenure._budget_steps import (
    AfterModel,
    BeforeModel,
    Codec,
    Folders,
    Limits,
    ModelBudget,
    Planner,
    StepReport,
    described,
    device_of,
)
from tenure._entries import is_compiled
from tenure._native import BudgetPhase, SavedHooks
from tenure.torch.budgets.functional import let_functions_through
from tenure.torch.budgets.recipes import operations
from tenure.torch.budgets.state import TrainingState
from tenure.torch.dynamo import runs_beside_compiled_code
from tenure.torch.installation.cpu import put_under
from tenure.torch.purpose import address_of
from tenure.torch.settling import is_alone

__all__ = ["Budget", "StepReport", "budget"]


class _Nested(threading.local):
    """The budgets that a thread is in, of several devices, the innermost last."""

    def __init__(self) -> None:
        self.entered: list[Budget] = []
        #: The budgets that record the operations of their models.
        self.noting: list[Budget] = []

    def enter_hooks(self) -> SavedHooks:
        """Puts hooks on the thread's stack that pass each saved tensor to the budget of its device."""
        natives = {budget._device: budget._native for budget in self.entered}
        innermost = self.entered[-1]._native
        if len(natives) == 1:
            return SavedHooks(operations(), innermost.pack, innermost.unpack)

        def pack(tensor: Tensor) -> tuple[_native.Budget, Any]:
            native = natives.get(tensor.device, innermost)
            return native, native.pack(tensor)

        def unpack(saved: tuple[_native.Budget, Any]) -> Tensor:
            native, packed = saved
            return native.unpack(packed)

        return SavedHooks(operations(), pack, unpack)


_nested = _Nested()


def _suspend(is_suspended: bool) -> None:
    """Takes the hooks of this thread's budgets off the stack, or puts them back as they were."""
    for budget in reversed(_nested.entered) if is_suspended else _nested.entered:
        budget._threads.entered[-1].suspend(is_suspended)


class Budget(ModelBudget):
    """A model's memory budget for the work of threads inside a ``with`` block. `budget` makes it."""

    _maker = "tenure.torch.budget"
    _tensor = Tensor
    _out_of_memory = torch.OutOfMemoryError

    def __init__(self, module: nn.Module, native: _native.Budget, device: torch.device) -> None:
        super().__init__(module, native, device)
        self._native: _native.Budget = native
        native.attach(weakref.ref(self))
        state = _native.BudgetState.of(native)
        self._state = None if state is None else TrainingState(state, module, device)
        if is_compiled(module):
            native.set_advice(
                "the model is compiled as a whole, and a compiled graph needs all its saved tensors at once: compile "
                "its layers, each by itself"
            )

    def _hooks(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        return _BeforeModel(self), _AfterModel(self)

    def _enter_thread(self) -> SavedHooks:
        _nested.entered.append(self)
        self._native.count_thread(True)
        if self._state is not None:
            self._state.watch()
            self._state.make_room(torch.cuda.memory_allocated(self._device) - (self.bytes or sys.maxsize))
        let_functions_through(_suspend)
        return _nested.enter_hooks()

    def _leave_thread(self, entered: SavedHooks) -> None:
        entered.leave()
        self._native.count_thread(False)
        _nested.entered.remove(self)

    def close(self) -> None:
        super().close()
        if self._state is not None:
            self._state.leave()

    def _stay(self) -> None:
        self._native.stay([address_of(each) for each in (*self._module.parameters(), *self._module.buffers())])

    def _is_in_backward(self) -> bool:
        return torch._C._current_graph_task_id() != -1

    def _is_grad_enabled(self) -> bool:
        return torch.is_grad_enabled()

    def _precision(self) -> Hashable:
        device = self._device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None

    def _begin(self, kind: Hashable, sizes: Hashable, input_bytes: int) -> None:
        self._end()
        if self._state is not None:
            self._state.begin_step()
        super()._begin(kind, sizes, input_bytes)

    def _enter_model(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        super()._enter_model(module, args, kwargs)
        if self._trains() and self._native.phase == BudgetPhase.WATCHED:
            if self not in _nested.noting:
                _nested.noting.append(self)
            self._native.listen(True)

    def _leave_model(self, *, all_calls: bool = False, has_failed: bool = False) -> None:
        super()._leave_model(all_calls=all_calls, has_failed=has_failed)
        if self._threads.calls > 0:
            return
        if self._state is not None:
            self._state.end_call()
        if self not in _nested.noting:
            return
        _nested.noting.remove(self)
        if _nested.noting:
            _nested.noting[-1]._native.listen(True)
        else:
            self._native.listen(False)

    def _follow(self) -> None:
        """Sets this thread's hooks if the step is watched, else removes them.

        The hooks are also set if several threads are in this budget, or if this thread is in several budgets. A step
        that follows a plan removes them and sets them again as it goes on.
        """
        hooks = self._threads.entered[-1]
        if self._native.phase == BudgetPhase.WATCHED or self._entered > 1 or len(_nested.entered) > 1:
            hooks.resume()
        else:
            hooks.pause()

    def _release_state(self, wanted: int, with_parameters: bool) -> bool:
        """Moves some of the training's state to host memory. The native budget calls this between steps."""
        return self._state is not None and self._state.release(wanted, with_parameters=with_parameters)

    def _wake(self) -> bool:
        """Sets the hooks when an unwatched step finds no room. The native budget calls this in the allocating thread.

        Returns whether the step is watched from now on. In backward it is not: backward has a hook stack of its own.
        """
        if not self._threads.entered or self._is_in_backward():
            return False
        self._stay()
        self._threads.entered[-1].resume()
        return True


# The same as torch.compiler.disable() does, without importing all of Dynamo. A step begins where compiled code is
# called, not where it is compiled.
Budget._enter_model._torchdynamo_disable = True  # type: ignore[attr-defined]
Budget._leave_model._torchdynamo_disable = True  # type: ignore[attr-defined]
Budget._enter_model._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
    "a budget's step begins here: give tenure.torch.budget() what torch.compile() returned"
)


class _BeforeModel(BeforeModel):
    @runs_beside_compiled_code
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        super().__call__(module, args, kwargs)


class _AfterModel(AfterModel):
    @runs_beside_compiled_code
    def __call__(self, module: nn.Module, args: Any, result: Any) -> None:
        super().__call__(module, args, result)


@described("tenure.torch.budget")
def budget(
    module: nn.Module,
    memory: int | str,
    *,
    spill: Folders | None = None,
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
    {parameters}

    Notes
    -----
    A step is the work between two changes of the model's parameters, or the work that a backward pass ends, however the
    model is called. A step that by its sizes fits into three quarters of the budget is left alone: its hooks are not
    called, and no byte moves.

    A budget in bytes holds from the first allocation in the block on, also in measured steps: their saved tensors leave
    the device or are recomputed where there is no room. A budget that cannot be kept raises an error at once. A share
    has no limit in the first steps, which it is taken of; after them `Budget.least_bytes` says how small a budget may
    be. A step that takes more than a share has room for is not refused in its middle: it is measured, the share grows
    with it, and if it is still too small, the next step is refused. So ``"100%"`` refuses nothing that runs without.

    A C++ compiler is needed once for each version of PyTorch, unless the compiled shim came with the package.

    A step that does other work than the earlier steps of its kind runs without a plan and is measured again. So is a
    step that begins with more memory held than before, such as an optimizer's state.

    Where a GPU's steps find no room beside the state of their optimizers, some of it moves to pinned host memory, which
    the GPU uses in place. If that is not enough, gradients move there as backward makes them, and then weights of
    linear, convolution and embedding layers, which come to the GPU for each call of their layer. All these tensors
    stay the same objects, with the same values, and come back when the budget ends. So a budget may be smaller than
    the weights alone. Optimizers of PyTorch's then step in pieces, with the same results. Nothing of this moves while
    there are CUDA graphs, which keep the addresses of what they use.

    Saved tensors smaller than 1 MiB, parameters and buffers stay in memory. So do tensor subclasses and memory that
    Tenure did not allocate. A saved tensor that is later written to in ways that autograd does not see (``.data``,
    NumPy) may come back with its old values. So may a weight that has left, if it is written to so while the model is
    being called.

    ``torch.compile`` works. The backward pass of a compiled graph needs all its saved tensors at once: so compile
    layers rather than the whole model, and pass this function the model that the program calls. The memory of CUDA
    graphs stays.

    On the CPU, the budget covers all memory that PyTorch allocates while it is open, and the model, which is moved.

    {example}
    """
    limits = Limits.of(memory, spill, spill_bytes, spill_daily_bytes, host_bytes)
    if not isinstance(module, nn.Module):
        raise Error(f"a budget is of a torch.nn.Module, not of {type(module).__name__}")
    device = device_of(module)
    if device.type == "cpu":
        put_under()
        limits.warn_of_folders_in_memory()
    elif device.index not in _native.installed():
        raise Error(
            f"Tenure does not manage the memory of {device}: call tenure.torch.install() before the program first uses "
            "CUDA"
        )

    def make() -> Budget:
        native = _native.Budget(device.index, limits.spill, limits.host_bytes, planner, operations())
        return Budget(module, native, device)

    made = limits.open(device, codec, make)
    if device.type == "cpu":
        _move_in(module)
    return made


def _move_in(module: nn.Module) -> None:
    """Moves a CPU model's tensors into memory that the budget counts, where nothing else shares their memory."""
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    tensors: list[Tensor] = [*module.parameters(), *module.buffers(), *gradients]
    for tensor in tensors:
        if type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and is_alone(tensor):
            tensor.data = tensor.data.clone()
