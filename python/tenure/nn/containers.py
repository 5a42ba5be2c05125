"""Containers: modules and parameters in lists and dictionaries."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, overload

from tenure._native import Tensor
from tenure.nn.module import Module, _indented
from tenure.nn.parameter import Parameter

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


class _ModuleSequence(Module):
    """Modules by index."""

    _modules: dict[str, Module]  # type: ignore[assignment]

    def _position(self, index: int) -> int:
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range")
        return index % len(self)

    def _replace(self, modules: Iterable[Module]) -> None:
        self.__dict__["_modules"] = {str(index): module for index, module in enumerate(modules)}

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Module | Self:
        if isinstance(index, slice):
            part = type(self)()
            part._replace(list(self)[index])
            return part
        return list(self)[self._position(index)]

    def __setitem__(self, index: int, module: Module) -> None:
        name = list(self._modules)[self._position(index)]
        setattr(self, name, module)

    def __delitem__(self, index: int | slice) -> None:
        modules = list(self)
        del modules[index if isinstance(index, slice) else self._position(index)]
        self._replace(modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def append(self, module: Module) -> Self:
        """Adds a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Adds modules at the end."""
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Adds a module before an index."""
        if not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        modules = list(self)
        modules.insert(index, module)
        self._replace(modules)

    def pop(self, index: int = -1) -> Module:
        """Removes a module and returns it."""
        module = self[index]
        del self[index]
        return module

    def __add__(self, other: Iterable[Module]) -> Self:
        joined = type(self)()
        joined._replace([*self, *other])
        return joined

    def __iadd__(self, other: Iterable[Module]) -> Self:
        return self.extend(other)


class Sequential(_ModuleSequence):
    """Modules that compute one after the other, each with the result of the one before.

    Parameters
    ----------
    *args : Module, or one dict of str to Module

    Examples
    --------
    >>> import tenure
    >>> from tenure import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> model(tenure.ones(3, 4)).shape
    (3, 2)
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            self.extend(args)

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        if isinstance(index, slice):
            part._modules.clear()
            part._modules.update(list(self._modules.items())[index])
        return part

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)
        return input


class ModuleList(_ModuleSequence):
    """A list of modules.

    Parameters
    ----------
    modules : iterable of Module, default None
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def __repr__(self) -> str:
        texts = [repr(module) for module in self]
        if not texts:
            return f"{self._get_name()}()"
        lines = []
        start = 0
        for index, text in enumerate(texts):
            if index + 1 < len(texts) and texts[index + 1] == text:
                continue
            count = index - start + 1
            place = f"({start})" if count == 1 else f"({start}-{index}): {count} x"
            joined = f"{place}: {text}" if count == 1 else f"{place} {text}"
            lines.append(_indented(joined))
            start = index + 1
        inside = "\n  ".join(lines)
        return f"{self._get_name()}(\n  {inside}\n)"


class ModuleDict(Module):
    """A dictionary of modules, in the order in which they were added.

    Parameters
    ----------
    modules : mapping of str to Module, or iterable of pairs, default None
    """

    _modules: dict[str, Module]  # type: ignore[assignment]

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def __getitem__(self, key: str) -> Module:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def clear(self) -> None:
        """Removes all modules."""
        self._modules.clear()

    def pop(self, key: str) -> Module:
        """Removes a module and returns it."""
        return self._modules.pop(key)

    def keys(self) -> Iterable[str]:
        """Returns the names."""
        return self._modules.keys()

    def items(self) -> Iterable[tuple[str, Module]]:
        """Returns the names and modules."""
        return self._modules.items()

    def values(self) -> Iterable[Module]:
        """Returns the modules."""
        return self._modules.values()

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Adds modules, or replaces those of the same names."""
        for name, module in dict(modules).items():
            self[name] = module


def _shown(name: object, value: Any) -> str:
    if isinstance(value, Tensor):
        kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
        sizes = "x".join(str(size) for size in value.shape)
        return f"  ({name}): {kind} containing: [{value.dtype} of size {sizes}{_place(value)}]"
    return f"  ({name}): Object of type: {type(value).__name__}"


def _place(value: Tensor) -> str:
    return f" ({value.device})" if value.is_cuda else ""


def _as_parameter(value: Any) -> Any:
    """Returns a tensor as a parameter, and other objects as they are."""
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


class ParameterList(Module):
    """A list of parameters. Tensors become parameters; other objects are kept.

    Parameters
    ----------
    values : iterable, default None
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        self.extend(values or ())

    def _name(self, index: int) -> str:
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range")
        return str(index % len(self))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        return getattr(self, self._name(index))

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, self._name(index), _as_parameter(value))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def append(self, value: Any) -> Self:
        """Adds a parameter at the end."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Adds parameters at the end."""
        for value in list(values):
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> Self:
        return self.extend(values)

    def extra_repr(self) -> str:
        return "\n".join(_shown(index, value) for index, value in enumerate(self))


class ParameterDict(Module):
    """A dictionary of parameters. Tensors become parameters; other objects are kept.

    Parameters
    ----------
    parameters : mapping or iterable of pairs, default None
    """

    def __init__(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        self.update(parameters or {})

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, _as_parameter(value))
        self._keys[key] = None

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def keys(self) -> Iterable[str]:
        """Returns the names."""
        return self._keys.keys()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Returns the names and parameters."""
        return ((key, self[key]) for key in self._keys)

    def values(self) -> Iterable[Any]:
        """Returns the parameters."""
        return (self[key] for key in self._keys)

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a parameter, or `default` if there is none of that name."""
        return self[key] if key in self._keys else default

    def pop(self, key: str) -> Any:
        """Removes a parameter and returns it."""
        value = self[key]
        del self[key]
        return value

    def update(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Adds parameters, or replaces those of the same names."""
        for key, value in dict(parameters).items():
            self[key] = value

    def extra_repr(self) -> str:
        return "\n".join(_shown(key, value) for key, value in self.items())
