"""Dispatch modes that inspect a call before it is captured in a CUDA graph, and that help the capture."""

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

#: A lock that a forward holds while it gets values from `_KnownValues`.
_ONE_AT_A_TIME = threading.Lock()


class Refusal(Exception):
    """The reason why a model is not captured."""


class Probe(TorchDispatchMode):
    """Inspects each operation of a call for things that a graph cannot contain or would compute wrongly.

    Operations may be decomposed differently than without this mode, so its results are not used as answers.
    """

    def __init__(self, inputs: list[Tensor], is_weight: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self._inputs = {_storage(tensor) for tensor in inputs}
        self._is_weight = is_weight
        #: Storages whose contents may differ in another call: inputs, foreign tensors, and results computed from
        #: either.
        self._varying = set(self._inputs)
        #: The values that the host reads, in order, which are the same in each call.
        self.constants: list[Any] = []
        #: The storages that the call has made. If a freed one's number is reused, the call has made the new one, too.
        self._made: set[int] = set()
        #: The tensors on the device that are neither inputs nor weights.
        self.others: dict[int, Tensor] = {}
        # The message, not the exception, which would keep weights alive through its frames.
        self._reason: str | None = None

    def check(self) -> None:
        """Raises the refusal again, as the module may have caught it."""
        if self._reason is not None:
            raise Refusal(self._reason)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # In inference mode PyTorch calls this before it decomposes an operation into others.
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
            # The last step of `torch.tensor`. It writes nothing and hides the steps before it.
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
            # The numbers may be those of freed storages.
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


class _KnownValues(TorchDispatchMode):
    """Gives a captured forward the values that its host code reads, since a capture cannot read them."""

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
    """Makes a forward that reads device values take the same branch in a capture as outside of one.

    Models of transformers check whether they are captured, and if so do not read. The mode is on only for models that
    need it.
    """
    if not constants:
        yield
        return
    with _ONE_AT_A_TIME:
        ask, thread = torch.cuda.is_current_stream_capturing, threading.get_ident()
        torch.cuda.is_current_stream_capturing = lambda: threading.get_ident() != thread and ask()
        try:
            with _KnownValues(constants):
                yield
        finally:
            torch.cuda.is_current_stream_capturing = ask


def _reads_values(function: Any, tensors: list[Tensor], kwargs: dict[str, Any]) -> bool:
    """Returns whether the host must know values to run an operation."""
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    is_index = function.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)
    if is_index:
        # The elements of a mask must be counted on the host; index numbers need not.
        return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors[1:])
    return bool(tags & set(function.tags)) or _device_of(kwargs) == "cpu"


def _device_of(kwargs: dict[str, Any]) -> str | None:
    device = kwargs.get("device")
    return None if device is None else torch.device(device).type


def _written(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Yields the tensors that an operation writes to."""
    schema = function._schema
    if not schema.is_mutable:
        return
    for number, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
