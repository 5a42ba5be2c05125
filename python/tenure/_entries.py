"""The modules at which a program enters a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

__all__ = ["Entries", "Hook"]

#: The number of steps that are watched for calls of modules. After that, the program is taken to call none.
_TRIES = 3


class Hook:
    """A hook of a module. Copies of the module, and files that it is saved to, have one that does nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        # It accepts any arguments, returns None, and can be loaded where Tenure is not installed.
        return getattr, (nullcontext(), "__exit__")


class Entries:
    """Hooks around the calls by which a program enters a model.

    Most programs call the model itself. Others call parts of it, as the ``training_step`` of Lightning does, or methods
    that do. To find these parts, all modules have hooks during one step. After it only the modules that the program
    called keep them, so that a step costs nothing for the others.
    """

    def __init__(self, model: Any, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        self._model = model
        self._before, self._after = before, after
        self._hooks = {model: self._hooked(model)}
        self._entered: set[Any] = set()
        self._watched: set[Any] = set()
        self._tries = 0

    def enter(self, module: Any) -> None:
        """Records that the program calls a module."""
        self._entered.add(module)

    def watch(self) -> None:
        """Watches all modules until `settle`, if it is not yet known where the program enters the model."""
        if self._entered or self._watched or self._tries == _TRIES:
            return
        self._tries += 1
        self._watched = set(_watchable(self._model)) - set(self._hooks)
        self._hooks |= {module: self._hooked(module) for module in self._watched}

    def settle(self) -> None:
        """Ends the watch: only modules that were entered keep their hooks."""
        for module in self._watched - self._entered:
            self._unhook(module)
        self._watched.clear()

    def remove(self) -> None:
        """Removes all hooks."""
        for module in list(self._hooks):
            self._unhook(module)

    def _hooked(self, module: Any) -> tuple[Any, Any]:
        return (
            module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True),
            module.register_forward_hook(self._after, always_call=True),
        )

    def _unhook(self, module: Any) -> None:
        for hook in self._hooks.pop(module):
            hook.remove()


def _watchable(module: Any) -> Iterator[Any]:
    """Yields the modules below one, except those inside compiled ones, which new hooks would cause to be recompiled."""
    for child in module.children():
        yield child
        if not is_compiled(child):
            yield from _watchable(child)


def is_compiled(module: Any) -> bool:
    """Returns whether all of a module is compiled by torch.compile()."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
