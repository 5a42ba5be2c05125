"""For what a backward pass allocates.

PyTorch runs it on threads of its own, one for each device, that go from node to node of the graph. A hook on a node
says for what its thread allocates from there on; nothing tells the thread when that ends. So it is said for a span,
which ends with the pass on all threads, whether the pass succeeded or not.
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

#: Marks a node that tells whose it is.
_TOLD = "tenure.told"

#: The numbers of the spans of the passes that run, by the numbers of these.
_spans: dict[int, int] = {}


def tell_in_backward(tensor: Tensor, key: int) -> None:
    """Lets backward, when it reaches what made `tensor`, allocate for gradients of this key."""
    node = tensor.grad_fn
    # What a module returns may be what a module in it returned, whose it is then.
    if node is not None and _TOLD not in node.metadata:
        node.metadata[_TOLD] = True
        node.register_prehook(_Reached(key))


class _Reached:
    """Is called when backward reaches a node."""

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
    """A pass in which a purpose was said. The engine calls it when the pass has succeeded, and drops it in any case."""

    def __init__(self, number: int, key: int) -> None:
        self._number = number
        self._span = Span()
        _spans[number] = self._span.number
        self._thread = get_ident()
        self._before = _native.set_purpose(_GRADIENT, key, self._span.number)

    def __call__(self) -> None:
        # A pass may have begun inside a node of another, which goes on.
        if get_ident() == self._thread:
            _native.set_purpose(*self._before)
        self._span.end()

    def __del__(self) -> None:
        _spans.pop(self._number, None)
