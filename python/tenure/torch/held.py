"""Tensors that were saved, whose bytes the engine has."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tenure import _native

__all__ = ["Held", "Layout", "make_storage"]


class Layout(NamedTuple):
    """How a tensor lies in its storage."""

    dtype: torch.dtype
    offset: int
    sizes: torch.Size
    strides: tuple[int, ...]

    @staticmethod
    def by(tensor: Tensor) -> Layout:
        """That of a tensor."""
        return Layout(tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())

    def of(self, storage: torch.UntypedStorage) -> Tensor:
        """A tensor that lies so, never written to."""
        tensor = torch.empty(0, dtype=self.dtype, device=storage.device)
        tensor.set_(storage, self.offset, self.sizes, self.strides)
        torch._C._autograd._unsafe_set_version_counter((tensor,), (0,))
        return tensor


class Held:
    """A tensor that was saved: where its bytes are, the engine knows."""

    __slots__ = ("__weakref__", "layout", "saved", "version", "writes")

    def __init__(self, saved: _native.Saved, tensor: Tensor, writes: Tensor) -> None:
        self.saved = saved
        self.layout = Layout.by(tensor)
        self.version = tensor._version
        #: An empty tensor that counts writes together with the one that was saved.
        self.writes = writes


def make_storage(device: torch.device, number_of_bytes: int) -> torch.UntypedStorage:
    """A storage of PyTorch's, of whatever its allocator gives: filled by nobody, and of no other allocator."""
    storage = torch.empty(0, dtype=torch.uint8, device=device).untyped_storage()
    storage.resize_(number_of_bytes)
    return storage
