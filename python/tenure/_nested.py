"""Values that are nested in mappings, lists, tuples and dataclasses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")


def instances_in(value: Any, kind: type[_T]) -> Iterator[_T]:
    """Yields the instances of a class in a value, however they are nested."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from instances_in(item, kind)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from instances_in(item, kind)
    elif is_dataclass(value):
        for field in fields(value):
            yield from instances_in(getattr(value, field.name, None), kind)
