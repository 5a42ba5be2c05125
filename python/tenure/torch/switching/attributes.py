"""The attributes of a module and of all modules in it, compared with their earlier values."""

from __future__ import annotations

import enum
import itertools
import operator
import types
from collections import deque
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

__all__ = ["Attributes"]

#: The depth to which containers and objects in attributes are compared.
_DEPTH = 4

#: Types whose values are the same if they are equal.
_PLAIN = (int, float, bool, str, bytes, type(None))

#: Types of objects whose attributes are not the module's.
_OTHERS = (
    *(nn.Module, Tensor, type, enum.Enum, types.ModuleType),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType),
)


class Attributes:
    """The attributes of all modules in a module, with the contents of containers and the attributes of objects in them.

    They are compared by identity, numbers and strings by value. Contents of tensors are not compared.
    """

    def __init__(self, module: nn.Module) -> None:
        #: The name of each container, and the keys of its items.
        self._names: list[tuple[str, list[Any]]] = []
        #: Views of dictionaries, and other containers.
        self._views: list[Iterable[Any]] = []
        self._seen: set[int] = set()
        for path, child in module.named_modules():
            self._add(path, vars(child), 0)
        # Kept alive, so that no new object gets the id of an old one.
        self._values: list[Any] = list(itertools.chain.from_iterable(self._views))

    def __len__(self) -> int:
        return len(self._values)

    def change(self) -> str | None:
        """Returns the name of an attribute that has changed; None if none has."""
        try:
            now = list(itertools.chain.from_iterable(self._views))
        except RuntimeError:
            return "its attributes"
        if len(now) == len(self._values) and all(map(operator.is_, now, self._values)):
            return None
        begin = 0
        for (name, keys), view in zip(self._names, self._views, strict=True):
            values, before = list(view), self._values[begin : begin + len(keys)]
            begin += len(keys)
            if len(values) != len(keys):
                return repr(name) if name else "its attributes"
            for key, value, former in zip(keys, values, before, strict=True):
                if value is not former and not _are_equal(value, former):
                    return repr(f"{name}.{key}" if name else str(key))
        return None

    def _add(self, name: str, container: Any, depth: int) -> None:
        if id(container) in self._seen or depth > _DEPTH:
            return
        self._seen.add(id(container))
        if isinstance(container, dict):
            # Called on the class: dictionaries of gated layers refuse access by their own methods.
            self._views.append(dict.values(container))
            items: list[tuple[Any, Any]] = list(dict.items(container))
        else:
            self._views.append(container)
            items = list(enumerate(container))
        self._names.append((name, [key for key, _ in items]))
        for key, value in items:
            inner = f"{name}.{key}" if name else str(key)
            if isinstance(value, dict | list | tuple | set | deque):
                self._add(inner, value, depth + 1)
            elif hasattr(value, "__dict__") and not isinstance(value, _OTHERS):
                self._add(inner, vars(value), depth + 1)


def _are_equal(one: Any, other: Any) -> bool:
    return type(one) in _PLAIN and type(one) is type(other) and repr(one) == repr(other)


#: Libraries whose modules depend on their inputs, weights and attributes alone.
_LIBRARIES = ("torch", "torchvision", "timm", "transformers", "sentence_transformers", "peft")


def foreign_class(module: nn.Module) -> str | None:
    """Returns a class of one of its modules that is not from a well-known library, if there is one."""
    classes = (type(child) for child in module.modules())
    foreign = (of for of in classes if of.__module__.partition(".")[0] not in _LIBRARIES)
    return next((f"{of.__module__}.{of.__qualname__}" for of in foreign), None)
