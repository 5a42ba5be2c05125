"""Tensors of the protocol: their values, as JSON, and as bytes."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

# The letters of Python's struct, used little-endian. The sizes are those of the protocol's table.
FORMATS = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
# BF16 is Triton's, and missing from the specification's tables. Neither of these has a JSON form.
NO_JSON = ("FP16", "BF16")
DATATYPES = (*FORMATS, "BF16", "BYTES")


@dataclass
class Tensor:
    """A tensor with a flat list of values. A BF16 value is the integer of its two bytes, a BYTES element is bytes."""

    name: str
    datatype: str
    shape: list[int]
    values: list[Any]

    def flat(self) -> list[Any]:
        """Returns all elements as one JSON array."""
        return [value.decode() for value in self.values] if self.datatype == "BYTES" else self.values

    def nested(self) -> Any:
        """Returns nested JSON arrays."""
        level = self.flat()
        for size in reversed(self.shape[1:]):
            level = [level[at : at + size] for at in range(0, len(level), size)]
        return level

    def bytes(self) -> bytes:
        """Returns binary tensor data."""
        if self.datatype == "BYTES":
            return b"".join(struct.pack("<I", len(value)) + value for value in self.values)
        return struct.pack(f"<{len(self.values)}{FORMATS.get(self.datatype, 'H')}", *self.values)

    def spec(self) -> dict[str, Any]:
        """Returns the tensor's JSON without its data."""
        return {"name": self.name, "datatype": self.datatype, "shape": self.shape}

    def json(self, *, nested: bool = False) -> dict[str, Any]:
        return {**self.spec(), "data": self.nested() if nested else self.flat()}

    def binary(self) -> dict[str, Any]:
        return {**self.spec(), "parameters": {"binary_data_size": len(self.bytes())}}


def filled(name: str, datatype: str, shape: list[int]) -> Tensor:
    """Makes a tensor of values that most models accept: small, and exact in each datatype."""
    count = math.prod(shape)
    if datatype == "BYTES":
        values: list[Any] = [str(at % 2).encode() for at in range(count)]
    elif datatype == "BF16":
        values = [(0, 0x3F80)[at % 2] for at in range(count)]
    elif datatype.startswith("FP"):
        values = [at % 5 / 4 for at in range(count)]
    else:
        values = [bool(at % 2) if datatype == "BOOL" else (at + 1) % 2 for at in range(count)]
    return Tensor(name, datatype, shape, values)


def of_json(output: dict[str, Any]) -> Tensor:
    """Makes a tensor of an answer from its `data`."""
    values = flatten(output["data"])
    if output["datatype"] == "BYTES":
        values = [str(value).encode() for value in values]
    return Tensor(output["name"], output["datatype"], output["shape"], values)


def of_bytes(output: dict[str, Any], data: bytes) -> Tensor:
    """Makes a tensor of an answer from the bytes after the JSON."""
    datatype = output["datatype"]
    values = strings(data) if datatype == "BYTES" else scalars(datatype, data)
    return Tensor(output["name"], datatype, output["shape"], values)


def scalars(datatype: str, data: bytes) -> list[Any]:
    code = FORMATS.get(datatype, "H")
    count, rest = divmod(len(data), struct.calcsize(f"<{code}"))
    assert rest == 0, f"{len(data)} bytes are no whole number of {datatype}"
    return list(struct.unpack(f"<{count}{code}", data))


def strings(data: bytes) -> list[bytes]:
    found = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        assert 4 + length <= len(data), "a BYTES element is longer than what is left"
        found.append(data[4 : 4 + length])
        data = data[4 + length :]
    return found


def flatten(data: Any) -> list[Any]:
    return [value for part in data for value in flatten(part)] if isinstance(data, list) else [data]


def assert_equal(one: Tensor, other: Tensor) -> None:
    """Checks that two answers agree. Numbers may differ in their last bits, since they come from two computations."""
    assert (one.name, one.datatype, one.shape) == (other.name, other.datatype, other.shape)
    assert len(one.values) == len(other.values)
    for left, right in zip(one.values, other.values, strict=True):
        is_number = isinstance(left, float) or isinstance(right, float)
        same = math.isclose(left, right, rel_tol=1e-4, abs_tol=1e-5) if is_number else left == right
        assert same, f"output {one.name!r}: {left!r} and {right!r}"
