"""Frames between a server and its worker for PyTorch modules.

A frame is a head of 16 bytes, the message as JSON, and the payload: the bytes of the message's tensors, one after the
other. All numbers of the head are little endian: the version and the number of attached file descriptors in two bytes
each, the length of the message in four bytes, and that of the payload in eight.
"""

from __future__ import annotations

import ctypes
import json
import math
import socket
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["receive", "send"]

_VERSION = 2
_HEAD = struct.Struct("<HHIQ")

#: Data types by their names in messages.
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    )
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def send(connection: socket.socket, message: dict[str, Any], tensors: Sequence[Tensor] = ()) -> None:
    """Sends a message, and tensors as its ``outputs``.

    Raises
    ------
    TypeError
        A tensor's type has no name in frames, or it is not a dense tensor on the CPU. Then nothing is sent.
    """
    if tensors:
        tensors = [_plain(tensor) for tensor in tensors]
        message = message | {"outputs": [{"dtype": _NAMES[each.dtype], "sizes": list(each.shape)} for each in tensors]}
    text = json.dumps(message).encode()
    connection.sendall(_HEAD.pack(_VERSION, 0, len(text), sum(each.nbytes for each in tensors)) + text)
    for tensor in tensors:
        connection.sendall(_memory(tensor))


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[Tensor]] | None:
    """Receives the next message and the tensors of its ``inputs``. Returns None if the server is gone.

    Raises
    ------
    ValueError
        The bytes are no frame.
    """
    head = bytearray(_HEAD.size)
    if not _fill(connection, memoryview(head)):
        return None
    version, descriptors, text_bytes, payload_bytes = _HEAD.unpack(head)
    if version != _VERSION or descriptors:
        raise ValueError(f"a frame of version {version}: use the same release of tenure for the server and for Python")
    text = bytearray(text_bytes)
    if not _fill(connection, memoryview(text)):
        return None
    message = json.loads(text)
    described = [(_DTYPES[each["dtype"]], each["sizes"]) for each in message.get("inputs", ())]
    if payload_bytes != sum(dtype.itemsize * math.prod(sizes) for dtype, sizes in described):
        raise ValueError("the payload does not fit its tensors")
    tensors = []
    for dtype, sizes in described:
        # Bytes other than 0 and 1 are not valid as bool, so they are converted.
        tensor = torch.empty(sizes, dtype=torch.uint8 if dtype is torch.bool else dtype)
        if not _fill(connection, _memory(tensor)):
            return None
        tensors.append(tensor != 0 if dtype is torch.bool else tensor)
    return message, tensors


def _plain(tensor: Tensor) -> Tensor:
    """Returns the same values as a contiguous tensor."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise TypeError(f"an output is a tensor of {tensor.layout} on {tensor.device}: answer a dense one on the CPU")
    if tensor.dtype not in _NAMES:
        raise TypeError(f"an output is of {tensor.dtype}: answer one of {', '.join(_DTYPES)}")
    return tensor.detach().resolve_neg().contiguous()


def _memory(tensor: Tensor) -> memoryview:
    """Returns a contiguous tensor's bytes. They are valid while the tensor lives."""
    if not tensor.nbytes:
        return memoryview(bytearray())
    return memoryview((ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def _fill(connection: socket.socket, memory: memoryview) -> bool:
    """Fills `memory` from the socket. Returns False if the connection ends before."""
    while memory:
        try:
            read = connection.recv_into(memory)
        except ConnectionResetError:
            return False
        if not read:
            return False
        memory = memory[read:]
    return True
