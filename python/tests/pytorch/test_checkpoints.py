"""Checkpoints of a graph pool's blocks, kept and restored, as graph trees do between graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from .memory import MIB, capture, live_blocks, segments, tensor


def state(pool: tuple[int, int]) -> Any:
    return torch._C._cuda_getCheckpointState(0, pool)


def restore(checkpoint: Any, gone: list[torch.Tensor], kept: list[torch.Tensor]) -> None:
    """Restores a pool. Storages of `gone` own nothing afterwards; those of `kept` own their block again."""
    storages = [[tensor.untyped_storage()._cdata for tensor in tensors] for tensors in (gone, kept)]
    torch._C._cuda_setCheckpointPoolState(0, checkpoint, *storages)


def looks(pool: tuple[int, int]) -> dict[int, Any]:
    """Returns the properties that must be the same in a restored pool."""
    return {
        segment["address"]: (
            [segment[field] for field in ("device", "total_size", "allocated_size", "active_size", "segment_type")],
            [(block["size"], block["state"]) for block in segment["blocks"]],
        )
        for segment in segments(pool)
    }


def view_of(address: int, size: int) -> torch.Tensor:
    """Returns a tensor that does not own its memory."""
    storage = torch._C._construct_storage_from_data_pointer(address, torch.device("cuda:0"), size)
    return torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage, 0, (size,), (1,))


@pytest.mark.parametrize("kept", [[5], [5, 8], [5, 6], list(range(11)), []])
def test_a_pool_set_back_at_once_is_as_it_was(kept: list[int]) -> None:
    """Covers TestBlockStateAbsorption.test_allocated_in_middle_of_segment, .test_multiple_middle_allocations,
    .test_middle_allocations_contiguous.
    """

    def allocates() -> list[torch.Tensor]:
        made = [tensor(512) for _ in range(11)]
        return [made[index] for index in kept]

    graph, results = capture(allocates)
    before = looks(graph.pool())
    restore(state(graph.pool()), [], [])
    assert looks(graph.pool()) == before
    assert live_blocks(graph.pool()) == len(kept)
    results.clear()


def test_segments_of_both_sizes_are_set_back() -> None:
    """Covers TestBlockStateAbsorption.test_simple, TestBlockStateAbsorption.test_resnet."""

    def allocates() -> list[torch.Tensor]:
        made = [tensor(size) for size in (8 * MIB, MIB, MIB, 30 * MIB, 512, 2 * MIB)]
        return made[::2]

    graph, results = capture(allocates)
    before = looks(graph.pool())
    restore(state(graph.pool()), [], [])
    assert looks(graph.pool()) == before
    results.clear()


def test_blocks_allocated_after_the_checkpoint_are_freed() -> None:
    """Covers TestBlockStateAbsorption.test_additional_free_following_checkpoint."""
    first, kept = capture(lambda: [tensor(512)])
    before, checkpoint = looks(first.pool()), state(first.pool())
    second, later = capture(lambda: [tensor(512), tensor(30 * MIB)], first.pool())
    assert live_blocks(first.pool()) == 3
    restore(checkpoint, later, [])
    later.clear()
    assert live_blocks(first.pool()) == 1
    assert before.items() <= looks(first.pool()).items()
    kept.clear()
    del second


def test_blocks_that_were_freed_since_live_again() -> None:
    """Covers TestBlockStateAbsorption.test_tensor_dies_after_checkpoint."""
    graph, results = capture(lambda: [tensor(512), tensor(512)])
    checkpoint = state(graph.pool())
    addresses = [result.data_ptr() for result in results]
    results.clear()
    assert live_blocks(graph.pool()) == 0
    restore(checkpoint, [], [])
    for left, address in zip((1, 0), addresses, strict=True):
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)
        assert live_blocks(graph.pool()) == left


def test_storages_own_their_blocks_again() -> None:
    """Covers TestBlockStateAbsorption.test_assigning_back_deleter_fns_to_tensor."""
    sizes = [2 * MIB, 2 * MIB, 20 * MIB]
    graph, results = capture(lambda: [tensor(size) for size in sizes])
    checkpoint = state(graph.pool())
    addresses = [result.data_ptr() for result in results]
    results.clear()
    views = [view_of(address, size) for address, size in zip(addresses, sizes, strict=True)]
    restore(checkpoint, [], views[:2])
    counts = [live_blocks(graph.pool())]
    while views:
        views.pop(0)
        counts.append(live_blocks(graph.pool()))
    assert counts == [3, 2, 1, 1]
    torch._C._cuda_cudaCachingAllocator_raw_delete(addresses[2])
    assert live_blocks(graph.pool()) == 0


def test_live_blocks_are_checked_exactly() -> None:
    """Covers TestBlockStateAbsorption.test_check_pool_live_allocations."""
    graph, results = capture(lambda: [tensor(512)])

    def are_live(addresses: set[int]) -> bool:
        return bool(torch._C._cuda_checkPoolLiveAllocations(0, graph.pool(), addresses))

    address = results[0].data_ptr()
    assert are_live({address})
    assert not are_live({address, 0})
    assert not are_live(set())
    results.clear()
    assert are_live(set())


def test_only_the_thread_that_asks_allocates_from_the_pool() -> None:
    """Covers TestBlockStateAbsorption.test_allocate_in_thread_to_pool."""
    pool = torch.cuda.graph_pool_handle()
    graph, _ = capture(lambda: tensor(512).data_ptr(), pool)
    assert len(segments(pool)) == 1
    began, other_done = threading.Event(), threading.Event()

    def with_pool() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
            try:
                began.set()
                other_done.wait(300)
                for _ in range(3):
                    held = [tensor(20 * MIB) for _ in range(3)]
                    del held
            finally:
                torch._C._cuda_endAllocateToPool(0, pool)
                torch._C._cuda_releasePool(0, pool)

    def without() -> None:
        began.wait(300)
        tensor(20 * MIB)
        other_done.set()

    run_together(with_pool, without)
    assert len(segments(pool)) == 4
    del graph
    torch.cuda.empty_cache()
    assert segments(pool) == []


def run_together(*functions: Callable[[], None]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
