"""Lets functions of ``torch.func`` run within a budget: PyTorch allows no hooks of saved tensors while they do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch._C import _autograd as _typed

__all__ = ["let_functions_through"]

#: An untyped alias: PyTorch's type stubs lack some of its functions.
_autograd: Any = _typed


@cache
def let_functions_through(suspend: Callable[[bool], None]) -> None:
    """Calls ``suspend(True)`` before PyTorch disables hooks of saved tensors for a thread, and ``suspend(False)`` after
    it has enabled them again. Otherwise PyTorch would refuse to disable them.

    There is no other place where a function such as ``torch.func.grad`` begins: what it saves then stays in memory.
    """
    disable, enable = _autograd._saved_tensors_hooks_disable, _autograd._saved_tensors_hooks_enable

    def disabled(message: str, fail_if_non_empty: bool = True) -> None:
        if fail_if_non_empty and _autograd._saved_tensors_hooks_is_enabled():
            suspend(True)
        disable(message, fail_if_non_empty)

    def enabled() -> None:
        enable()
        suspend(False)

    _autograd._saved_tensors_hooks_disable, _autograd._saved_tensors_hooks_enable = disabled, enabled
