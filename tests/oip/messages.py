"""Messages of gRPC as bytes, encoded and decoded by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

SERVICE = "/inference.GRPCInferenceService/"


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    coded = b""
    while number > 0x7F:
        coded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return coded + bytes([number])


def integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def field(number: int, value: bytes | str) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def sizes(number: int, values: list[int]) -> bytes:
    return field(number, b"".join(varint(value) for value in values))


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = read_varint(message, at)
            yield key >> 3, value
        else:
            size, at = read_varint(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            yield key >> 3, message[at : at + size]
            at += size


def every(message: bytes, number: int) -> list[Any]:
    return [value for key, value in fields(message) if key == number]


def integers(message: bytes, number: int) -> list[int]:
    """Returns a repeated integer, packed or not."""
    found = []
    for value in every(message, number):
        at, packed = 0, isinstance(value, bytes)
        while packed and at < len(value):
            one, at = read_varint(value, at)
            found.append(one)
        found += [] if packed else [value]
    return found


def text(message: bytes, number: int) -> str:
    """Returns a string, which is empty if the message lacks it."""
    return b"".join(every(message, number)).decode()


def number(message: bytes, number: int) -> int:
    """Returns a 64-bit integer, which is 0 if the message lacks it."""
    value = (every(message, number) or [0])[-1]
    return value - (1 << 64) if value >= 1 << 63 else value
