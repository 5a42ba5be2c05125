"""Weights that lie in host memory, and come to the device for each call of the layer that they belong to.

The layer computes with a copy, and autograd saves that copy for backward like any other tensor: so a plan keeps it,
or lets it leave and has it back in time.
"""

from __future__ import annotations

import threading
import weakref
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

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

#: For layers, the layer that followed each last time.
_Followers: TypeAlias = weakref.WeakKeyDictionary[nn.Module, weakref.ref[nn.Module]]


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
        #: The layer that followed each layer last time: in forward, and in backward, where checkpoints call layers.
        self._followers: tuple[_Followers, _Followers] = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()
        self._has_learned = False

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
        # Most models call their layers in this order.
        for followers in self._followers:
            followers.update((layer, weakref.ref(follower)) for layer, follower in pairwise(layers))
        for layer in layers:
            if layer not in self._hooks:
                before = layer.register_forward_pre_hook(_BeforeLayer(self))
                self._hooks[layer] = [before, layer.register_forward_hook(_AfterLayer(), always_call=True)]
        return left

    def stop(self) -> list[Tensor]:
        """Ends the copies for calls. Returns the weights on the host."""
        for hook in (hook for hooks in self._hooks.values() for hook in hooks):
            hook.remove()
        self._hooks.clear()
        self.end_call()
        return [each for each in self._module.parameters() if self._mover.is_on_host(each)]

    def take_learned(self) -> bool:
        """Returns whether layers were called in another order since the last call of this."""
        has_learned, self._has_learned = self._has_learned, False
        return has_learned

    def end_call(self) -> None:
        """Runs when this thread has called the model. Until the next call, a copy made ahead may be out of date."""
        self._threads.last, self._threads.ahead = None, {}

    def _host_weights(self, layer: nn.Module) -> dict[str, Tensor]:
        own = layer._parameters.items()
        return {name: each for name, each in own if each is not None and self._mover.is_on_host(each)}

    def bring(self, layer: nn.Module) -> None:
        """Makes a layer compute with copies of its weights on the device, and begins to copy those of the next one."""
        calls = self._threads
        task = torch._C._current_graph_task_id()
        if task != calls.task:
            # Another backward pass, or none: a checkpoint calls layers in another order.
            self.end_call()
            calls.task = task
        followers = self._followers[task != -1]
        if calls.last is not None and followers.get(calls.last) != (follower := weakref.ref(layer)):
            followers[calls.last] = follower
            self._has_learned = True
        calls.last = layer
        ahead, calls.ahead = calls.ahead, {}
        now = torch.cuda.current_stream(self._mover.device)
        for name, weight in self._host_weights(layer).items():
            made = ahead.get(weight)
            if made is None or not made.is_of(weight):
                made = self._copied(weight)
            now.wait_event(made.is_complete)
            # It hides the parameter of this name.
            layer.__dict__[name] = _Copy.apply(weight, [made.copy])
        expected = followers[layer]() if layer in followers else None
        if expected is not None and expected in self._hooks:
            calls.ahead = {each: self._copied(each) for each in self._host_weights(expected).values()}

    def _copied(self, weight: Tensor) -> _WeightCopy:
        """Begins to copy a weight to the device."""
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
        #: The layer that was called last, in this pass.
        self.last: nn.Module | None = None
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


class _BeforeLayer(Hook):
    def __init__(self, weights: Weights) -> None:
        self._weights = weakref.ref(weights)

    @runs_beside_compiled_code
    def __call__(self, layer: nn.Module, _: Any) -> None:
        # Compiled code, functions of `torch.func` and CUDA graphs use the weights in place.
        if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
            return
        if torch.cuda.is_current_stream_capturing():
            return
        if (weights := self._weights()) is not None:
            weights.bring(layer)


class _AfterLayer(Hook):
    @runs_beside_compiled_code
    def __call__(self, layer: nn.Module, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            for name in layer._parameters:
                layer.__dict__.pop(name, None)
