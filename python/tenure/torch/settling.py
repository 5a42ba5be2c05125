"""Moves of CPU tensors to the places that their keys have."""

from __future__ import annotations

import torch
from torch import Tensor

from tenure import _native
from tenure.torch.purpose import address_of, new_token

__all__ = ["is_alone", "settle"]


def settle(tensor: Tensor, tag: int, key: int, settled: dict[int, tuple[int, int]]) -> bool:
    """Moves a CPU tensor's memory to its key's place, if this thread is placed or recorded.

    `settled` has, by a tensor's id, its address and its placement. Memory that the tensor shares stays where it is:
    with other processes, NumPy arrays, views, or tensors saved for backward. Then returns False: a later call may find
    it unshared.
    """
    placed_in = _native.placed_in()
    address = address_of(tensor)
    if not placed_in or not address or tensor.device.type != "cpu" or settled.get(id(tensor)) == (address, placed_in):
        return True
    if not is_alone(tensor):
        return False
    token = new_token()
    _native.enter_purpose(token, tag, key)
    try:
        tensor.data = tensor.data.clone()
    finally:
        _native.leave_purpose(token)
    settled[id(tensor)] = address_of(tensor), placed_in
    return True


def is_alone(tensor: Tensor) -> bool:
    """Returns whether a CPU tensor shares its memory with nothing, so that it can be moved."""
    storage = tensor.untyped_storage()
    # The count includes the tensor and the storage object made here.
    is_own = storage.nbytes() == tensor.nbytes and torch._C._storage_Use_Count(storage._cdata) == 2
    return is_own and storage.resizable() and not storage.is_shared()
