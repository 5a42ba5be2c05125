"""The purpose of memory that an optimizer's steps allocate."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.compiler import is_compiling
from torch.optim import Optimizer

from tenure import _native
from tenure.torch.dynamo import surrounds_compiled_code
from tenure.torch.purpose import Span, new_token, number_of_key, number_of_tag
from tenure.torch.tagging.holdings import OptimizerStates

__all__ = ["Steps"]

_OPTIMIZER_STATE = number_of_tag("optimizer_state")
_WORKSPACE = number_of_tag("workspace")


class Steps:
    """Wraps ``optimizer.step`` until `remove` is called.

    The optimizer's own step hooks do not run after a step that fails. So the optimizer gets a ``step`` of its own, as
    PyTorch's learning rate schedulers give it one; like theirs, it does not keep the optimizer alive.
    """

    def __init__(self, optimizer: Optimizer, states: OptimizerStates, span: Span) -> None:
        self._token = new_token()
        self._key = number_of_key("", type(optimizer).__name__, "")
        self._states = states
        self._span = span
        self._optimizer = weakref.ref(optimizer)
        self._is_removed = False
        self._replaced = vars(optimizer).get("step")
        self._step = self._surrounded(optimizer.step)
        vars(optimizer)["step"] = self._step

    def remove(self) -> None:
        """Restores the ``step`` from before. If other code has wrapped it since, it stays but does nothing."""
        self._is_removed = True
        optimizer = self._optimizer()
        if optimizer is None or vars(optimizer).get("step") is not self._step:
            return
        if self._replaced is None:
            del vars(optimizer)["step"]
        else:
            vars(optimizer)["step"] = self._replaced

    def _surrounded(self, step: Any) -> Any:
        function, optimizer = _function_of(step), self._optimizer

        @surrounds_compiled_code
        @wraps(function)
        def of_optimizer(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or self._is_removed:
                return function(optimizer, *args, **kwargs)
            # The first step makes the state; later steps free all that they allocate.
            tag = _WORKSPACE if self._states else _OPTIMIZER_STATE
            _native.enter_purpose(self._token, tag, self._key, self._span.number)
            try:
                result = function(optimizer, *args, **kwargs)
            finally:
                _native.leave_purpose(self._token)
            self._states.tag_new()
            return result

        @surrounds_compiled_code
        @wraps(function)
        def surrounded(*args: Any, **kwargs: Any) -> Any:
            return of_optimizer(optimizer(), *args, **kwargs)

        # Schedulers expect a method here and take its function.
        surrounded.__func__ = of_optimizer  # type: ignore[attr-defined]
        return surrounded


def _function_of(step: Any) -> Callable[..., Any]:
    """Returns ``optimizer.step`` as a function of an optimizer and arguments."""
    if function := getattr(step, "__func__", None):
        return function

    # A scheduler has wrapped it.
    @wraps(step)
    def function_of_optimizer(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)

    return function_of_optimizer
