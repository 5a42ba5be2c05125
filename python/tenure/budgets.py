"""Training steps of a model of Tenure's tensors within a memory budget."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable

from tenure import Error, Tensor, _native, autograd, nn
from tenure import device as Device
from tenure._budget_steps import Codec, Folders, Limits, ModelBudget, Planner, StepReport, described, device_of

__all__ = ["Budget", "StepReport", "budget"]


class _Nested(threading.local):
    """The budgets that a thread is in, of several devices, the innermost last."""

    def __init__(self) -> None:
        self.entered: list[Budget] = []


_nested = _Nested()


class Budget(ModelBudget):
    """A model's memory budget for the work of threads inside a ``with`` block. `budget` makes it."""

    _maker = "tenure.budget"
    _tensor = Tensor

    def __init__(self, module: nn.Module, native: _native.TensorBudget, device: Device) -> None:
        super().__init__(module, native, device)
        self._native: _native.TensorBudget = native
        native.attach(weakref.ref(self))

    def _enter_thread(self) -> int:
        _nested.entered.append(self)
        return _native.TensorBudget.enter([budget._native for budget in _nested.entered])

    def _leave_thread(self, entered: int) -> None:
        _native.leave_setting(entered)
        _nested.entered.remove(self)

    def _stay(self) -> None:
        self._native.stay([*self._module.parameters(), *self._module.buffers()])

    def _is_in_backward(self) -> bool:
        return _native.is_in_backward()

    def _is_grad_enabled(self) -> bool:
        return autograd.is_grad_enabled()

    def _precision(self) -> Hashable:
        return _native.autocast_dtype()


@described("tenure.budget")
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

    It is `tenure.torch.budget` for Tenure's own tensors: saved tensors stay, leave the device's memory and come back in
    time, or are computed again, as a plan decides that is made of measured steps. Neither the model nor its loop
    changes. The budget holds inside a ``with`` block, for the threads that enter it.

    Parameters
    ----------
    module
        The model, all of it on one device.
    {parameters}

    Notes
    -----
    A step is the work between two changes of the model's parameters, or the work that a backward pass ends.

    Parameters, buffers and small saved tensors stay in memory: below 1 MiB on a GPU, below 128 KiB on the CPU.

    A parameter that a hook changes during the backward pass cannot be used to compute a saved tensor again: such a step
    raises an error.

    {example}
    """
    limits = Limits.of(memory, spill, spill_bytes, spill_daily_bytes, host_bytes)
    if not isinstance(module, nn.Module):
        raise Error(f"a budget is of a tenure.nn.Module, not of {type(module).__name__}")
    device = device_of(module)
    if device.type == "cpu":
        limits.warn_of_folders_in_memory()

    def make() -> Budget:
        return Budget(module, _native.TensorBudget(device.index, limits.spill, limits.host_bytes, planner), device)

    return limits.open(device, codec, make)
