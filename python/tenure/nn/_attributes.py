"""Attributes of modules: parameters, buffers and modules by name, apart from all other attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tenure._native import Tensor
from tenure.nn._hooks import Hooks
from tenure.nn.parameter import Buffer, Parameter

if TYPE_CHECKING:
    from tenure.nn.module import Module

_TABLES = ("_parameters", "_buffers", "_modules")


class ModuleAttributes:
    """The attributes of a `Module`."""

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _non_persistent_buffers_set: set[str]
    _forward_pre_hooks: Hooks[tuple[Callable[..., Any], bool]]
    _forward_hooks: Hooks[tuple[Callable[..., Any], bool, bool]]
    _backward_pre_hooks: Hooks[Callable[..., Any]]
    _backward_hooks: Hooks[Callable[..., Any]]

    def __init__(self) -> None:
        fresh: dict[str, Any] = {
            "training": True,
            "_parameters": {},
            "_buffers": {},
            "_modules": {},
            "_non_persistent_buffers_set": set(),
            "_forward_pre_hooks": Hooks(),
            "_forward_hooks": Hooks(),
            "_backward_pre_hooks": Hooks(),
            "_backward_hooks": Hooks(),
        }
        self.__dict__.update(fresh)

    def __getattr__(self, name: str) -> Any:
        for table in _TABLES:
            found = self.__dict__.get(table)
            if found is not None and name in found:
                return found[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        tables = self.__dict__
        if isinstance(value, Parameter):
            self._check_initialised("parameters")
            self._forget(name)
            self.register_parameter(name, value)
        elif isinstance(value, ModuleAttributes):
            self._check_initialised("module")
            if name not in tables["_modules"]:
                self._forget(name)
            tables["_modules"][name] = value
        elif isinstance(value, Buffer):
            self._check_initialised("buffers")
            self._forget(name)
            self.register_buffer(name, value, value.persistent)
        elif name in tables.get("_parameters", ()):
            if value is not None:
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as parameter '{name}' "
                    "(tenure.nn.Parameter or None expected)"
                )
            tables["_parameters"][name] = None
        elif name in tables.get("_modules", ()):
            if value is not None:
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as child module '{name}' "
                    "(tenure.nn.Module or None expected)"
                )
            tables["_modules"][name] = None
        elif name in tables.get("_buffers", ()):
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as buffer '{name}' (tenure.Tensor or None expected)"
                )
            tables["_buffers"][name] = value
        else:
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if any(name in self.__dict__[table] for table in _TABLES):
            self._forget(name)
        else:
            object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = {*object.__dir__(self), *self._parameters, *self._buffers, *self._modules}
        return sorted(name for name in names if not name[0].isdigit())

    def _check_initialised(self, kind: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"cannot assign {kind} before Module.__init__() call")

    def _forget(self, name: str) -> None:
        """Removes an attribute from wherever it is."""
        self.__dict__.pop(name, None)
        for table in _TABLES:
            self.__dict__[table].pop(name, None)
        self._non_persistent_buffers_set.discard(name)

    def _check_name(self, kind: str, table: Mapping[str, Any], name: str) -> None:
        self._check_initialised(f"{kind}s")
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {type(name).__name__}")
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain "."')
        if name == "":
            raise KeyError(f'{kind} name can\'t be empty string ""')
        if hasattr(self, name) and name not in table:
            raise KeyError(f"attribute '{name}' already exists")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Adds a parameter, or a place for one."""
        self._check_name("parameter", self._parameters, name)
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{type(param).__name__}' object to parameter '{name}' "
                "(tenure.nn.Parameter or None required)"
            )
        if param is not None and not param.is_leaf:
            raise ValueError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly."
            )
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Adds a buffer, or a place for one. Unless it is `persistent`, `state_dict` leaves it out."""
        self._check_name("buffer", self._buffers, name)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{type(tensor).__name__}' object to buffer '{name}' (tenure.Tensor or None required)"
            )
        self._buffers[name] = tensor
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Adds a module, or a place for one."""
        if module is not None and not isinstance(module, ModuleAttributes):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._check_name("module", self._modules, name)
        self._modules[name] = module

    def register_module(self, name: str, module: Module | None) -> None:
        """Does `add_module`."""
        self.add_module(name, module)
