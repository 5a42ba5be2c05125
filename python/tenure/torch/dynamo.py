"""Hooks in programs that `torch.compile` compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

__all__ = ["runs_beside_compiled_code", "surrounds_compiled_code"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def runs_beside_compiled_code(function: _Function) -> _Function:
    """Makes Dynamo skip a hook that is called outside of compiled code, with all that the hook calls.

    Dynamo would otherwise compile the hook as a program of its own, in which ``torch.compiler.is_compiling()`` is true.
    Inside compiled code the hook is still traced, and should do nothing there: then it breaks no graph.
    """
    return _skipped(function, "SKIP")


def surrounds_compiled_code(function: _Function) -> _Function:
    """Makes Dynamo skip a function, but not the user's code that it calls."""
    return _skipped(function, "DEFAULT")


def _skipped(function: _Function, inside: str) -> _Function:
    # The same as torch._dynamo.eval_frame.skip_code(), without importing all of Dynamo. If a later PyTorch does not
    # have it, hooks beside compiled code do nothing.
    if hasattr(eval_frame, "set_code_exec_strategy"):
        actions = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(actions.SKIP, getattr(actions, inside))
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    return function
