"""Messages between a loader and its workers: a socket carries a descriptor of memory that has no name.

The memory holds the bytes of all tensors and buffers, and a pickle of the rest. The kernel frees it with the last
process that uses it, so that no process leaves any behind, however it ends.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import struct
from typing import Any

from tenure._buffers import on_buffer
from tenure._native import Tensor, dtype_named

#: The length of the memory, and where the pickle begins.
_HEADER = struct.Struct("<QQ")
#: Tensors and buffers begin at multiples of this many bytes.
_ALIGNMENT = 64


class _Pickler(pickle.Pickler):
    """Sets tensors and buffers aside."""

    def __init__(self, file: io.BytesIO) -> None:
        self.tensors: list[Tensor] = []
        self.buffers: list[memoryview] = []
        self._numbers: dict[int, int] = {}
        super().__init__(file, protocol=5, buffer_callback=self._set_aside)

    def _set_aside(self, buffer: pickle.PickleBuffer) -> None:
        self.buffers.append(buffer.raw())

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not Tensor:
            return None
        number = self._numbers.setdefault(id(obj), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(obj)
        return number


class _Unpickler(pickle.Unpickler):
    """Finds tensors and buffers in the memory."""

    def __init__(self, body: bytes, tensors: list[Tensor], buffers: list[memoryview]) -> None:
        super().__init__(io.BytesIO(body), buffers=buffers)
        self._tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        return self._tensors[number]


def _descriptor(obj: object) -> tuple[int, int, int]:
    """Returns a descriptor of new memory with an object, the memory's length, and where the pickle begins."""
    body = io.BytesIO()
    pickler = _Pickler(body)
    pickler.dump(obj)
    end = 0
    tensors = []
    for tensor in pickler.tensors:
        tensors.append((tensor.dtype.name, tuple(tensor.shape), end))
        end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    buffers = []
    for buffer in pickler.buffers:
        buffers.append((end, buffer.nbytes))
        end += -(-buffer.nbytes // _ALIGNMENT) * _ALIGNMENT
    table = pickle.dumps((tensors, buffers, body.getvalue()), protocol=5)
    descriptor = os.memfd_create("tenure-data")
    try:
        os.ftruncate(descriptor, end + len(table))
        view = memoryview(mmap.mmap(descriptor, end + len(table)))
        for tensor, (_, shape, begin) in zip(pickler.tensors, tensors, strict=True):
            on_buffer(view, tensor.dtype, shape, begin).copy_(tensor.detach())
        for buffer, (begin, length) in zip(pickler.buffers, buffers, strict=True):
            view[begin : begin + length] = buffer
        view[end:] = table
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, end + len(table), end


def send(connection: socket.socket, obj: object) -> None:
    """Sends an object. It never waits for the receiver, unless hundreds of messages do.

    Raises
    ------
    OSError
        The receiver is gone.
    """
    descriptor, length, begin = _descriptor(obj)
    try:
        socket.send_fds(connection, [_HEADER.pack(length, begin)], [descriptor])
    finally:
        os.close(descriptor)


def receive(connection: socket.socket) -> Any:
    """Returns the next object, whose tensors and buffers are on the sender's memory.

    Raises
    ------
    EOFError
        The sender is gone.
    TimeoutError
        No message came within the connection's timeout.
    """
    try:
        header, descriptors, _, _ = socket.recv_fds(connection, _HEADER.size, 1)
    except ConnectionResetError:
        raise EOFError from None
    if not header:
        raise EOFError
    (descriptor,) = descriptors
    try:
        length, begin = _HEADER.unpack(header)
        view = memoryview(mmap.mmap(descriptor, length))
    finally:
        os.close(descriptor)
    tensors, buffers, body = pickle.loads(view[begin:])
    made = [on_buffer(view, dtype_named(name), shape, offset) for name, shape, offset in tensors]
    return _Unpickler(body, made, [view[offset : offset + size] for offset, size in buffers]).load()
