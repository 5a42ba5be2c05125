"""Weights that lie in host memory, and come to the device for each call of the layer that they belong to.

The layer computes with a copy, and autograd saves that copy for backward like any other tensor: so a plan keeps it,
or lets it leave and has it back in time.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import MutableMapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from tenure._entries import Hook
from tenure.torch.budgets.moving import Mover, address_and_bytes
from tenure.torch.dynamo import runs_beside_compiled_code

__all__ = ["Weights"]

#: The layers whose weights can leave: what they do with them is known.
_LAYERS = (
    nn.Linear,
    nn.Bilinear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)

#: Layers that use a small part of their weight in each call: they do so in place.
_IN_PLACE = (nn.Embedding, nn.EmbeddingBag)

#: After so many passes that called layers in another order than the one before, no copy is made ahead.
_MOST_CHANGES = 8

#: The order in which a pass calls layers. It may call one several times.
_Order: TypeAlias = list[weakref.ref[nn.Module]]


class _WeightCopy:
    """A copy of a weight on the device, which is complete after an event."""

    def __init__(self, weight: Tensor, copy: Tensor, is_complete: torch.cuda.Event) -> None:
        self._bytes = _bytes_of(weight)
        self.copy = copy
        self.is_complete = is_complete

    def is_of(self, weight: Tensor) -> bool:
        """Returns whether it has a weight's bytes as they are now."""
        return _bytes_of(weight) == self._bytes


def _bytes_of(weight: Tensor) -> tuple[int, int]:
    """Returns the identity of a weight's bytes."""
    return address_and_bytes(weight)[0], weight._version


class Weights:
    """The weights of a model's layers."""

    def __init__(self, mover: Mover, module: nn.Module) -> None:
        self._mover = mover
        self._module = module
        self._inward = torch.cuda.Stream(mover.device)
        #: The hooks of the layers with weights on the host.
        self._hooks: weakref.WeakKeyDictionary[nn.Module, list[RemovableHandle]] = weakref.WeakKeyDictionary()
        self._threads = _ThreadCalls()
        #: The order of the last forward pass, and of the last backward pass, where checkpoints call layers.
        self._orders: tuple[_Order, _Order] = [], []
        #: The number of passes with another order than the one before.
        self._changes = 0
        self._has_learned = False
        #: The thread that entered the budget last.
        self._thread = threading.get_ident()
        #: The versions of copies when their layers' calls began.
        self._versions: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()

    def staying(self) -> list[Tensor]:
        """Returns the weights that could leave, and do not yet."""
        layers = (each for each in self._module.modules() if type(each) in (*_LAYERS, *_IN_PLACE))
        weights = dict.fromkeys(weight for layer in layers for weight in layer.parameters(recurse=False))
        return [each for each in weights if self._mover.is_alone_on_device(each)]

    def leave(self, wanted: int) -> int:
        """Makes weights leave, of so many bytes if there are as many. Returns the bytes."""
        staying = self.staying()
        total = sum(each.nbytes for each in staying)
        passed = left = 0
        for weight in staying:
            # The layers are chosen evenly, so that each weight has time to come while others compute.
            passed += weight.nbytes
            if left * total < min(wanted, total) * passed and self._mover.move_to_host(weight):
                left += weight.nbytes
        layers = [each for each in self._module.modules() if type(each) in _LAYERS and self._host_weights(each)]
        for order in self._orders:
            # Most models call their layers in this order.
            order[:] = [weakref.ref(each) for each in layers]
        for layer in layers:
            if layer not in self._hooks:
                before = layer.register_forward_pre_hook(_BeforeLayer(self))
                self._hooks[layer] = [before, layer.register_forward_hook(_AfterLayer(self), always_call=True)]
        return left

    def stop(self) -> list[Tensor]:
        """Ends the copies for calls. Returns the weights on the host."""
        for layer, hooks in self._hooks.items():
            for hook in hooks:
                hook.remove()
            # A call may have been interrupted, or be under way.
            self.take_back(layer)
        self._hooks.clear()
        self.end_call()
        return [each for each in self._module.parameters() if self._mover.is_on_host(each)]

    def take_learned(self) -> bool:
        """Returns whether layers were called in another order since the last call of this."""
        has_learned, self._has_learned = self._has_learned, False
        self._changes += has_learned
        return has_learned

    def end_call(self) -> None:
        """Runs when this thread has called the model. Until the next call, a copy made ahead may be out of date."""
        self._threads.ahead = {}

    def _host_weights(self, layer: nn.Module) -> dict[str, Tensor]:
        own = layer._parameters.items()
        return {name: each for name, each in own if each is not None and self._mover.is_on_host(each)}

    def bring(self, layer: nn.Module) -> None:
        """Makes a layer compute with copies of its weights on the device, and begins to copy those of the next one."""
        calls = self._threads
        task = torch._C._current_graph_task_id()
        if task != calls.task:
            # Another backward pass, or none.
            self.begin_step()
            calls.task = task
        expected = self._next(layer, self._orders[task != -1])
        ahead, calls.ahead = calls.ahead, {}
        now = torch.cuda.current_stream(self._mover.device)
        for name, weight in self._host_weights(layer).items():
            made = ahead.get(weight)
            if made is None or not made.is_of(weight):
                made = self._copied(weight)
            now.wait_event(made.is_complete)
            # It may have been made for another stream.
            made.copy.record_stream(now)
            # It hides the parameter of this name.
            copy = layer.__dict__[name] = _Copy.apply(weight, [made.copy])
            self._versions[copy] = copy._version
        if expected is not None and expected in self._hooks:
            calls.ahead = {each: self._copied(each) for each in self._host_weights(expected).values()}

    def take_back(self, layer: nn.Module) -> None:
        """Makes a layer have its own weights again, with what the call has written to the copies."""
        for name, weight in layer._parameters.items():
            copy = layer.__dict__.pop(name, None)
            if copy is not None and weight is not None and self._versions.get(copy) != copy._version:
                with torch.no_grad():
                    weight.copy_(copy)

    def may_bring(self) -> bool:
        """Returns whether layers compute with copies here. Otherwise they use weights in place.

        Compiled code, functions of `torch.func`, dispatch modes and CUDA graphs do so, and other threads.
        """
        return (
            self.is_own_thread()
            and torch._C._functorch.peek_interpreter_stack() is None
            and torch._C._len_torch_dispatch_stack() == 0
            and not torch.cuda.is_current_stream_capturing()
        )

    def is_own_thread(self) -> bool:
        """Returns whether the thread may change copies: the one that entered the budget last, or one of backward's.

        A layer has one copy at a time.
        """
        return threading.get_ident() == self._thread or torch._C._current_graph_task_id() != -1

    def enter(self) -> None:
        """Runs when a thread enters the budget."""
        self._thread = threading.get_ident()

    def begin_step(self) -> None:
        """Runs before a step begins."""
        self.end_call()
        self._threads.calls = 0

    def _next(self, layer: nn.Module, order: _Order) -> nn.Module | None:
        """Counts the call of a layer in a pass. Returns the layer that is expected next, if one is."""
        # An evaluation between steps is no part of one.
        if self._changes >= _MOST_CHANGES or (self._threads.task == -1 and not torch.is_grad_enabled()):
            return None
        number = self._threads.calls
        self._threads.calls = number + 1
        if number >= len(order) or order[number]() is not layer:
            order[number : number + 1] = [weakref.ref(layer)]
            self._has_learned = True
        return order[number + 1]() if number + 1 < len(order) else None

    def _copied(self, weight: Tensor) -> _WeightCopy:
        """Begins to copy a weight to the device."""
        with torch.inference_mode(False):
            copy = torch.empty_like(weight)
        # Other work may still use that memory.
        self._inward.wait_stream(torch.cuda.current_stream(self._mover.device))
        copy.record_stream(self._inward)
        with torch.cuda.stream(self._inward):
            self._mover.native.copy_to_device(address_and_bytes(weight)[0], copy.data_ptr())
            return _WeightCopy(weight, copy, self._inward.record_event())


class _ThreadCalls(threading.local):
    """The calls of a thread."""

    def __init__(self) -> None:
        #: The number of calls of layers in this pass.
        self.calls = 0
        #: The backward pass that the thread is in, -1 if none.
        self.task = -1
        #: Copies of the weights of the layer that is expected next.
        self.ahead: dict[Tensor, _WeightCopy] = {}


class _Copy(torch.autograd.Function):
    """A copy of a weight: the gradient of one is that of the other."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: list[Tensor]) -> Tensor:
        # In a list, the copy is no argument that autograd sees.
        return copy.pop()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return tangents[0].clone()


class _BeforeLayer(Hook):
    def __init__(self, weights: Weights) -> None:
        self._weights = weakref.ref(weights)

    @runs_beside_compiled_code
    def __call__(self, layer: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if (weights := self._weights()) is not None and weights.may_bring():
            weights.bring(layer)


class _AfterLayer(Hook):
    def __init__(self, weights: Weights) -> None:
        self._weights = weakref.ref(weights)

    @runs_beside_compiled_code
    def __call__(self, layer: nn.Module, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if (weights := self._weights()) is not None and weights.is_own_thread():
            weights.take_back(layer)
