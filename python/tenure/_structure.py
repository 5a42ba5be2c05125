"""Nested values with tensors as tensors by name and a JSON text, for files of safetensors.

The text has `null`, booleans, numbers, strings and lists for themselves. Each other value is an object with one member:

- `{"tensor": name}`: the tensor of that name,
- `{"dict": [[key, value], ...]}`: a dictionary in its order, whose keys are strings and integers,
- `{"tuple": [value, ...]}`: a tuple,
- `{"float": "nan"}`, or `"inf"`, or `"-inf"`: a number that JSON does not have.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tenure._native import Tensor

#: The name of the metadata's text.
KEY = "tenure.structure"


def flattened(value: Any) -> tuple[dict[str, Tensor], str]:
    """Returns the tensors in a value by name, and the text that describes the value.

    Raises
    ------
    TypeError
        The value has a part of another type. The message says where.
    ValueError
        The value is nested too deeply, or has a part that contains itself.
    """
    tensors: dict[str, Tensor] = {}
    try:
        return tensors, json.dumps(_described(value, (), tensors), allow_nan=False, ensure_ascii=False)
    except RecursionError:
        raise ValueError("the value is nested too deeply, or has a part that contains itself") from None


def restored(text: str, tensors: Mapping[str, Tensor]) -> Any:
    """Returns the value that a text of `flattened` describes.

    Raises
    ------
    ValueError
        The text does not describe a value of these tensors.
    """
    try:
        return _restored(json.loads(text), tensors)
    except RecursionError:
        raise ValueError(f"the metadata {KEY!r} is nested too deeply") from None


def _described(value: Any, path: tuple[str | int, ...], tensors: dict[str, Tensor]) -> Any:
    """Returns the description of a value, and adds its tensors."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, Tensor):
        name = _unused(".".join(map(str, path)) or "tensor", tensors)
        tensors[name] = value
        return {"tensor": name}
    if kind in (list, tuple):
        items = [_described(item, (*path, index), tensors) for index, item in enumerate(value)]
        return items if kind is list else {"tuple": items}
    if isinstance(value, Mapping):
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{_place(path)} has the key {key!r}: keys are strings and integers")
        return {"dict": [[key, _described(item, (*path, key), tensors)] for key, item in value.items()]}
    raise TypeError(
        f"{_place(path)} is of the type {kind.__name__}: a file has tensors, None, booleans, integers, floats, "
        "strings, and lists, tuples and dictionaries of these"
    )


def _unused(name: str, tensors: Mapping[str, Tensor]) -> str:
    """Returns the name, or one like it if a tensor has it: `a.b` is a path of one key and of two."""
    number = 2
    unused = name
    while unused in tensors or unused == "__metadata__":
        unused = f"{name}#{number}"
        number += 1
    return unused


def _place(path: tuple[str | int, ...]) -> str:
    return "value" + "".join(f"[{key!r}]" for key in path)


def _restored(described: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(described, list):
        return [_restored(item, tensors) for item in described]
    if not isinstance(described, dict):
        return described
    match list(described.items()):
        case [("tensor", str(name))] if name in tensors:
            return tensors[name]
        case [("float", "nan" | "inf" | "-inf" as number)]:
            return float(number)
        case [("tuple", list(items))]:
            return tuple(_restored(item, tensors) for item in items)
        case [("dict", list(pairs))] if all(map(_is_pair, pairs)):
            return {key: _restored(item, tensors) for key, item in pairs}
    raise ValueError(f"the metadata {KEY!r} has {described!r:.100}, which describes no value of this file")


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int)
