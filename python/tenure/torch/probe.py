"""Dispatch modes that look at what a call does before it is captured in a CUDA graph, and that help the capture."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

__all__ = ["Probe", "Refusal", "told"]

#: Held while a forward is told values.
_ONE_TOLD = threading.Lock()


class Refusal(Exception):
    """Says why a model is not captured."""


class Probe(TorchDispatchMode):
    """Looks at each operation of a call for what a graph cannot have, or would have wrong.

    Operations may be composed of others than without it: so what it computes is nobody's answer.
    """

    def __init__(self, inputs: list[Tensor], is_weight: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self._inputs = {_storage(tensor) for tensor in inputs}
        self._is_weight = is_weight
        #: Storages that may have other contents in another call: inputs, tensors of others, and results of either.
        self._varying = set(self._inputs)
        #: Values that the host reads, in their order, which are the same in each call.
        self.constants: list[Any] = []
        #: Storages that the call has made. Another that has the number of one that is gone is made by the call, too.
        self._made: set[int] = set()
        #: Tensors on the device that are neither inputs nor weights.
        self.others: dict[int, Tensor] = {}
        # Not the exception, which would keep weights by its frames.
        self._reason: str | None = None

    def check(self) -> None:
        """Raises a refusal that the module may have caught."""
        if self._reason is not None:
            raise Refusal(self._reason)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # In inference mode PyTorch asks before it composes an operation of others.
        with self:
            made = function.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        self._note_others(tensors)
        on_host = [tensor for tensor in tensors if tensor.device.type == "cpu"]
        is_on_device = len(on_host) < len(tensors)
        if is_on_device:
            if any(tensor.dim() or function is torch.ops.aten.copy_.default for tensor in on_host):
                self._refuse(f"its forward computes with tensors on the host ({function})")
            is_varying = any(_storage(tensor) in self._varying for tensor in tensors)
            if function is torch.ops.aten._local_scalar_dense.default and not is_varying:
                self.constants.append(value := function(*args, **kwargs))
                return value
            if _reads_values(function, tensors, kwargs):
                self._refuse(f"its forward reads values of the device on the host ({function})")
        elif on_host and _device_of(kwargs) == "cuda":
            self._refuse(f"its forward copies tensors from the host ({function})")
        if function is torch.ops.aten.detach_.default or function is torch.ops.aten.lift_fresh.default:
            # The last step of `torch.tensor`, which writes nothing and hides the steps before it.
            if any(_storage(tensor) in self.others for tensor in tensors):
                self._refuse("its forward copies values from the host (torch.tensor)")
            self._made.update(map(_storage, tensors))
        for written in _written(function, args, kwargs):
            if _storage(written) not in self._made:
                self._refuse(f"its forward writes to a tensor that it has not made ({function})")
        before = {_storage(tensor) for tensor in tensors}
        is_varying = not before.isdisjoint(self._varying)
        made = function(*args, **kwargs)
        written = {_storage(tensor) for tensor in _written(function, args, kwargs)}
        new = {_storage(leaf) for leaf in tree_flatten(made)[0] if isinstance(leaf, Tensor)} - before
        self._made |= new
        if is_varying:
            self._varying |= new | written
        else:
            # Numbers of storages that are gone, maybe.
            self._varying -= new
        return made

    def _note_others(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            number = _storage(tensor)
            if number not in self._inputs and number not in self._made and not self._is_weight(tensor):
                self._varying.add(number)
                if tensor.is_cuda:
                    self.others.setdefault(number, tensor)

    def _refuse(self, reason: str) -> None:
        self._reason = reason
        raise Refusal(reason)


class _Told(TorchDispatchMode):
    """Tells a capture the values that its host reads, as it cannot read them."""

    def __init__(self, constants: list[Any]) -> None:
        super().__init__()
        self._constants = iter(constants)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        scalars = (aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default)
        if function not in scalars or not args[0].is_cuda:
            return function(*args, **(kwargs or {}))
        value = next(self._constants, None)
        if value is None:
            raise Refusal("its forward reads other values when it is captured")
        return bool(value) if function is aten.is_nonzero.default else value


@contextlib.contextmanager
def told(constants: list[Any]) -> Iterator[None]:
    """Has a forward that reads values of the device take the way that it takes outside of a capture.

    Models of transformers ask whether they are captured, and do not read then. The mode is there for those alone that
    need it.
    """
    if not constants:
        yield
        return
    with _ONE_TOLD:
        ask, thread = torch.cuda.is_current_stream_capturing, threading.get_ident()
        torch.cuda.is_current_stream_capturing = lambda: threading.get_ident() != thread and ask()
        try:
            with _Told(constants):
                yield
        finally:
            torch.cuda.is_current_stream_capturing = ask


def _reads_values(function: Any, tensors: list[Tensor], kwargs: dict[str, Any]) -> bool:
    """Whether the host has to know values to do an operation."""
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    is_index = function.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)
    if is_index:
        # Masks have to be counted, and numbers do not.
        return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors[1:])
    return bool(tags & set(function.tags)) or _device_of(kwargs) == "cpu"


def _device_of(kwargs: dict[str, Any]) -> str | None:
    device = kwargs.get("device")
    return None if device is None else torch.device(device).type


def _written(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors that an operation writes to."""
    schema = function._schema
    if not schema.is_mutable:
        return
    for number, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
