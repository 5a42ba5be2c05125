"""Hooks of modules: functions that run before or after a module computes, or passes gradients back."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from tenure._native import Tensor
from tenure.autograd import Function, is_grad_enabled

_numbers = itertools.count()
_T = TypeVar("_T")


class Hooks(OrderedDict[int, _T]):
    """Hooks by number, in the order in which they run."""

    def register(self, hook: _T, prepend: bool) -> Handle:
        """Adds a hook at the end, or at the beginning, and returns the handle that removes it."""
        number = next(_numbers)
        self[number] = hook
        if prepend:
            self.move_to_end(number, last=False)
        return Handle(self, number)


class Handle:
    """A registered hook, which `remove` takes away. As a context manager, it does so at the end."""

    def __init__(self, hooks: Hooks[Any], number: int) -> None:
        self._hooks = hooks
        self.id = number

    def remove(self) -> None:
        """Removes the hook, if it is there."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


class _Gradients(Function):
    """Returns tensors as they are, and passes their gradients through a function."""

    @staticmethod
    def forward(ctx: Any, through: Callable[[tuple[Any, ...]], tuple[Any, ...]], *tensors: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.through = through
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, *ctx.through(grads))


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _watched(values: tuple[Any, ...], through: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Returns values whose gradients, those of the tensors, go through a function, in the order of the values."""
    places = [index for index, value in enumerate(values) if isinstance(value, Tensor)]

    def of_tensors(grads: tuple[Any, ...]) -> tuple[Any, ...]:
        all_grads: list[Any] = [None] * len(values)
        for place, grad in zip(places, grads, strict=True):
            all_grads[place] = grad
        found = through(tuple(all_grads))
        return tuple(found[place] for place in places)

    tensors = _Gradients.apply(of_tensors, *(values[place] for place in places))
    watched = list(values)
    for place, tensor in zip(places, tensors, strict=True):
        watched[place] = tensor
    return tuple(watched)


class BackwardHooks:
    """The backward hooks of one call of a module."""

    def __init__(self, module: Any, before: Sequence[Any], after: Sequence[Any]) -> None:
        self._module = module
        self._before = before
        self._after = after
        self._output_grads: tuple[Any, ...] = ()
        self._has_input_grads = False
        self._inputs = 0

    def watch_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the arguments of the call to compute with."""
        self._inputs = len(args)
        self._has_input_grads = is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
        return _watched(args, self._on_inputs) if self._has_input_grads and self._after else args

    def watch_outputs(self, result: Any) -> Any:
        """Returns the result of the call."""
        outputs = _tuple(result)
        if not any(isinstance(output, Tensor) and output.requires_grad for output in outputs):
            return result
        watched = _watched(outputs, self._on_outputs)
        return watched if isinstance(result, tuple) else watched[0]

    def _on_outputs(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook in self._before:
            found = hook(self._module, grads)
            grads = grads if found is None else _tuple(found)
        self._output_grads = grads
        if not self._has_input_grads:
            for hook in self._after:
                if hook(self._module, (None,) * self._inputs, grads) is not None:
                    raise RuntimeError(
                        "backward hook for Modules where no input requires gradient should always return None or None "
                        "for all gradients"
                    )
        return grads

    def _on_inputs(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook in self._after:
            found = hook(self._module, grads, self._output_grads)
            grads = grads if found is None else _tuple(found)
        self._output_grads = ()
        return grads
