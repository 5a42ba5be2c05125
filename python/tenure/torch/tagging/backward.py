"""The purpose of memory that a backward pass allocates.

PyTorch runs the pass on threads of its own, one for each device, which go from node to node of the graph. A hook on a
node sets the purpose of its thread from there on; no hook marks where it ends. So the purpose is set for a span, which
ends with the pass on all threads, whether the pass succeeded or not.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from tenure import _native
from tenure.torch.dynamo import runs_beside_compiled_code
from tenure.torch.purpose import Span, number_of_tag

__all__ = ["tell_in_backward"]

_GRADIENT = number_of_tag("gradient")

#: The mark on a node that already has a hook.
_TOLD = "tenure.told"

#: The number of the span of each running pass, by the pass's number.
_spans: dict[int, int] = {}


def tell_in_backward(tensor: Tensor, key: int) -> None:
    """Makes backward, when it reaches the node that made `tensor`, allocate for gradients of this key."""
    node = tensor.grad_fn
    # A module may return the result of an inner module, which has marked the node as its own.
    if node is not None and _TOLD not in node.metadata:
        node.metadata[_TOLD] = True
        node.register_prehook(_NodeHook(key))


class _NodeHook:
    """A hook that runs when backward reaches a node."""

    def __init__(self, key: int) -> None:
        self._key = key

    @runs_beside_compiled_code
    def __call__(self, gradients: Any) -> None:
        if is_compiling():
            return
        number = torch._C._current_graph_task_id()
        span = _spans.get(number)
        if span is None:
            torch.autograd.Variable._execution_engine.queue_callback(_Pass(number, self._key))
        else:
            _native.set_purpose(_GRADIENT, self._key, span)


class _Pass:
    """A pass in which a purpose was set. The engine calls it when the pass has succeeded, and drops it in any case."""

    def __init__(self, number: int, key: int) -> None:
        self._number = number
        self._span = Span()
        _spans[number] = self._span.number
        self._thread = get_ident()
        self._before = _native.set_purpose(_GRADIENT, key, self._span.number)

    def __call__(self) -> None:
        # A pass may have begun inside a node of another pass, which then continues.
        if get_ident() == self._thread:
            _native.set_purpose(*self._before)
        self._span.end()

    def __del__(self) -> None:
        _spans.pop(self._number, None)
