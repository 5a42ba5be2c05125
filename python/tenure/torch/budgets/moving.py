"""Moves of tensors between a device and host memory that the device uses in place.

A tensor that moves stays the same object, with the same values. Only the pointer in its storage changes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tenure import _native

__all__ = ["Mover", "address_and_bytes", "parts_of"]

#: Smaller tensors stay on the device.
_LEAST_BYTES = 1 << 20


class Mover:
    """Moves tensors of a device."""

    def __init__(self, native: _native.BudgetState, device: torch.device) -> None:
        self.native = native
        self.device = device

    def can_move(self, tensor: Tensor) -> bool:
        """Returns whether a tensor is large enough, and is nothing but its bytes."""
        is_here = _is_plain(tensor) and tensor.device == self.device
        return is_here and address_and_bytes(tensor)[1] >= _LEAST_BYTES

    def is_on_host(self, tensor: Tensor) -> bool:
        """Returns whether a tensor lies in host memory."""
        return _is_plain(tensor) and self.native.is_on_host(address_and_bytes(tensor)[0])

    def is_alone_on_device(self, tensor: Tensor) -> bool:
        """Returns whether a tensor can move, is on the device, and is all that its storage has."""
        return self.can_move(tensor) and address_and_bytes(tensor)[1] == tensor.nbytes and not self.is_on_host(tensor)

    def move_to_host(self, tensor: Tensor) -> bool:
        """Moves a tensor's storage. Returns False if there is no room for it."""
        return self.native.move_to_host(tensor, *address_and_bytes(tensor))

    def move_to_device(self, tensor: Tensor) -> bool:
        """Moves a tensor's storage back. Returns False if there is no room for it."""
        return self.native.move_to_device(tensor, *address_and_bytes(tensor))


def parts_of(tensor: Tensor) -> list[Tensor]:
    """Returns the tensors that have a tensor's bytes: itself, or the parts of a subclass such as ``DTensor``."""
    if not hasattr(type(tensor), "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in parts_of(getattr(tensor, name))]


def _is_plain(tensor: Tensor) -> bool:
    is_known = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    # Some tensors are not what their bytes say, and some do not say whether they have changed.
    return is_known and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())


def address_and_bytes(tensor: Tensor) -> tuple[int, int]:
    """Returns the address and the size of a tensor's storage."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()
