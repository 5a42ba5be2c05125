"""What autograd saves for backward, in the hands of a budget's engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import cache, lru_cache

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from tenure import _native
from tenure.torch.dynamo import runs_beside_compiled_code
from tenure.torch.held import Held
from tenure.torch.purpose import address_of
from tenure.torch.recipes import Recorder, stream_of

__all__ = ["Saving"]

#: What has fewer bytes is kept, as the engine does with what it is told of.
_LEAST_BYTES = 1 << 20


#: As it is, with its version then; or held.
_Packed = tuple[Tensor, int | None] | Held


class Saving:
    """The hooks of saved tensors of one device."""

    def __init__(self, native: _native.Budget, device: torch.device) -> None:
        self._native = native
        self._device = device
        self._stays: set[int] = set()
        self._made: set[tuple[int, int]] = set()
        #: Nothing, by its type.
        self._nothing: dict[torch.dtype, Tensor] = {}
        #: What was given to backward, by its storage: autograd saves it again where backward itself is differentiated,
        #: and where a reentrant checkpoint computes again.
        self._given: dict[int, tuple[StorageWeakRef, weakref.ref[Held]]] = {}
        #: Whether something was needed since this was set to false.
        self.is_needed = False

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """The hooks, for a thread to enter."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def recorder(self) -> Recorder:
        """Has the engine know how things are made, for a thread to enter."""
        return Recorder(self._native, self._device, lambda tensor: address_of(tensor) in self._stays, self._made)

    def begin(self, module: nn.Module) -> None:
        """A step begins: what the model itself has stays where it is."""
        self.is_needed = False
        self._made.clear()
        self._stays = {address_of(tensor) for tensors in _tensors_of(module) for tensor in tensors}
        self._given = {storage: given for storage, given in self._given.items() if not given[0].expired()}

    @runs_beside_compiled_code
    def _pack(self, tensor: Tensor) -> _Packed:
        if self._may_go(tensor):
            # What hooks do is no operation of the model.
            with torch._C._DisableTorchDispatch():
                if held := self._hold(tensor):
                    return held
        if tensor.grad_fn is None:
            return tensor, _version_of(tensor)
        # Not the tensor itself: what an operation returns has the operation, which would have it.
        with torch._C._DisableTorchDispatch():
            return tensor.detach(), _version_of(tensor)

    def _may_go(self, tensor: Tensor) -> bool:
        """Whether there is something to gain: most of what is saved is small, or the model's own; found out fast."""
        if type(tensor) is not Tensor or tensor.layout is not torch.strided:
            return False
        storage = tensor.untyped_storage()
        if storage.nbytes() < _LEAST_BYTES or tensor.device != self._device:
            return False
        return storage.data_ptr() not in self._stays and not (tensor.is_conj() or tensor.is_neg())

    def _hold(self, tensor: Tensor) -> Held | None:
        """It is held, if the engine takes it."""
        storage = tensor.untyped_storage()
        if given := self._given.get(storage._cdata):
            held = given[1]()
            if held is None or tensor._version > 0:
                # Nobody needs it any more, or it was written to: it is something else.
                return None
            return Held(held.saved, tensor, self._writes_of(tensor))
        # A graph's memory is always where it was captured; what is foreign has another deleter.
        if tensor.is_cuda and (
            torch._C._cuda_isCurrentStreamCapturing() or not torch._C._has_Standard_Deleter(storage._cdata)
        ):
            return None
        there = storage.data_ptr(), storage.nbytes(), tensor._version, _name_of_type(tensor.dtype)
        saved = self._native.save(there, stream_of(self._device), _name_of(tensor))
        return None if saved is None else Held(saved, tensor, self._writes_of(tensor))

    @runs_beside_compiled_code
    def _unpack(self, packed: _Packed) -> Tensor:
        self.is_needed = True
        if isinstance(packed, tuple):
            tensor, version = packed
            if version is not None and tensor._version != version:
                raise _modified(tensor, tensor.shape, version)
            return tensor
        if packed.writes._version != packed.version:
            raise _modified(packed.writes, packed.layout.sizes, packed.version)
        storage = self._native.need(packed.saved, stream_of(self._device))
        tensor = packed.layout.of(storage)
        self._given[storage._cdata] = StorageWeakRef(storage), weakref.ref(packed)
        return tensor

    def _writes_of(self, tensor: Tensor) -> Tensor:
        """An empty tensor that has the version of another, and none of its memory."""
        nothing = self._nothing.get(tensor.dtype)
        if nothing is None:
            nothing = self._nothing[tensor.dtype] = torch.empty(0, dtype=tensor.dtype, device=self._device)
        writes = tensor.detach()
        writes.data = nothing
        return writes


def _tensors_of(module: nn.Module) -> Iterable[Iterable[Tensor]]:
    all_tensors: tuple[Callable[[], Iterable[Tensor]], ...] = (module.parameters, module.buffers)
    return (tensors() for tensors in all_tensors)


def _version_of(tensor: Tensor) -> int | None:
    """How often it was written to; none if nobody counts."""
    return None if tensor.is_inference() else tensor._version


def _name_of(tensor: Tensor) -> str:
    """What to call it in an error."""
    made_by = tensor.grad_fn
    return _name(_native.current_purpose()[1], "" if made_by is None else made_by.name(), tensor.dtype, tensor.shape)


@lru_cache(maxsize=1 << 14)
def _name(key: int, made_by: str, dtype: torch.dtype, shape: torch.Size) -> str:
    path = _native.module_of_key(key)
    return " ".join(part for part in (path, made_by, str(dtype), str(list(shape))) if part)


@cache
def _name_of_type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _modified(tensor: Tensor, sizes: torch.Size, expected: int) -> RuntimeError:
    """PyTorch's own error, which it leaves to hooks where there are some."""
    hint = (
        ""
        if torch.is_anomaly_enabled()
        else (
            " Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
            "torch.autograd.set_detect_anomaly(True, check_nan=False)."
        )
    )
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor.type()} {list(sizes)}] is at version {tensor._version}; expected version {expected} instead.{hint}"
    )
