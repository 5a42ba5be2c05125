"""The modules at which a program enters a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

__all__ = ["Entries"]

#: How many steps are watched for modules that are called, before a program is believed to call none.
_TRIES = 3


class Entries:
    """Hooks around the calls by which a program enters a model.

    Most programs call the model itself. Others call parts of it, as the ``training_step`` of Lightning does, or methods
    that do. Which parts these are shows a step in which all modules have hooks. After it, only those have them that the
    program calls, so that a step costs nothing for the other modules.
    """

    def __init__(self, model: nn.Module, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        self._model = model
        self._before, self._after = before, after
        self._hooks = {model: self._hooked(model)}
        self._entered: set[nn.Module] = set()
        self._watched: set[nn.Module] = set()
        self._tries = 0

    def enter(self, module: nn.Module) -> None:
        """Notes that the program calls a module."""
        self._entered.add(module)

    def watch(self) -> None:
        """Watches all modules until `settle`, if it is not known yet where the program enters the model."""
        if self._entered or self._watched or self._tries == _TRIES:
            return
        self._tries += 1
        self._watched = set(_watchable(self._model)) - set(self._hooks)
        self._hooks |= {module: self._hooked(module) for module in self._watched}

    def settle(self) -> None:
        """Ends the watch: modules keep their hooks that were entered."""
        for module in self._watched - self._entered:
            self._unhook(module)
        self._watched.clear()

    def remove(self) -> None:
        """Removes all hooks."""
        for module in list(self._hooks):
            self._unhook(module)

    def _hooked(self, module: nn.Module) -> tuple[Any, Any]:
        return (
            module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True),
            module.register_forward_hook(self._after, always_call=True),
        )

    def _unhook(self, module: nn.Module) -> None:
        for hook in self._hooks.pop(module):
            hook.remove()


def _watchable(module: nn.Module) -> Iterator[nn.Module]:
    """The modules below one, but for those inside of compiled ones: new hooks would have these compiled again."""
    for child in module.children():
        yield child
        if not _is_compiled(child):
            yield from _watchable(child)


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
