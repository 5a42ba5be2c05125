"""Hooks in programs that `torch.compile` compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

__all__ = ["runs_beside_compiled_code", "surrounds_compiled_code"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def runs_beside_compiled_code(function: _Function) -> _Function:
    """Lets a hook that is called outside of compiled code run as it is, with all that it calls.

    Dynamo would compile it as a program of its own, for which ``torch.compiler.is_compiling()`` is true. Inside of
    compiled code it is traced as before, and should do nothing there: then it breaks no graph.
    """
    return _skipped(function, "SKIP")


def surrounds_compiled_code(function: _Function) -> _Function:
    """The same for a function that calls the user's code, which Dynamo goes on to compile."""
    return _skipped(function, "DEFAULT")


def _skipped(function: _Function, inside: str) -> _Function:
    # What torch._dynamo.eval_frame.skip_code() does, without importing all of Dynamo. Where PyTorch has it no longer,
    # hooks beside compiled code do nothing.
    if hasattr(eval_frame, "set_code_exec_strategy"):
        actions = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(actions.SKIP, getattr(actions, inside))
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    return function
