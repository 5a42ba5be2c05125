"""Gradients that leave the device as soon as backward has made them."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from tenure.torch.budgets.moving import Mover

__all__ = ["Gradients"]


class Gradients:
    """The gradients of a model's parameters."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        #: The hooks of the parameters whose gradients leave.
        self._hooks: MutableMapping[Tensor, RemovableHandle] = WeakTensorKeyDictionary()
        #: Whether a CUDA graph has captured a backward pass: it has the addresses of gradients.
        self._is_captured = False

    def staying(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Returns the parameters whose gradients could leave, and do not yet."""
        trained = (each for each in parameters if each.requires_grad and each not in self._hooks)
        # A gradient has the form of its parameter.
        return [each for each in trained if self._mover.can_move(each)]

    def leave(self, parameters: Iterable[Tensor], wanted: int) -> int:
        """Makes gradients leave from now on, of so many bytes if there are as many. Returns the bytes."""
        leaving = 0
        for parameter in self.staying(parameters):
            if leaving >= wanted:
                break
            self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(self._move)
            self._move(parameter)
            leaving += parameter.nbytes
        return leaving

    def stop(self) -> list[Tensor]:
        """Lets all gradients stay from now on. Returns those on the host."""
        parameters = list(self._hooks)
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        gradients = [each.grad for each in parameters if each.grad is not None]
        return [each for each in gradients if self._mover.is_on_host(each)]

    def _move(self, parameter: Tensor) -> None:
        # A view of a larger storage, such as a bucket of collectives, stays. The copy is in the order of this stream,
        # since others may read the gradient there next, without telling.
        gradient = parameter.grad
        self._is_captured |= torch.cuda.is_current_stream_capturing()
        if gradient is not None and not self._is_captured and self._mover.is_alone_on_device(gradient):
            self._mover.move_to_host(gradient)
