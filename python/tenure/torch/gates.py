"""Layers of a model whose weights come and go.

A module finds its parameters and buffers in two dictionaries. While the model is called these are plain ones, and cost
nothing; where weights may be on their way, ones that have the device wait when something is taken out of them, whoever
takes it; and outside of calls, ones that refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from torch import Tensor, nn

from tenure import Error

__all__ = ["GatedLayer", "restorer"]

Tensors = dict[str, Tensor | None]


class _Named(dict[str, None]):
    """A dictionary of names. ``dict()`` and ``{**}`` copy one whose iterator is its own by the methods below."""

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()


class _Absent(_Named):
    """Nobody reads or writes what is not there."""

    def __init__(self, names: Tensors, reason: str) -> None:
        # Names are there, so that a module does not say that it has no such attribute.
        super().__init__(dict.fromkeys(names))
        self.reason = reason

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise Error(self.reason)


class _Coming(_Named):
    """Who takes something out has the device wait until it is there."""

    def __init__(self, names: Tensors, arrive: Callable[[], Tensors]) -> None:
        # What goes past the methods below finds nothing.
        super().__init__(dict.fromkeys(names))
        self._arrive = arrive


def _of_those_there(method: str) -> Callable[..., Any]:
    def call(self: _Coming, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._arrive(), method)(*args, **kwargs)

    return call


for _method in (
    *("__getitem__", "__setitem__", "__delitem__", "get", "items", "values"),
    *("pop", "popitem", "setdefault", "update", "copy", "clear", "__or__", "__ror__", "__ior__"),
):
    setattr(_Absent, _method, _Absent._refuse)
    setattr(_Coming, _method, _of_those_there(_method))


class GatedLayer:
    """A module with tensors of its own.

    Parameters
    ----------
    module
        The module.
    tensors
        Its parameters and its buffers, on the device.
    group
        The last of the groups that they come in.
    number
        Which of the model's layers it is.
    take
        Is called when something is taken while it may be on its way: has the device wait, and opens the layer.
    reason
        Why nothing can be had outside of calls.
    """

    def __init__(
        self,
        module: nn.Module,
        tensors: tuple[Tensors, Tensors],
        group: int,
        number: int,
        take: Callable[[GatedLayer], None],
        reason: str,
    ) -> None:
        self.group = group
        self.number = number
        self._take = take
        self._attributes = module.__dict__
        self._here: tuple[Tensors, Tensors] = ({}, {})
        self._absent = tuple(_Absent(names, reason) for names in tensors)
        self._coming = tuple(_Coming(names, self._taker(kind)) for kind, names in enumerate(tensors))
        # One list, so that the module is as it was after a call.
        self._no_weights: list[Tensor] = []
        self._flat: list[str] = module._flat_weights_names if isinstance(module, nn.RNNBase) else []
        # It takes its weights out of a list.
        self._hook = module.register_forward_pre_hook(self._flatten, prepend=True) if self._flat else None
        self.leave()
        # Last: if this is interrupted, no circle keeps them.
        self._here = tensors

    def leave(self) -> None:
        """Nobody finds anything."""
        self._attributes["_parameters"], self._attributes["_buffers"] = self._absent
        if self._flat:
            self._attributes["_flat_weights"] = self._no_weights

    def come(self) -> None:
        """It may be on its way."""
        self._attributes["_parameters"], self._attributes["_buffers"] = self._coming

    def open(self) -> None:
        """What computes from now on finds it there."""
        self._attributes["_parameters"], self._attributes["_buffers"] = self._here

    def close(self) -> None:
        """Nobody ever finds anything again, not by this."""
        self.leave()
        if self._hook is not None:
            self._hook.remove()
        # What is not needed goes at once, and not when Python looks for circles.
        self._here, self._coming = ({}, {}), ()

    def _taker(self, kind: int) -> Callable[[], Tensors]:
        def take() -> Tensors:
            self._take(self)
            return self._here[kind]

        return take

    def _flatten(self, module: nn.Module, _: Any) -> None:
        self._attributes["_flat_weights"] = [getattr(module, name, None) for name in self._flat]


def restorer(module: nn.Module) -> Callable[[], None]:
    """Keeps the tensors that a module has. Called after its layers are closed, what it returns gives them back."""
    names = ("_parameters", "_buffers", "_flat_weights")
    kept = [
        (child.__dict__, {name: child.__dict__[name] for name in names if name in child.__dict__})
        for child in module.modules()
    ]

    def restore() -> None:
        for attributes, before in kept:
            attributes.update(before)

    return restore
