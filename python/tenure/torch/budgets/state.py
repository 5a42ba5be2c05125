"""The state of a program's optimizers within a budget.

It lies on the device, or, where there is too little room, in host memory that the device uses in place. Either way the
tensors stay the same objects, with the same values.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from tenure import _native
from tenure._nested import instances_in
from tenure.torch.budgets.pieces import PieceStepper, can_step_in_pieces

__all__ = ["OptimizerState"]

#: Smaller tensors stay on the device.
_LEAST_BYTES = 1 << 20


class OptimizerState:
    """The state of all optimizers that step while a budget is entered."""

    def __init__(self, state: _native.BudgetState, module: nn.Module, device: torch.device) -> None:
        self._state = state
        self._module = module
        self._device = device
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._hooks: list[RemovableHandle] = []
        #: The number of parameters with state, and the bytes of all, when an optimizer was looked through last.
        self._known: weakref.WeakKeyDictionary[Optimizer, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._stepper = PieceStepper(state, device)
        #: The parameters, by group, of optimizers that have stepped in pieces, until their own steps end.
        self._stepped: weakref.WeakKeyDictionary[Optimizer, list[list[Tensor]]] = weakref.WeakKeyDictionary()

    def watch(self) -> None:
        """Begins to watch the steps of optimizers, if it does not do so yet."""
        if self._hooks:
            return
        this = weakref.ref(self)

        def before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if (state := this()) is not None:
                state._begin_update(optimizer, args, kwargs)

        def after(optimizer: Optimizer, *_: Any) -> None:
            if (state := this()) is not None:
                state._end_update(optimizer)

        self._hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]

    def leave(self) -> None:
        """Ends the watch, and takes the state back to the device, as far as there is room."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for optimizer in list(self._stepped):
            self._give_back(optimizer)
        self._state.end_update()
        for tensor in self._tensors(on_host=True):
            if not self._state.move_to_device(tensor, *_place(tensor)):
                break

    def release(self, wanted: int) -> bool:
        """Moves at least so many bytes to host memory, if there are as many, and returns whether some were moved."""
        released = 0
        for tensor in self._tensors(on_host=False):
            if released >= wanted:
                break
            address, size = _place(tensor)
            if not self._state.move_to_host(tensor, address, size):
                break
            released += size
        self._count()
        return released > 0

    def _begin_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._give_back(optimizer)
        if not any(each.device == self._device for group in optimizer.param_groups for each in group["params"]):
            return
        self._optimizers.add(optimizer)
        self._state.begin_update()
        # A step takes as many bytes as the parameters have, and state that does not exist yet takes more.
        room = self._state.room_bytes()
        is_short = self._state.host_bytes > 0 or optimizer not in self._known or room < self._known[optimizer][1]
        may_change = self._is_only_watcher() and not torch.cuda.is_current_stream_capturing()
        if is_short and may_change and can_step_in_pieces(optimizer, args, kwargs):
            self._stepper.step(optimizer, functools.partial(self._host_state, optimizer), room)
            # The step that follows finds nothing to do.
            self._stepped[optimizer] = [group["params"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["params"] = []

    def _end_update(self, optimizer: Optimizer) -> None:
        self._give_back(optimizer)
        if optimizer not in self._optimizers:
            return
        self._state.end_update()
        count = len(optimizer.state)
        if optimizer not in self._known or self._known[optimizer][0] != count:
            size = sum(each.nbytes for group in optimizer.param_groups for each in group["params"])
            self._known[optimizer] = count, size
            self._count()

    def _give_back(self, optimizer: Optimizer) -> None:
        """Gives its parameters back to an optimizer that stepped in pieces."""
        if (parameters := self._stepped.pop(optimizer, None)) is not None:
            for group, own in zip(optimizer.param_groups, parameters, strict=True):
                group["params"] = own

    def _is_only_watcher(self) -> bool:
        """Returns whether no other hook runs between the pieces and the end of the step."""
        last, first = next(reversed(_global_optimizer_pre_hooks)), next(iter(_global_optimizer_post_hooks))
        return [last, first] == [hook.id for hook in self._hooks]

    def _host_state(self, optimizer: Optimizer, parameter: Tensor) -> list[Tensor]:
        """Returns the state of a parameter that lies in host memory."""
        tensors = instances_in(optimizer.state.get(parameter, {}), Tensor)
        return [each for each in tensors if self._can_move(each) and self._state.is_on_host(_place(each)[0])]

    def _count(self) -> None:
        self._state.set_bytes(sum(_place(tensor)[1] for tensor in self._tensors(on_host=False)))

    def _can_move(self, tensor: Tensor) -> bool:
        is_plain = type(tensor) is Tensor and tensor.device == self._device and tensor.layout == torch.strided
        return is_plain and _place(tensor)[1] >= _LEAST_BYTES

    def _tensors(self, *, on_host: bool) -> Iterator[Tensor]:
        """Yields one tensor for each storage of the state that can move, and that is on the host or not."""
        # The model uses its own tensors in its passes, so they stay.
        seen = {_place(each)[0] for each in (*self._module.parameters(), *self._module.buffers())}
        for optimizer in self._optimizers:
            for tensor in filter(self._can_move, instances_in(optimizer.state, Tensor)):
                address = _place(tensor)[0]
                if address not in seen and self._state.is_on_host(address) == on_host:
                    seen.add(address)
                    yield tensor


def _place(tensor: Tensor) -> tuple[int, int]:
    """Returns the address and the size of a tensor's storage."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()
