"""Memory pools of a program."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from .memory import ALLOCATOR, MIB, limit, live_blocks, segments, tensor

SOURCE = """
#include <dlfcn.h>
#include <stddef.h>
extern "C" {
int allocations = 0, frees = 0;
void (*inside)() = nullptr; // what each call does beside
static void call_inside() {
  if (inside)
    inside();
}
static void *runtime(const char *name) {
  void *library = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
  return dlsym(library ? library : RTLD_DEFAULT, name);
}
void *allocate(size_t bytes, int, void *) {
  void *address = nullptr;
  call_inside();
  auto call = reinterpret_cast<int (*)(void **, size_t)>(runtime("cudaMalloc"));
  allocations += call && call(&address, bytes) == 0;
  return address;
}
void release(void *address, size_t, int, void *) {
  call_inside();
  auto call = reinterpret_cast<int (*)(void *)>(runtime("cudaFree"));
  frees += call && call(address) == 0;
}
}
"""


class Source:
    """An allocator of the program's own, which counts its calls."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("c++")
        if compiler is None:
            pytest.skip("no C++ compiler here")
        path = folder / "libsource.so"
        command = [compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path), "-ldl"]
        subprocess.run(command, input=SOURCE, text=True, check=True)
        self.library = ctypes.CDLL(str(path))
        self.allocator = torch.cuda.memory.CUDAPluggableAllocator(str(path), "allocate", "release")

    def pool(self, **settings: bool) -> torch.cuda.MemPool:
        return torch.cuda.MemPool(self.allocator.allocator(), **settings)

    def does(self, inside: Callable[[], None] | None) -> None:
        """Makes each call of the allocator call `inside` too."""
        self.inside = ctypes.CFUNCTYPE(None)(inside) if inside else None  # must outlive the calls
        ctypes.c_void_p.in_dll(self.library, "inside").value = ctypes.cast(self.inside, ctypes.c_void_p).value

    def calls(self) -> tuple[int, int]:
        counters = (ctypes.c_int.in_dll(self.library, name).value for name in ("allocations", "frees"))
        return next(counters), next(counters)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def test_every_pool_has_an_id_of_its_own() -> None:
    """Covers TestMemPool.test_mempool_id, TestMemPool.test_mempool_multithread."""
    ids: list[tuple[int, int]] = []
    threads = [threading.Thread(target=lambda: ids.append(torch.cuda.MemPool().id)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*ids, torch.cuda.graph_pool_handle()}) == 5


def test_users_of_a_pool_are_counted() -> None:
    """Covers TestMemPool.test_mempool_with_allocator."""
    pool = torch.cuda.MemPool()
    assert pool.use_count() == 1
    with torch.cuda.use_mem_pool(pool):
        tensor(512)
        assert pool.use_count() == 2
    assert pool.use_count() == 1


def test_a_capture_that_raised_uses_its_pool_until_its_graph_goes() -> None:
    pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
    with pytest.raises(ValueError, match="within"), torch.cuda.graph(graph, pool=pool.id):
        tensor(512)
        raise ValueError("within")
    assert pool.use_count() == 2
    del graph
    gc.collect()
    assert pool.use_count() == 1


def test_a_pool_is_not_begun_twice() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        with pytest.raises(RuntimeError), torch.cuda.use_mem_pool(pool):
            pass
        # PyTorch also counts the use that it refused, and then never gives the pool's memory back.
        assert pool.use_count() == (2 if ALLOCATOR == "tenure" else 3)
    assert pool.use_count() == (1 if ALLOCATOR == "tenure" else 2)


def test_small_blocks_share_segments_of_2_mib() -> None:
    """Covers TestMemPool.test_mempool_with_allocator."""
    pool = torch.cuda.MemPool()
    held, counts = [], []
    for _ in range(3):
        with torch.cuda.use_mem_pool(pool):
            held.append(tensor(MIB))
        counts.append(len(pool.snapshot()))
    assert counts == [1, 1, 2]
    held.clear()


def test_the_innermost_pool_serves() -> None:
    """Covers TestMemPool.test_nested_mempool."""
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    held = []
    with torch.cuda.use_mem_pool(outer):
        held.append(tensor(20 * MIB))
        with torch.cuda.use_mem_pool(inner):
            held.append(tensor(20 * MIB))
        held.append(tensor(20 * MIB))
    held.append(tensor(20 * MIB))
    assert [len(segments(pool.id)) for pool in (outer, inner)] == [2, 1]
    assert [live_blocks(pool.id) for pool in (outer, inner)] == [2, 1]
    held.clear()


def test_emptying_the_cache_leaves_a_pool_in_use_alone() -> None:
    """Covers TestMemPool.test_mempool_emptycache_multithread."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor(512)
        torch.cuda.empty_cache()
    assert len(pool.snapshot()) == 1


def test_the_end_of_a_pool_leaves_cached_memory_outside_alone() -> None:
    """Covers TestMemPool.test_mempool_empty_cache."""
    pool = torch.cuda.MemPool()
    outside = tensor(4 * MIB)
    with torch.cuda.use_mem_pool(pool):
        tensor(4 * MIB)
    del outside
    cached = segments((0, 0))
    id = pool.id
    del pool
    assert segments(id) == []
    assert segments((0, 0)) == cached != []


def test_a_pool_is_for_the_thread_that_uses_it() -> None:
    """Covers TestMemPool.test_mempool_ctx_multithread."""
    pool = torch.cuda.MemPool()
    held: list[torch.Tensor] = []
    before = active_outside()
    with torch.cuda.use_mem_pool(pool):
        tensor(MIB)
        thread = threading.Thread(target=lambda: held.append(tensor(MIB)))
        thread.start()
        thread.join()
        assert live_blocks(pool.id) == 0
        assert active_outside() == before + MIB
    held.clear()


def active_outside() -> int:
    return sum(int(segment["active_size"]) for segment in segments((0, 0)))


def test_a_pool_that_does_not_split_has_a_segment_for_each_block() -> None:
    """Covers TestMemPool.test_mempool_no_split."""
    splitting, whole = torch.cuda.MemPool(), torch.cuda.MemPool(no_split=True)
    held = []
    for pool in (splitting, whole):
        with torch.cuda.use_mem_pool(pool):
            held += [tensor(4 * MIB), tensor(4 * MIB)]
    assert [len(segment["blocks"]) for segment in whole.snapshot()] == [1, 1]
    assert [len(segment["blocks"]) for segment in splitting.snapshot()] == [3]
    held.clear()


def test_memory_of_a_pool_stays_as_long_as_its_blocks() -> None:
    """Covers TestMemPool.test_mempool_empty_cache_inactive."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = tensor(20 * MIB)
    id = pool.id
    del pool
    torch.cuda.empty_cache()
    assert live_blocks(id) == 1
    del held
    torch.cuda.empty_cache()
    assert segments(id) == []


def test_a_pool_lends_when_memory_runs_out_if_it_may() -> None:
    """Covers TestMemPool.test_mempool_limited_memory_with_allocator."""
    lends, keeps = torch.cuda.MemPool(use_on_oom=True), torch.cuda.MemPool()
    limit(80 * MIB)
    with torch.cuda.use_mem_pool(keeps):
        tensor(40 * MIB)
    with torch.cuda.use_mem_pool(lends):
        block = tensor(40 * MIB)
    address = block.data_ptr()
    with pytest.raises(torch.OutOfMemoryError):
        tensor(30 * MIB)
    del block
    borrowed = tensor(30 * MIB)
    assert borrowed.data_ptr() == address
    with pytest.raises(torch.OutOfMemoryError):
        tensor(30 * MIB)
    del borrowed
    with torch.cuda.use_mem_pool(lends):
        assert tensor(20 * MIB).data_ptr() == address


def marks_captures() -> bool:
    """Returns whether PyTorch tells its allocator where captures begin. If not, any use of a pool may be one."""
    header = Path(torch.__file__).parent / "include" / "c10" / "cuda" / "CUDACachingAllocator.h"
    return "markCaptureBegin" in header.read_text()


@pytest.mark.skipif(not marks_captures(), reason="this PyTorch takes every use of a pool for a capture")
def test_a_pool_gets_what_is_cached_outside_before_memory_runs_out() -> None:
    limit(80 * MIB)
    tensor(60 * MIB)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        assert tensor(40 * MIB).numel() == 40 * MIB


@pytest.mark.skipif(not marks_captures(), reason="this PyTorch takes every use of a pool for a capture")
def test_a_block_of_a_pool_is_used_again_once_other_streams_have_passed() -> None:
    stream, pool = torch.cuda.Stream(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        block = tensor(40 * MIB)
        block.record_stream(stream)
        address = block.data_ptr()
        del block
        stream.synchronize()
        assert tensor(40 * MIB).data_ptr() == address


def test_a_capture_gets_nothing_that_is_cached_outside() -> None:
    """The same holds if the program uses a pool of its own within the capture."""
    limit(80 * MIB)
    pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
    # `torch.cuda.graph` would empty the cache first.
    with torch.cuda.stream(torch.cuda.Stream()):
        tensor(60 * MIB)
        graph.capture_begin()
        with pytest.raises(torch.OutOfMemoryError):
            tensor(40 * MIB)
        with torch.cuda.use_mem_pool(pool), pytest.raises(torch.OutOfMemoryError):
            tensor(40 * MIB)
        graph.capture_end()
        del graph, pool
        assert tensor(80 * MIB).numel() == 80 * MIB


def test_a_pool_that_is_gone_lends_nothing() -> None:
    """Covers TestMemPool.test_deleted_mempool_not_used_on_oom."""
    limit(40 * MIB)
    for _ in range(5):
        pool = torch.cuda.MemPool(use_on_oom=True)
        with torch.cuda.use_mem_pool(pool):
            tensor(40 * MIB)
        del pool
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        tensor(40 * MIB)
    held = [tensor(20 * MIB), tensor(20 * MIB)]
    assert live_blocks(pool.id) == 2
    held.clear()


def test_an_allocator_of_the_program_serves_its_pool(source: Source) -> None:
    """Covers TestMemPool.test_mempool_with_allocator."""
    pool = source.pool()
    assert source.calls() == (0, 0)
    held = []
    for calls in (1, 1, 2):
        with torch.cuda.use_mem_pool(pool):
            held.append(tensor(MIB))
        assert source.calls() == (calls, 0)
    held.clear()
    assert source.calls() == (2, 0)
    del pool
    assert source.calls() == (2, 2)


def test_it_gets_memory_back_after_the_pool_has_gone(source: Source) -> None:
    """Covers TestMemPool.test_mempool_empty_cache_inactive, TestMemPool.test_tensor_delete_after_allocator_delete."""
    pool = source.pool()
    with torch.cuda.use_mem_pool(pool):
        held = tensor(512)
    del pool
    del source.allocator
    torch.cuda.empty_cache()
    assert source.calls() == (1, 0)
    del held
    torch.cuda.empty_cache()
    assert source.calls() == (1, 1)


def test_its_segments_are_not_expandable(source: Source) -> None:
    """Covers TestMemPool.test_mempool_expandable."""
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    pool = source.pool()
    with torch.cuda.use_mem_pool(pool):
        held = [tensor(MIB)]
    # No segment has this much free.
    held.append(tensor(200 * MIB))
    address = held[-1].data_ptr()
    outside = [segment for segment in segments((0, 0)) if 0 <= address - segment["address"] < segment["total_size"]]
    assert [segment["is_expandable"] for segment in segments(pool.id)] == [False]
    assert [segment["is_expandable"] for segment in outside] == [True]
    held.clear()


def test_it_serves_a_pool_that_a_graph_is_captured_in(source: Source) -> None:
    """Calls of cudaMalloc break a capture, unless the thread's capture mode is relaxed meanwhile."""
    pool, graph = source.pool(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        block = tensor(3 * MIB)
    assert source.calls() == (1, 0)
    del block, graph, pool


def test_it_may_allocate_and_free_tensors_itself(source: Source) -> None:
    nested: list[int] = []

    def inside() -> None:
        if len(nested) % 2 == 0:
            nested.append(0)
            nested.append(tensor(3 * MIB).numel())

    pool = source.pool()
    source.does(inside)
    with torch.cuda.use_mem_pool(pool):
        block = tensor(12 * MIB)
    assert nested[1::2] == [3 * MIB]
    del block, pool
    torch.cuda.empty_cache()
    assert len(nested) > 2
    source.does(None)
    assert source.calls()[0] == source.calls()[1]


def test_a_pool_of_the_allocator_that_is_installed_is_like_any_other() -> None:
    pool = torch.cuda.MemPool(torch._C._cuda_getAllocator())
    with torch.cuda.use_mem_pool(pool):
        block = tensor(3 * MIB)
    assert [segment["address"] for segment in pool.snapshot()] == [block.data_ptr()]
    del block, pool


def test_a_pool_s_memory_is_one_allocation_of_the_driver_s_that_others_can_register() -> None:
    """Network cards and NCCL register memory from cudaMalloc, and may refuse mapped memory."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = tensor(64 * MIB)
    (segment,) = segments(pool.id)
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    driver = ctypes.CDLL("libcuda.so.1")
    status = driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(held.data_ptr()))
    assert status == 0
    assert (base.value, size.value) == (segment["address"], segment["total_size"])
    assert not segment["is_expandable"]
    del held, pool
