"""Frames between a server and its worker for PyTorch modules."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import pytest

torch = pytest.importorskip("torch")
frames = pytest.importorskip("tenure.serving.frames")


def frame(message: dict[str, Any], payload: bytes = b"", version: int = 2) -> bytes:
    text = json.dumps(message).encode()
    return struct.pack("<HHIQ", version, 0, len(text), len(payload)) + text + payload


def received(content: bytes) -> Any:
    """Returns the frame read from these bytes, after which the connection is closed."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(content)
        return frames.receive(ours)


def test_tensors_come_row_by_row_in_their_order() -> None:
    inputs = [{"dtype": "int16", "sizes": [2, 1]}, {"dtype": "bool", "sizes": [3]}, {"dtype": "float32", "sizes": [0]}]
    message, tensors = received(frame({"order": "run", "inputs": inputs}, b"\x01\x00\xff\xff\x00\x01\x07"))
    assert message["order"] == "run"
    assert tensors[0].tolist() == [[1], [-1]] and tensors[0].dtype is torch.int16
    assert tensors[1].tolist() == [False, True, True]
    assert tensors[2].shape == (0,)


def test_the_end_is_none_and_what_is_no_frame_an_error() -> None:
    whole = frame({"inputs": [{"dtype": "uint8", "sizes": [4]}]}, b"1234")
    for end in 0, 7, 16, len(whole) - 1:
        assert received(whole[:end]) is None
    assert received(whole) is not None
    with pytest.raises(ValueError, match="version 1: use the same release"):
        received(frame({}, version=1))
    with pytest.raises(ValueError, match="the payload does not fit its tensors"):
        received(frame({"inputs": []}, b"1"))


def test_outputs_are_sent_as_bytes_of_their_values() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.send(ours, {"call": 3}, [torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).T, torch.empty(0)])
        ours.close()
        content = theirs.makefile("rb").read()
    _, _, text_bytes, payload_bytes = struct.unpack("<HHIQ", content[:16])
    outputs = [{"dtype": "uint8", "sizes": [2, 2]}, {"dtype": "float32", "sizes": [0]}]
    assert json.loads(content[16 : 16 + text_bytes]) == {"call": 3, "outputs": outputs}
    assert content[16 + text_bytes :] == bytes([1, 3, 2, 4]) and payload_bytes == 4


def test_tensors_that_no_frame_has_are_named_and_nothing_is_sent() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for tensor, error in (
            (torch.ones(2, dtype=torch.complex64), "an output is of torch.complex64"),
            (torch.ones(2, device="meta"), "on meta: answer a dense one on the CPU"),
            (torch.ones(2).to_sparse(), "torch.sparse_coo"),
        ):
            with pytest.raises(TypeError, match=error):
                frames.send(ours, {}, [tensor])
        ours.close()
        assert theirs.recv(1) == b""
