"""Long-lived tensors of a model and its optimizer: tagged where they lie, and again when they have moved."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from tenure import _native
from tenure._nested import instances_in
from tenure.torch.dynamo import runs_beside_compiled_code
from tenure.torch.purpose import address_of, number_of_key, number_of_tag, retag
from tenure.torch.settling import settle

__all__ = ["OptimizerStates", "Parameters", "named_parameters", "path_of", "tag_holdings", "tensors_in"]

_WEIGHT = number_of_tag("weight")
_GRADIENT = number_of_tag("gradient")
_OPTIMIZER_STATE = number_of_tag("optimizer_state")

#: Names that wrappers put into the paths of the modules that they wrap.
_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})


class _Holdings(Protocol):
    def tag(self) -> None: ...

    def held(self) -> Iterator[tuple[Tensor, int]]: ...


#: The holdings of all models that are tagged now.
_holdings: weakref.WeakSet[_Holdings] = weakref.WeakSet()


def tag_holdings() -> None:
    """Tags everything that tagged models and optimizers hold, also tensors that no hook has seen."""
    for holdings in list(_holdings):
        holdings.tag()


def held_on_cpu() -> Iterator[tuple[int, int, int]]:
    """Yields the address, the size in bytes and the tag's number of each storage that they hold on the CPU."""
    seen: set[int] = set()
    for holdings in list(_holdings):
        for tensor, tag in holdings.held():
            address = address_of(tensor) if tensor.device.type == "cpu" else 0
            if address and address not in seen:
                seen.add(address)
                yield address, tensor.untyped_storage().nbytes(), tag


class Parameters:
    """A model's parameters with their gradients, and its buffers."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module = weakref.ref(module)
        self._name = name
        self._places: list[dict[str, Any]] = [
            place for child in module.modules() for place in (child._parameters, child._buffers)
        ]
        self._lay: tuple[int, list[int]] | None = None
        self._settled: dict[int, tuple[int, int]] = {}
        self._all_settled = True
        _holdings.add(self)

    def tag(self) -> None:
        """Tags all of them. On the CPU memory is placed by its tag, so tensors allocated before are moved to their
        place."""
        module = self._module()
        if module is None:
            return
        self._all_settled = True
        for path, role, parameter in named_parameters(module, self._name):
            key = number_of_key(path, "parameter", role)
            retag(parameter, _WEIGHT, key)
            self._all_settled &= settle(parameter, _WEIGHT, key, self._settled)
            if parameter.grad is not None:
                retag(parameter.grad, _GRADIENT, number_of_key(path, "backward", role))
        for prefix, child in module.named_modules():
            for role, buffer in child.named_buffers(recurse=False):
                key = number_of_key(path_of(self._name, prefix), "buffer", role)
                retag(buffer, _WEIGHT, key)
                self._all_settled &= settle(buffer, _WEIGHT, key, self._settled)

    def tag_if_moved(self) -> None:
        """Tags all of them if one has moved, or if the thread is in another placement."""
        lie = _native.placed_in(), self._find_addresses()
        if lie != self._lay:
            self.tag()
            # Tensors that could not be moved are tried again.
            self._lay = (lie[0], self._find_addresses()) if self._all_settled else None

    def held(self) -> Iterator[tuple[Tensor, int]]:
        """Yields all of them with the numbers of their tags."""
        module = self._module()
        if module is None:
            return
        for parameter in module.parameters():
            yield parameter, _WEIGHT
            if parameter.grad is not None:
                yield parameter.grad, _GRADIENT
        for buffer in module.buffers():
            yield buffer, _WEIGHT

    def _find_addresses(self) -> list[int]:
        tensors = [tensor for place in self._places for tensor in place.values() if tensor is not None]
        try:
            return [tensor.data_ptr() for tensor in tensors]
        except (RuntimeError, ValueError):
            return [address_of(tensor) for tensor in tensors]


class OptimizerStates:
    """The state tensors of an optimizer."""

    def __init__(self, optimizer: Optimizer, module: nn.Module, name: str) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._module = weakref.ref(module)
        self._name = name
        self._op = type(optimizer).__name__
        self._places: dict[int, tuple[str, str]] = {}
        self._find_places()
        self._known: dict[int, weakref.ref[Tensor]] = {}
        _holdings.add(self)

    def __bool__(self) -> bool:
        """Returns whether there are any."""
        return bool(self._known)

    def tag(self) -> None:
        """Tags all of them."""
        self._known = self._tag_but({})

    def held(self) -> Iterator[tuple[Tensor, int]]:
        """Yields all of them with the number of their tag."""
        optimizer = self._optimizer()
        for state in list(optimizer.state.values()) if optimizer is not None else ():
            for tensor in tensors_in(state):
                yield tensor, _OPTIMIZER_STATE

    @runs_beside_compiled_code
    def tag_new(self) -> None:
        """Tags those that are new."""
        self._known = self._tag_but(self._known)

    def _tag_but(self, known: dict[int, weakref.ref[Tensor]]) -> dict[int, weakref.ref[Tensor]]:
        optimizer = self._optimizer()
        found, are_places_found = {}, False
        # Copies, because another thread than the training one may ask for a report.
        for parameter, state in list(optimizer.state.items()) if optimizer is not None else ():
            for name, value in list(state.items()):
                for tensor in (value,) if isinstance(value, Tensor) else tensors_in(value):
                    seen = known.get(id(tensor))
                    if seen is None or seen() is not tensor:
                        if not are_places_found:
                            self._find_places()
                            are_places_found = True
                        seen = weakref.ref(tensor)
                        retag(tensor, _OPTIMIZER_STATE, self._key(parameter, name))
                    found[id(tensor)] = seen
        return found

    def _key(self, parameter: Tensor, name: str) -> int:
        path, role = self._places.get(id(parameter), ("", ""))
        return number_of_key(path, self._op, f"{role}.{name}" if role else name)

    def _find_places(self) -> None:
        """Finds where the model holds its parameters now: some may be new, and ids of freed ones may be reused."""
        module = self._module()
        if module is not None:
            places = named_parameters(module, self._name)
            self._places = {id(parameter): (path, role) for path, role, parameter in places}


def named_parameters(module: nn.Module, name: str) -> Iterator[tuple[str, str, nn.Parameter]]:
    """Yields the module's path, the name in it and the parameter, each parameter once."""
    for full_name, parameter in module.named_parameters():
        path, _, role = full_name.rpartition(".")
        yield path_of(name, path), role, parameter


def path_of(name: str, path: str) -> str:
    """Returns the path of a module of the model `name`, without the names of wrappers."""
    return ".".join(part for part in (name, *path.split(".")) if part and part not in _WRAPPERS)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yields the tensors in an output or a state, however they are nested."""
    return instances_in(value, Tensor)
