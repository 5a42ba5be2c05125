"""Multiplies matrices by Tenure's C interface alone, without the Python package.

``python matmul_ctypes.py libtenure_capi.so`` takes the library that C programs are linked with (``cargo build -p
tenure-capi``). The names are those of ``tenure_tensor.h``.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, byref, c_bool, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

FLOAT32, CPU = 8, -1  # of tenure_dtype, and TENURE_CPU
TYPE_FLOAT, TYPE_TENSOR = 4, 8  # of tenure_type


class Content(ctypes.Union):
    _fields_ = [("boolean", c_bool), ("integer", c_int64), ("number", c_double), ("tensor", c_void_p)]


class Value(ctypes.Structure):
    """A tenure_value."""

    _fields_ = [("type", c_int32), ("count", c_size_t), ("content", Content)]


class Tenure:
    """The functions of the C interface that this program calls."""

    def __init__(self, path: str) -> None:
        self.c = ctypes.CDLL(path)
        self.c.tenure_last_error.restype = c_char_p
        self.c.tenure_tensor_from.argtypes = [
            c_void_p,
            POINTER(c_int64),
            c_size_t,
            c_int,
            c_int,
            POINTER(c_void_p),
        ]
        self.c.tenure_call.argtypes = [c_char_p, POINTER(Value), c_size_t, POINTER(Value)]
        self.c.tenure_tensor_read.argtypes = [c_void_p, c_void_p, c_size_t]
        self.c.tenure_tensor_numel.argtypes = [c_void_p]
        self.c.tenure_tensor_numel.restype = c_size_t
        self.c.tenure_tensor_free.argtypes = [c_void_p]
        self.c.tenure_tensor_free.restype = None

    def check(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(self.c.tenure_last_error().decode())

    def tensor(self, numbers: list[float], *sizes: int) -> Tensor:
        handle = c_void_p()
        data, shape = (ctypes.c_float * len(numbers))(*numbers), (c_int64 * len(sizes))(*sizes)
        self.check(self.c.tenure_tensor_from(data, shape, len(sizes), FLOAT32, CPU, byref(handle)))
        return Tensor(self, handle.value)

    def call(self, operation: str, *arguments: Tensor | float) -> Tensor:
        """Calls an operation with one result by its name, with tensors and numbers."""
        values = (Value * len(arguments))()
        for value, argument in zip(values, arguments, strict=True):
            if isinstance(argument, Tensor):
                value.type, value.content.tensor = TYPE_TENSOR, argument.handle
            else:
                value.type, value.content.number = TYPE_FLOAT, argument
        result = Value()
        self.check(self.c.tenure_call(operation.encode(), values, len(arguments), byref(result)))
        return Tensor(self, result.content.tensor)


class Tensor:
    """A handle, which is freed with this object."""

    def __init__(self, tenure: Tenure, handle: Any) -> None:
        self.tenure, self.handle = tenure, handle

    def __del__(self) -> None:
        self.tenure.c.tenure_tensor_free(self.handle)

    def tolist(self) -> list[float]:
        numbers = (ctypes.c_float * self.tenure.c.tenure_tensor_numel(self.handle))()
        self.tenure.check(self.tenure.c.tenure_tensor_read(self.handle, numbers, ctypes.sizeof(numbers)))
        return list(numbers)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python matmul_ctypes.py libtenure_capi.so")
    tenure = Tenure(sys.argv[1])
    x = tenure.tensor([1, 2, 3, 4], 2, 2)
    product = tenure.call("matmul", x, x)
    print("x @ x + 0.5 =", tenure.call("add", product, 0.5).tolist())
    try:
        tenure.call("matmul", x, tenure.tensor([1, 2, 3], 3))
    except RuntimeError as error:
        print(error)


if __name__ == "__main__":
    main()
