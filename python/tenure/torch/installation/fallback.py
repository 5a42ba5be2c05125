"""Installation under PyTorch without a shim, through PyTorch's own interface for external allocators."""

from __future__ import annotations

import ctypes

from tenure import _native


class HasStarted(Exception):
    """PyTorch already uses its own allocator and accepts no other."""


def install(options: str) -> None:
    """Puts Tenure under PyTorch as a `CUDAPluggableAllocator`, with all its optional functions.

    Raises
    ------
    HasStarted
        PyTorch's own allocator is in use already.
    """
    import torch

    path = _native.__file__
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "tenure_torch_plug_alloc", "tenure_torch_plug_free")
    library = ctypes.CDLL(path)

    def address(name: str) -> int:
        function = getattr(library, f"tenure_torch_plug_{name}")
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    inner = allocator.allocator()
    inner.set_init_fn(address("init"))
    inner.set_reset_fn(address("reset"))
    inner.set_memory_fraction_fn(address("memory_fraction"))
    inner.set_base_alloc_fn(address("base"))
    inner.set_record_stream_fn(address("record_stream"))
    inner.set_begin_allocate_to_pool(address("begin_pool"))
    inner.set_end_allocate_to_pool_fn(address("end_pool"))
    inner.set_release_pool(address("release_pool"))
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:  # there is no other reason
        raise HasStarted from error
    _native.torch_configure(options)
