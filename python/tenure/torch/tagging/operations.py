# mypy: disallow-subclassing-any=False
"""Keys by operation, for a finer view than by module."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tenure import _native
from tenure.torch.purpose import new_token, number_of_key, number_of_tag, retag

__all__ = ["tag_operations"]

_WORKSPACE = number_of_tag("workspace")


class tag_operations(TorchDispatchMode):
    """Adds the operation to the keys of memory, and separates results from workspace.

    Inside the ``with`` block, the key of a block of memory names the operation beside the module. All memory of an
    operation is ``workspace``, except its results, which have the tag from `tag`'s hooks. Backward counts too.

    Every operation passes through Python once more for this, which takes about as long as launching it: use it to
    inspect a program, not in production.

    Examples
    --------
    >>> with tenure.torch.tag(model), tenure.torch.tag_operations():  # doctest: +SKIP
    ...     loss(model(x)).backward()
    """

    def __init__(self) -> None:
        super().__init__()
        self._token = new_token()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        tag, outer = _native.current_purpose()
        key = _key(outer, func)
        _native.enter_purpose(self._token, _WORKSPACE, key)
        try:
            results = func(*args, **(kwargs or {}))
        finally:
            _native.leave_purpose(self._token)
        for is_new, result in zip(_is_new(func), results if isinstance(results, tuple) else (results,), strict=False):
            for tensor in result if isinstance(result, list) else (result,):
                if is_new and isinstance(tensor, Tensor):
                    retag(tensor, tag, key)
        return results


@cache
def _key(outer: int, func: Callable[..., Any]) -> int:
    """Returns the key of `func`'s memory within the key `outer`."""
    return number_of_key(_native.module_of_key(outer), str(func), "out")


@cache
def _is_new(func: Any) -> tuple[bool, ...]:
    """Returns for each result of `func` whether it has memory of its own, rather than an argument's."""
    return tuple(result.alias_info is None for result in func._schema.returns)
