"""For what the steps of an optimizer allocate."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.compiler import is_compiling
from torch.optim import Optimizer

from tenure import _native
from tenure.torch.dynamo import surrounds_compiled_code
from tenure.torch.holdings import OptimizerStates
from tenure.torch.purpose import Span, new_token, number_of_key, number_of_tag

__all__ = ["Steps"]

_OPTIMIZER_STATE = number_of_tag("optimizer_state")
_WORKSPACE = number_of_tag("workspace")


class Steps:
    """Surrounds ``optimizer.step``, until `remove` is called.

    A step's own hooks would not hear of a step that fails. So the optimizer gets a ``step`` of its own, as PyTorch's
    learning rate schedulers give it one; like theirs, it does not keep the optimizer alive.
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
        """Puts back what was replaced. If that was replaced in turn, it only does nothing any longer."""
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
            # The first step makes the state; what later ones allocate, they give back.
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

        # Schedulers take the function of the method that they believe this to be.
        surrounded.__func__ = of_optimizer  # type: ignore[attr-defined]
        return surrounded


def _function_of(step: Any) -> Callable[..., Any]:
    """The function of an optimizer and arguments that ``optimizer.step`` is."""
    if function := getattr(step, "__func__", None):
        return function

    # A scheduler has been there.
    @wraps(step)
    def function_of_optimizer(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)

    return function_of_optimizer
