"""Tensors on the memory of Python's buffers, without a copy, by NumPy's DLPack tensors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

from tenure._native import Tensor, dtype, from_dlpack, get_default_dtype
from tenure._operations import empty

#: NumPy's dtypes of the same size, for those that NumPy or its DLPack does not have, and DLPack's code of the dtype.
_STAND_INS = {"bool": ("uint8", 6), "bfloat16": ("uint16", 4)}
#: The bytes of `DLTensor` before its type code: a pointer, the device's type and number, and the number of dimensions.
_CODE_OFFSET = 20

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer.restype = ctypes.c_void_p


class _Exported:
    """An object with `__dlpack__`."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> object:
        return self._capsule


def on_buffer(view: memoryview, dtype: dtype, shape: Sequence[int], offset: int = 0) -> Tensor:
    """Returns a tensor on the bytes of a view from `offset` on, which keeps the view for as long as it lives.

    The tensor is a copy if the view is read-only, or if the first byte is not aligned for the dtype.
    """
    import numpy

    count = math.prod(shape)
    needed = offset + count * dtype.itemsize
    if offset < 0 or needed > view.nbytes:
        raise ValueError(f"{needed} bytes are needed, and the buffer has {view.nbytes}")
    if count == 0:
        return empty(tuple(shape), dtype=dtype)
    name, code = _STAND_INS.get(dtype.name, (dtype.name, None))
    array = numpy.frombuffer(view, dtype=name, count=count, offset=offset).reshape(shape)
    capsule = (array.copy() if view.readonly else array).__dlpack__()
    if code is not None:
        pointer = _capsule_pointer(capsule, b"dltensor")
        ctypes.c_uint8.from_address(pointer + _CODE_OFFSET).value = code
    return from_dlpack(_Exported(capsule))


def frombuffer(
    buffer: Any,
    *,
    dtype: dtype | None = None,
    count: int = -1,
    offset: int = 0,
    requires_grad: bool = False,
) -> Tensor:
    """Returns a tensor of one dimension on the memory of an object with the buffer protocol, without a copy.

    The tensor is a copy if the buffer is read-only, as `bytes` is, or if the first byte is not aligned for the dtype.
    NumPy must be installed.

    Parameters
    ----------
    buffer : object with the buffer protocol
        Its memory must be contiguous.
    dtype : dtype, default None
        The elements' type; by default the default dtype.
    count : int, default -1
        The number of elements; if negative, all that follow `offset`.
    offset : int, default 0
        The number of bytes to skip.
    requires_grad : bool, default False

    Examples
    --------
    >>> import tenure
    >>> tenure.frombuffer(bytearray([1, 0, 2, 0]), dtype=tenure.int16)
    tensor([1, 2], dtype=tenure.int16)
    """
    kind = get_default_dtype() if dtype is None else dtype
    view = memoryview(buffer).cast("B")
    if view.nbytes == 0 or count == 0:
        raise ValueError(f"both the buffer's length ({view.nbytes}) and count ({count}) must not be 0")
    if not 0 <= offset < view.nbytes:
        raise ValueError(f"offset ({offset} bytes) must be from 0 up to the last of {view.nbytes} bytes")
    rest = view.nbytes - offset
    if count < 0:
        count, remainder = divmod(rest, kind.itemsize)
        if remainder:
            raise ValueError(
                f"the {rest} bytes after offset are no whole number of elements of {kind.itemsize} bytes: pass count"
            )
    if count * kind.itemsize > rest:
        raise ValueError(
            f"{count} elements of {kind.itemsize} bytes after offset ({offset} bytes) need more than the buffer's "
            f"{view.nbytes} bytes"
        )
    tensor = on_buffer(view, kind, (count,), offset)
    return tensor.requires_grad_() if requires_grad else tensor
