"""The purpose that this thread allocates for, in the numbers that the allocator uses."""

from __future__ import annotations

import itertools
from functools import cache
from types import TracebackType
from typing import Literal, Self

from torch import Tensor

from tenure import _native

__all__ = ["Span", "TagName", "address_of", "new_token", "number_of_key", "number_of_tag", "retag", "tagged"]

TagName = Literal["weight", "activation", "gradient", "optimizer_state", "input", "workspace"]

_TAGS = {name: number for number, name in enumerate(_native.tags())}
_tokens = itertools.count(1)


class tagged:
    """Tags the CUDA memory that is allocated inside a ``with`` block.

    It acts on the thread that enters it. It can be entered again and nested: the innermost block counts.

    Parameters
    ----------
    tag
        The purpose of the memory.
    name
        A name of the program's own for the tensor, such as ``tokens``.
    module
        The path of the module that it belongs to, if any.

    Examples
    --------
    >>> with tagged("input", "images"):  # doctest: +SKIP
    ...     images = batch.cuda()
    """

    def __init__(self, tag: TagName, name: str = "", *, module: str = "") -> None:
        if tag not in _TAGS:
            raise ValueError(f"tag={tag!r}: expected one of {', '.join(map(repr, _TAGS))}")
        self._purpose = (new_token(), _TAGS[tag], number_of_key(module, "", name))

    def __enter__(self) -> Self:
        _native.enter_purpose(*self._purpose)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _native.leave_purpose(self._purpose[0])


class Span:
    """A stretch of the program. Purposes that are set with its number end with it, on all threads.

    It ends with a call of `end`, or when the object is freed.
    """

    def __init__(self) -> None:
        self.number = _native.begin_span()

    def end(self) -> None:
        """Ends the span. A second call does nothing."""
        _native.end_span(self.number)

    def __del__(self) -> None:
        # At Python's exit, the module that this needs may be gone already.
        if _native is not None and _native.end_span is not None:
            self.end()


def number_of_tag(name: TagName) -> int:
    """Returns the tag's number."""
    return _TAGS[name]


@cache
def number_of_key(module: str, op: str, role: str) -> int:
    """Returns the number of a key: a module's path, the operation that asks for memory, and the tensor's role there."""
    return _native.intern_key(module, op, role, 0)


def new_token() -> int:
    """Returns a number that no other scope has."""
    return next(_tokens)


def retag(tensor: Tensor, tag: int, key: int) -> None:
    """Changes the purpose of `tensor`'s memory. Memory that is not Tenure's is left alone."""
    # A distributed tensor's memory is that of its local part.
    tensor = getattr(tensor, "_local_tensor", tensor)
    if tensor.is_cuda and (address := address_of(tensor)):
        _native.retag(tensor.get_device(), address, tag, key)


def address_of(tensor: Tensor) -> int:
    """Returns the address of the tensor's memory; 0 if it has none of its own: sparse, fake, not initialised."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, ValueError):
        return 0
