"""The state of a program's training within a budget: that of its optimizers, gradients and weights.

It lies on the device, or, where there is too little room, in host memory that the device uses in place. Either way the
tensors stay the same objects, with the same values. The state of optimizers leaves first, then gradients, then weights.
"""

from __future__ import annotations

import functools
import gc
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
from tenure.torch.budgets.gradients import Gradients
from tenure.torch.budgets.moving import Mover, address_and_bytes, parts_of
from tenure.torch.budgets.pieces import PieceStepper, can_step_in_pieces
from tenure.torch.budgets.weights import Weights

__all__ = ["TrainingState"]


class TrainingState:
    """The gradients and weights of a model, and the state of all optimizers that step while a budget is entered."""

    def __init__(self, state: _native.BudgetState, module: nn.Module, device: torch.device) -> None:
        self._state = state
        self._module = module
        self._device = device
        self._mover = Mover(state, device)
        self._gradients = Gradients(self._mover)
        self._weights = Weights(self._mover, module)
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._hooks: list[RemovableHandle] = []
        #: The number of parameters with state, and the bytes of all, when an optimizer was looked through last.
        self._known: weakref.WeakKeyDictionary[Optimizer, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._stepper = PieceStepper(self._mover)
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
        self._count_parameters()

    def make_room(self, excess: int) -> None:
        """Makes so many bytes leave that are there where a thread enters the budget."""
        self._weights.enter()
        if excess > 0 and not self._has_graphs():
            own = set(self._module.parameters())
            for optimizer in gc.get_objects():
                # An optimizer that has stepped before has state.
                if issubclass(type(optimizer), Optimizer) and not own.isdisjoint(optimizer.state):
                    self._optimizers.add(optimizer)
            excess -= self._release_optimizer_state(excess)
            self._gradients.leave(self._module.parameters(), excess)
            self._weights.leave(excess)
            self._count()
            self._count_parameters()
            torch.cuda.empty_cache()

    def begin_step(self) -> None:
        """Runs before a step begins. A step that copies weights in another order allocates in another order."""
        self._weights.begin_step()
        if self._weights.take_learned():
            self._state.forget()

    def end_call(self) -> None:
        """Runs when a thread has called the model."""
        self._weights.end_call()

    def leave(self) -> None:
        """Ends the watch, and takes the state back to the device, as far as there is room."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for optimizer in list(self._stepped):
            self._give_back(optimizer)
        self._state.end_update()
        on_host = [*self._weights.stop(), *self._gradients.stop(), *self._optimizer_state(on_host=True)]
        if not self._has_graphs():
            # The rest stays where it is if there is no room for all.
            all(self._mover.move_to_device(tensor) for tensor in on_host)

    def release(self, wanted: int, *, with_parameters: bool = False) -> bool:
        """Makes at least so many bytes leave, if there are as many, and returns whether there were some.

        With parameters, gradients and weights leave too if optimizers have too little state.
        """
        if self._has_graphs():
            return False
        # cuBLAS keeps its workspaces. One that found no room lies in host memory; it is made anew where there is room.
        torch._C._cuda_clearCublasWorkspaces()
        released = self._release_optimizer_state(wanted)
        if released < wanted and with_parameters:
            released += self._gradients.leave(self._module.parameters(), wanted - released)
        if released < wanted and with_parameters:
            released += self._weights.leave(wanted - released)
        self._count()
        self._count_parameters()
        # Where all was allocated before there was a limit, the allocator may hold more than the budget.
        torch.cuda.empty_cache()
        return released > 0

    def _release_optimizer_state(self, wanted: int) -> int:
        """Moves so many bytes of optimizers' state to the host, if there are as many. Returns the bytes."""
        released = 0
        for tensor in self._optimizer_state(on_host=False):
            if released >= wanted or not self._mover.move_to_host(tensor):
                break
            released += address_and_bytes(tensor)[1]
        return released

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

    def _has_graphs(self) -> bool:
        """Returns whether there may be CUDA graphs. They use tensors at the addresses that these had before."""
        return any(tuple(each["segment_pool_id"]) != (0, 0) for each in torch.cuda.memory_snapshot())

    def _host_state(self, optimizer: Optimizer, parameter: Tensor) -> list[Tensor]:
        """Returns the parts of a parameter's state that lie in host memory, the parameter itself among them."""
        tensors = (parameter, *instances_in(optimizer.state.get(parameter, {}), Tensor))
        parts = (part for each in tensors for part in parts_of(each))
        return [each for each in parts if self._mover.can_move(each) and self._mover.is_on_host(each)]

    def _count(self) -> None:
        """Tells the engine how much state of optimizers is on the device."""
        self._state.set_bytes(sum(address_and_bytes(each)[1] for each in self._optimizer_state(on_host=False)))

    def _count_parameters(self) -> None:
        """Tells the engine how much of gradients and weights could leave."""
        gradients = self._gradients.staying(self._module.parameters())
        staying = (*gradients, *self._weights.staying())
        self._state.set_parameter_bytes(sum(each.nbytes for each in staying))

    def _optimizer_state(self, *, on_host: bool) -> Iterator[Tensor]:
        """Yields one tensor for each storage of optimizers that can move, and that is on the host or not."""
        # An optimizer may refer to the model's own tensors, which the model uses in its passes.
        own = (*self._module.parameters(), *self._module.buffers())
        movable = (part for each in own for part in parts_of(each) if self._mover.can_move(part))
        seen = {address_and_bytes(each)[0] for each in movable}
        for optimizer in self._optimizers:
            parts = (part for each in instances_in(optimizer.state, Tensor) for part in parts_of(each))
            for tensor in filter(self._mover.can_move, parts):
                address = address_and_bytes(tensor)[0]
                if address not in seen and self._state.is_on_host(address) == on_host:
                    seen.add(address)
                    yield tensor
