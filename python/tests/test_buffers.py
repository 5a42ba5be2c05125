# Python before 3.12 does not tell type checkers which objects are buffers.
# mypy: disable-error-code="arg-type, comparison-overlap, untyped-decorator"
"""Python's buffer protocol: views of tensors, and tensors on the memory of other objects."""

from __future__ import annotations

import array
import ctypes
import hashlib
import io
import sys

import numpy as np
import pytest

import tenure

DTYPES = [
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_memoryview_of_a_tensor_has_its_elements(dtype: str) -> None:
    tensor = tenure.tensor([[0, 1, 1], [1, 0, 1]], dtype=getattr(tenure, dtype))
    view = memoryview(tensor)
    assert (view.shape, view.strides, view.itemsize) == (
        tensor.shape,
        (3 * view.itemsize, view.itemsize),
        view.itemsize,
    )
    assert np.asarray(view).dtype == dtype
    assert np.asarray(view).tolist() == tensor.tolist()
    np.asarray(view)[0, 0] = 1
    assert tensor[0, 0] == 1
    assert np.asarray(memoryview(tensor.T)).tolist() == tensor.T.tolist()
    assert bytes(tensor) == np.from_dlpack(tensor).tobytes()


def test_buffers_are_refused_where_python_has_none() -> None:
    with pytest.raises(BufferError, match="no bfloat16"):
        memoryview(tenure.ones(2, dtype=tenure.bfloat16))
    with pytest.raises(BufferError, match="detach"):
        memoryview(tenure.ones(2, requires_grad=True))
    with pytest.raises(BufferError, match="contiguous"):
        hashlib.sha256(tenure.ones(2, 3).T)
    with pytest.raises(TypeError, match="not writable"):
        ctypes.c_float.from_buffer(tenure.asarray(bytes(8)))
    with pytest.raises(TypeError, match="read-write"):
        io.BytesIO(bytes(8)).readinto(tenure.asarray(bytes(8)))
    assert memoryview(tenure.empty(0)).nbytes == 0
    assert memoryview(tenure.tensor(3.5)).tolist() == 3.5


def test_buffers_of_other_objects_become_tensors_on_their_memory() -> None:
    numbers = array.array("d", [1, 2, 3])
    tensor = tenure.asarray(numbers)
    assert tensor.dtype is tenure.float64
    tensor.mul_(2)
    assert numbers.tolist() == [2, 4, 6]
    with pytest.raises(BufferError):
        numbers.append(4)
    del tensor
    numbers.append(4)
    text = tenure.asarray(b"abc")
    assert (text.dtype, text.tolist()) == (tenure.uint8, [97, 98, 99])
    with pytest.raises(tenure.Error, match="read-only"):
        text.zero_()
    grid = memoryview(np.arange(6, dtype=np.int32).reshape(2, 3))[::-1]
    assert tenure.asarray(grid).tolist() == [[3, 4, 5], [0, 1, 2]]
    assert tenure.asarray(array.array("I", [7])).dtype is tenure.uint32
    # As PyTorch does, `tensor` takes the values, not their format.
    assert tenure.tensor(numbers).dtype is tenure.float32
    assert tenure.tensor(memoryview(b"ab")).tolist() == [97, 98]
    assert tenure.asarray(numbers, copy=True).add_(1).tolist() == [3, 5, 7, 5]
    assert numbers.tolist() == [2, 4, 6, 4]


def test_frombuffer_takes_a_part_of_a_buffer() -> None:
    memory = bytearray(np.arange(4, dtype=np.int32).tobytes())
    assert tenure.frombuffer(memory, dtype=tenure.int32).tolist() == [0, 1, 2, 3]
    part = tenure.frombuffer(memory, dtype=tenure.int32, count=2, offset=4)
    part.fill_(9)
    assert np.frombuffer(memory, dtype=np.int32).tolist() == [0, 9, 9, 3]
    assert tenure.frombuffer(bytes(8), dtype=tenure.float32, requires_grad=True).requires_grad
    # An element that is not aligned is copied.
    assert tenure.frombuffer(memory, dtype=tenure.int16, count=2, offset=3).shape == (2,)
    for kwargs, text in [
        ({"offset": -1}, "offset"),
        ({"offset": 16}, "less than the buffer's 16 bytes"),
        ({"offset": 2}, "not a multiple of the 4 bytes"),
        ({"count": 5}, "more than the 16 bytes"),
        ({"count": -2}, "count must be"),
        ({"count": sys.maxsize}, "more than the 16 bytes"),
    ]:
        with pytest.raises(ValueError, match=text):
            tenure.frombuffer(memory, dtype=tenure.int32, **kwargs)
    with pytest.raises(TypeError, match="bytes-like"):
        tenure.frombuffer([1], dtype=tenure.int32)
    with pytest.raises(TypeError, match=r"tenure\.dtype"):
        tenure.frombuffer(memory, dtype="int32")
