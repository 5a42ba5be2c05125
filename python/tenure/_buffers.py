"""Tensors on the memory of Python's buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tenure._native import Tensor, dtype, frombuffer
from tenure._operations import empty


def on_buffer(view: memoryview, dtype: dtype, shape: Sequence[int], offset: int = 0) -> Tensor:
    """Returns a tensor on the bytes of a view from `offset` on, which keeps the view for as long as it lives."""
    count = math.prod(shape)
    if count == 0:
        return empty(tuple(shape), dtype=dtype)
    return frombuffer(view, dtype=dtype, count=count, offset=offset).view(tuple(shape))
