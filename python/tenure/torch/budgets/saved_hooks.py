"""Hooks of saved tensors that can be taken off a thread's stack and put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C import _autograd as _typed

__all__ = ["SavedHooks"]

#: An untyped alias: PyTorch's type stubs lack some of its functions.
_autograd: Any = _typed

_Pair = tuple[Callable[[Any], Any], Callable[[Any], Any]]


class SavedHooks:
    """Hooks on the tensors that a thread saves for backward, on its stack from `enter` to `leave`.

    PyTorch calls only the hooks on top of the stack. Between `enter` and `leave` the thread may `pause` them, wherever
    they lie on the stack: then PyTorch saves tensors as if they had never been there.
    """

    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        self._pair: _Pair = (pack, unpack)
        #: The number of pairs below them on the stack.
        self._depth = 0
        self._is_on = False

    def enter(self) -> None:
        """Puts the hooks on top of the stack."""
        pairs = _taken()
        self._depth = len(pairs)
        _put(pairs)
        _put([self._pair])
        self._is_on = True

    def leave(self) -> None:
        """Takes the hooks off the stack for good."""
        self.pause()

    def pause(self) -> None:
        """Takes the hooks off the stack, if they are on it."""
        if not self._is_on or not _autograd._saved_tensors_hooks_is_enabled():
            return
        pairs = _taken()
        own = pairs.pop(self._depth)
        assert own[0] is self._pair[0], "pairs leave the stack in the order in which they came"
        _put(pairs)
        self._is_on = False

    def resume(self) -> None:
        """Puts the hooks back where they were, if they are not there."""
        if self._is_on or not _autograd._saved_tensors_hooks_is_enabled():
            return
        pairs = _taken()
        pairs.insert(self._depth, self._pair)
        _put(pairs)
        self._is_on = True


def _taken() -> list[_Pair]:
    """Takes all pairs off the thread's stack and returns them, the lowest first."""
    pairs: list[_Pair] = []
    while (top := _autograd._top_saved_tensors_default_hooks(True)) is not None:
        _autograd._pop_saved_tensors_default_hooks()
        pairs.append(top)
    pairs.reverse()
    return pairs


def _put(pairs: list[_Pair]) -> None:
    for pack, unpack in pairs:
        _autograd._push_saved_tensors_default_hooks(pack, unpack)
