"""Exceptions that a program's C++ code throws when the allocator calls it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tenure.torch.installation import build

from .memory import ALLOCATOR, MIB, limit, tensor


class Callbacks:
    """The functions of `callbacks.cpp`."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("c++") is None:
            pytest.skip("no C++ compiler here")
        torch_ = build.Torch.current()
        try:
            paths = build._includes(torch_)
        except build.BuildError as error:
            pytest.skip(str(error))
        self.path = folder / "callbacks.so"
        includes = [flag for path in paths for flag in ("-idirafter", str(path))]
        output = ["-shared", "-fPIC", "-x", "c++", "-", "-o", str(self.path)]
        command = ["c++", f"-std={torch_.cxx_standard}", *includes, *output]
        libraries = [f"-L{torch_.root / 'lib'}", "-lc10", "-lc10_cuda"]
        source = Path(__file__).with_name("callbacks.cpp").read_text()
        subprocess.run([*command, *libraries], input=source, text=True, check=True)
        self.library = ctypes.CDLL(str(self.path))

    @contextmanager
    def throwing(self) -> Iterator[None]:
        self.library.let_throw(True)
        try:
            yield
        finally:
            self.library.let_throw(False)


@pytest.fixture(scope="module")
def callbacks(tmp_path_factory: pytest.TempPathFactory) -> Callbacks:
    return Callbacks(tmp_path_factory.mktemp("callbacks"))


def test_an_error_of_a_pool_s_filter_reaches_the_program(callbacks: Callbacks) -> None:
    pool = torch.cuda.graph_pool_handle()
    callbacks.library.begin_pool(*map(ctypes.c_uint64, pool))
    try:
        with callbacks.throwing(), pytest.raises(RuntimeError, match="the filter's"):
            tensor(512)
        assert tensor(512).numel() == 512
    finally:
        callbacks.library.end_pool(*map(ctypes.c_uint64, pool))


def test_an_error_of_a_free_memory_callback_reaches_the_program(callbacks: Callbacks) -> None:
    callbacks.library.add_free_memory_callback()
    limit(40 * MIB)
    with callbacks.throwing(), pytest.raises(RuntimeError, match="the free-memory callback's"):
        tensor(80 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        tensor(80 * MIB)
    assert tensor(40 * MIB).numel() == 40 * MIB


def test_an_error_of_a_pool_s_own_allocator_reaches_the_program(callbacks: Callbacks) -> None:
    path = str(callbacks.path)
    own = torch.cuda.memory.CUDAPluggableAllocator(path, "allocate", "release")
    with torch.cuda.use_mem_pool(torch.cuda.MemPool(own.allocator())):
        with pytest.raises(RuntimeError, match="the allocator's"):
            tensor(512)
    assert tensor(512).numel() == 512


@pytest.mark.skipif(ALLOCATOR != "tenure", reason="PyTorch ends the process when a free is tracked")
def test_a_tracker_that_throws_is_told_of_and_stops_nothing(
    callbacks: Callbacks,
) -> None:
    callbacks.library.add_tracker()
    with callbacks.throwing(), pytest.warns(UserWarning, match="a tracker of allocations failed"):
        held = [tensor(512)]
    with callbacks.throwing():
        held.clear()
    assert tensor(512).numel() == 512
