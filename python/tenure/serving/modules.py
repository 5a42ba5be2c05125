"""Modules that the user's functions load."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["LoadedModule", "load"]

_numbers = itertools.count()


class LoadedModule:
    """An ``nn.Module`` in evaluation mode, and the names of its outputs. It is on the CPU until it is moved."""

    def __init__(self, module: nn.Module, outputs: Sequence[str], code: str | None) -> None:
        self._module: Callable[..., Any] | None = module
        self._outputs = outputs
        #: The name in `sys.modules` of the file that the module comes from.
        self._code = code
        self.bytes = _weight_bytes(module)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Calls the module. It may answer a tensor, a sequence in the order of the outputs, or a mapping by their
        names.

        Raises
        ------
        TypeError
            The module answers something else. Other errors are the module's own.
        """
        assert self._module is not None
        with torch.inference_mode():
            answer = self._module(*inputs)
        if isinstance(answer, Mapping):
            if missing := [name for name in self._outputs if name not in answer]:
                raise TypeError(
                    f"the module answers {list(answer)}, and not {missing}, which config.toml has as outputs"
                )
            answer = [answer[name] for name in self._outputs]
        elif isinstance(answer, Tensor):
            answer = [answer]
        if not isinstance(answer, Sequence) or not all(isinstance(each, Tensor) for each in answer):
            raise TypeError(f"the module answers {type(answer).__name__}: answer tensors, or a dict of them by name")
        if len(answer) != len(self._outputs):
            raise TypeError(
                f"the module answers {len(answer)} tensors, and config.toml has {len(self._outputs)} outputs"
            )
        return list(answer)

    def move(self, take: Callable[[Any], Callable[..., Any]]) -> None:
        """Passes the module to `take`, and from then on calls what that returns."""
        self._module = take(self._module)

    def drop(self) -> None:
        """Frees the weights."""
        self._module = None
        if self._code is not None:
            sys.modules.pop(self._code, None)
        # Modules often have reference cycles.
        gc.collect()


def load(folder: str, source: str, function: str, outputs: Sequence[str]) -> LoadedModule:
    """Calls a function with the folder. The function is in a file in the folder, or in a Python module.

    Raises
    ------
    AttributeError, TypeError
        There is no such function, or it returns no module on the CPU. Other errors are the function's own.
    """
    is_file = source.endswith(".py")
    code = _of_file(folder, source) if is_file else importlib.import_module(source)
    name = code.__name__ if is_file else None
    try:
        called = getattr(code, function, None)
        if not callable(called):
            raise AttributeError(f"{source} has no function {function!r}")
        module = called(folder)
        if not isinstance(module, nn.Module):
            raise TypeError(f"{function} of {source} returns {type(module).__name__}: return a torch.nn.Module")
        for tensor in itertools.chain(module.parameters(), module.buffers()):
            if tensor.device.type != "cpu":
                raise TypeError(f"{function} of {source} returns a module on {tensor.device}: return it on the CPU")
        return LoadedModule(module.eval(), outputs, name)
    except BaseException:
        if name is not None:
            sys.modules.pop(name, None)
        raise


def _of_file(folder: str, source: str) -> ModuleType:
    """Imports a file as a Python module with a unique name: files of two models may have the same name."""
    name = f"tenure_model_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, Path(folder, source))
    if spec is None or spec.loader is None:
        raise ImportError(f"{source} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look the module up there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _weight_bytes(module: nn.Module) -> int:
    """Returns the bytes of all parameters and buffers; those that share memory count once."""
    storages: dict[int, Any] = {}
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
