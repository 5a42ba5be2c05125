"""How what operations make is computed again: by the same operation, of what it was given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tenure import _native
from tenure.torch.dynamo import runs_beside_compiled_code
from tenure.torch.held import Layout

__all__ = ["Recorder", "stream_of"]

#: Where an operation's bytes are, how many they are, and how often they were written to.
Bytes = tuple[int, int, int]

#: What has fewer bytes is kept if nobody knows how to make it.
_SMALL_BYTES = 1 << 20

#: Operations, beside those that go element by element, that make the same bits each time.
_REPEATABLE = frozenset(
    (
        *("_adaptive_avg_pool2d", "_fused_rms_norm", "_log_softmax", "_softmax", "_to_copy", "addmm", "avg_pool2d"),
        *("baddbmm", "bmm", "cat", "clone", "constant_pad_nd", "convolution", "embedding", "index_select", "linear"),
        *("max_pool2d_with_indices", "mean", "mm", "native_group_norm", "native_layer_norm", "stack", "sum", "tril"),
        *("triu", "upsample_bilinear2d", "upsample_nearest2d"),
    )
)
#: The same, unless they drop something: which argument says how much.
_ATTENTION = {
    "_scaled_dot_product_cudnn_attention": 5,
    "_scaled_dot_product_efficient_attention": 5,
    "_scaled_dot_product_flash_attention": 3,
    "_scaled_dot_product_flash_attention_for_cpu": 3,
}
#: The same, but they count what they see: in the fourth and fifth argument, if the sixth says so.
_COUNTING = frozenset(("cudnn_batch_norm", "native_batch_norm"))


class _UnrepeatableError(Exception):
    """Nobody knows how to make something again."""


class _Kind(NamedTuple):
    """What is known of an operation."""

    name: str
    #: What makes the same again; None if nothing does.
    again: Callable[..., Any] | None
    #: Whether it writes to what it is given first, which it returns.
    is_in_place: bool


def _kind_of(operation: Any) -> _Kind | None:
    """None if it only looks at what it is given."""
    # Found by its number: an operation's hash is computed by Python. The operation is kept, so nothing else gets it.
    known = _kinds.get(id(operation))
    if known is None:
        known = _kinds[id(operation)] = operation, _look_at(operation)
    return known[1]


_kinds: dict[int, tuple[Any, _Kind | None]] = {}


def _look_at(operation: Any) -> _Kind | None:
    schema = operation._schema
    name, is_known = schema.name.removeprefix("aten::"), schema.name.startswith("aten::")
    writes = [argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments]
    if not any(writes) and all(result.alias_info is not None for result in schema.returns):
        return None
    is_random = torch.Tag.nondeterministic_seeded in operation.tags
    is_repeatable = is_known and not is_random and (torch.Tag.pointwise in operation.tags or name in _REPEATABLE)
    is_in_place = any(writes[:1]) and not any(writes[1:]) and name.endswith("_")
    if is_in_place:
        operation = getattr(getattr(torch.ops.aten, name[:-1], None), operation._overloadname, None)
    elif any(writes):
        is_repeatable = False
    is_repeatable = is_repeatable or name in _ATTENTION or name in _COUNTING
    return _Kind(name, operation if is_repeatable else None, is_in_place)


class Recorder(TorchDispatchMode):
    """While it is entered, an engine is told of what operations make, and how that is computed again.

    Parameters
    ----------
    native
        The engine.
    device
        Whose operations.
    stays
        Whether a tensor is in memory anyway, such as a parameter.
    made
        What was made in the step, for this to add to: its address, and how often it was written to.
    """

    def __init__(
        self,
        native: _native.Budget,
        device: torch.device,
        stays: Callable[[Tensor], bool],
        made: set[tuple[int, int]],
    ) -> None:
        super().__init__()
        self.device = device
        self._native = native
        self._stays = stays
        self._made = made

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code is what it is without: nothing is known of what it does."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The next line does it, without a call of Dynamo's for each operation.
        return False

    @runs_beside_compiled_code
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls an operation, and tells of it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if (kind := _kind_of(func)) is not None:
            stream = stream_of(self.device)
            if self._native.is_repeated(stream):
                self._tell(kind, args, kwargs, result if isinstance(result, tuple | list) else (result,), stream)
        return result

    def _tell(self, kind: _Kind, args: Any, kwargs: Any, results: Sequence[Any], stream: int) -> None:
        # Autograd counts the write when the operation is over.
        made = {
            number: _bytes_of(tensor, tensor._version + kind.is_in_place)
            for number, tensor in enumerate(results)
            if isinstance(tensor, Tensor) and self._is_here(tensor)
        }
        call = _Call(kind, self.device, {number: Layout.by(results[number]) for number in made})
        try:
            call.take(args, kwargs, self.stays)
        except _UnrepeatableError:
            self._native.operation(list(made.values()), stream, [], [])
            return
        addresses = {address for address, _, _ in made.values()}
        if not kind.is_in_place and not addresses.isdisjoint(address for address, _, _ in call.inputs):
            # It only looks at what it was given.
            self._native.operation([], stream, [], [])
            return
        self._made.update((address, version) for address, _, version in made.values())
        self._native.operation(list(made.values()), stream, call.inputs, [partial(call.run, at) for at in made])

    def stays(self, tensor: Tensor) -> bool:
        """Whether a tensor is kept, rather than computed again."""
        if tensor.device != self.device:
            return tensor.numel() == 1
        if self._stays(tensor):
            return True
        address, number, version = _bytes_of(tensor, tensor._version)
        # What was made by what has saved others would keep these.
        return number < _SMALL_BYTES and tensor.grad_fn is None and (address, version) not in self._made

    def _is_here(self, tensor: Tensor) -> bool:
        return _is_plain(tensor) and tensor.device == self.device


class _Call:
    """An operation, and what it was given."""

    def __init__(self, kind: _Kind, device: torch.device, results: dict[int, Layout]) -> None:
        self._kind = kind
        self._device = device
        self._results = results
        self._args: Any = ()
        self._kwargs: Any = {}
        #: What it was given that does not stay.
        self.inputs: list[Bytes] = []

    def take(self, args: Any, kwargs: Any, stays: Callable[[Tensor], bool]) -> None:
        """Takes down what it is given, of which some stays."""
        kind = self._kind
        if kind.again is None or not self._results:
            raise _UnrepeatableError
        if kind.is_in_place and (not _is_whole(args[0]) or stays(args[0])):
            raise _UnrepeatableError
        if kind.name in _ATTENTION and any(args[_ATTENTION[kind.name] :][:1]):
            raise _UnrepeatableError
        if kind.name == "convolution" and torch.backends.cudnn.benchmark:
            # The fastest is not always the same.
            raise _UnrepeatableError
        if kind.name in _COUNTING and args[5]:
            args = (*args[:3], None, None, *args[5:])
        self._args, self._kwargs = self._taken(args, stays), self._taken(kwargs, stays)

    def _taken(self, given: Any, stays: Callable[[Tensor], bool]) -> Any:
        if isinstance(given, tuple | list):
            return [self._taken(each, stays) for each in given]
        if isinstance(given, dict):
            return {name: self._taken(each, stays) for name, each in given.items()}
        if not isinstance(given, Tensor):
            return given
        if not _is_plain(given):
            raise _UnrepeatableError
        if stays(given):
            return _Kept(given)
        if given.device != self._device:
            raise _UnrepeatableError
        self.inputs.append(_bytes_of(given, given._version))
        return Layout.by(given)

    def run(self, number: int, storages: list[torch.UntypedStorage], stream: int) -> tuple[Tensor, int, int]:
        """One of the results, with the address and the bytes of its memory, of storages of the inputs."""
        device, left = self._device, iter(storages)
        args, kwargs = _given(self._args, left), _given(self._kwargs, left)
        again = self._kind.again
        assert again is not None
        if torch.is_grad_enabled() or torch.is_autocast_enabled(device.type) or stream_of(device) != stream:
            with torch.no_grad(), torch.autocast(device.type, enabled=False), _on(stream, device):
                results = again(*args, **kwargs)
        else:
            # Backward is like this as a rule, and entering all three takes half as long as the rest of this.
            results = again(*args, **kwargs)
        result = results[number] if isinstance(results, tuple | list) else results
        if Layout.by(result) != self._results[number]:
            raise RuntimeError(f"{self._kind.name} makes something else now")
        storage = result.untyped_storage()
        return result, storage.data_ptr(), storage.nbytes()


class _Kept:
    """A tensor that is kept."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._version = tensor._version

    def get(self) -> Tensor:
        if self._tensor._version != self._version:
            raise RuntimeError("a parameter, or another input, was written to since")
        return self._tensor


def _given(taken: Any, storages: Any) -> Any:
    """What a call was given, with the inputs on these storages."""
    if isinstance(taken, list):
        return [_given(each, storages) for each in taken]
    if isinstance(taken, dict):
        return {name: _given(each, storages) for name, each in taken.items()}
    if isinstance(taken, Layout):
        return taken.of(next(storages))
    return taken.get() if isinstance(taken, _Kept) else taken


def _is_plain(tensor: Tensor) -> bool:
    """Whether it is all that it seems to be: bytes in a storage."""
    is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    return is_plain and not (tensor.is_inference() or tensor.is_conj() or tensor.is_neg())


def _is_whole(tensor: Tensor) -> bool:
    """Whether it is all of its storage."""
    return tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()


def _bytes_of(tensor: Tensor, version: int) -> Bytes:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes(), version


def stream_of(device: torch.device) -> int:
    """Where the thread computes."""
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


def _on(stream: int, device: torch.device) -> AbstractContextManager[Any]:
    """Has a GPU compute on a stream."""
    if stream_of(device) == stream:
        return nullcontext()
    is_default = stream == 0
    other = torch.cuda.default_stream(device) if is_default else torch.cuda.ExternalStream(stream, device)
    return torch.cuda.stream(other)
