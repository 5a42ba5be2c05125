"""Layers of a model whose weights come and go.

A module finds its parameters and buffers in two dictionaries. While the model is called these are plain ones, at no
cost. Where weights may still be on their way, they are dictionaries that make the device wait when an item is taken, by
any code. Outside of calls, they are dictionaries that refuse access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from torch import Tensor, nn

from tenure import Error

__all__ = ["GatedLayer", "restorer"]

Tensors = dict[str, Tensor | None]


class _Named(dict[str, None]):
    """A dictionary of names. Overrides ``__iter__`` so that ``dict()`` and ``{**}`` copy it by the methods below."""

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()


class _Absent(_Named):
    """A dictionary that refuses to be read or written, as its weights are not there."""

    def __init__(self, names: Tensors, reason: str) -> None:
        # The names are there, so that a module does not report a missing attribute.
        super().__init__(dict.fromkeys(names))
        self.reason = reason

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise Error(self.reason)


class _Coming(_Named):
    """A dictionary that makes the device wait for the weights when an item is taken."""

    def __init__(self, names: Tensors, arrive: Callable[[], Tensors]) -> None:
        # Access that bypasses the methods below finds None.
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
        The last of the groups that the tensors are copied in.
    number
        The layer's number in the model.
    take
        A function that is called when an item is taken while it may be on its way: makes the device wait, and opens the
        layer.
    reason
        The error message for access outside of calls.
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
        # One list for all calls, so that the module is unchanged after a call.
        self._no_weights: list[Tensor] = []
        self._flat: list[str] = module._flat_weights_names if isinstance(module, nn.RNNBase) else []
        # A recurrent layer takes its weights from a list.
        self._hook = module.register_forward_pre_hook(self._flatten, prepend=True) if self._flat else None
        self.leave()
        # Set last: if this is interrupted, no reference cycle keeps the tensors.
        self._here = tensors

    def leave(self) -> None:
        """Makes the layer refuse access."""
        self._attributes["_parameters"], self._attributes["_buffers"] = self._absent
        if self._flat:
            self._attributes["_flat_weights"] = self._no_weights

    def come(self) -> None:
        """Makes the layer wait for its weights, which may be on their way."""
        self._attributes["_parameters"], self._attributes["_buffers"] = self._coming

    def open(self) -> None:
        """Gives the layer its weights, without further waits."""
        self._attributes["_parameters"], self._attributes["_buffers"] = self._here

    def close(self) -> None:
        """Makes the layer refuse access for good, and frees its tensors."""
        self.leave()
        if self._hook is not None:
            self._hook.remove()
        # Freed at once, not when Python's garbage collector finds the cycles.
        self._here, self._coming = ({}, {}), ()

    def _taker(self, kind: int) -> Callable[[], Tensors]:
        def take() -> Tensors:
            self._take(self)
            return self._here[kind]

        return take

    def _flatten(self, module: nn.Module, _: Any) -> None:
        self._attributes["_flat_weights"] = [getattr(module, name, None) for name in self._flat]


def restorer(module: nn.Module) -> Callable[[], None]:
    """Keeps a module's tensors. Returns a function that gives them back, for use after its layers are closed."""
    names = ("_parameters", "_buffers", "_flat_weights")
    kept = [
        (child.__dict__, {name: child.__dict__[name] for name in names if name in child.__dict__})
        for child in module.modules()
    ]

    def restore() -> None:
        for attributes, before in kept:
            attributes.update(before)

    return restore
