"""Memory of captured graphs."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest
import torch

from .memory import ALLOCATOR, MIB, capture, graph_segments, live_blocks, segments, stat, tensor


@pytest.mark.parametrize(
    ("size", "taken", "count", "kind"),
    [
        (512, 2 * MIB, 1, "small_pool"),
        (MIB, 2 * MIB, 1, "small_pool"),
        (MIB + 512, 20 * MIB, 1, "large_pool"),
        (10 * MIB - 512, 20 * MIB, 1, "large_pool"),
        (10 * MIB + 512, 12 * MIB, 1, "large_pool"),
    ],
)
def test_segments_have_pytorch_s_sizes(size: int, taken: int, count: int, kind: str) -> None:
    """Covers TestCuda.test_graph_memory_stats_and_use_result_after_destroy_graph."""
    names = [f"{name}.{kind}.current" for name in ("segment", "reserved_bytes", "active_bytes")]
    # The first graph makes the graphs' random state, outside their pools; on 2.12 each graph makes one.
    first, _ = capture(lambda: None)
    one = [stat(name) for name in names]
    second, _ = capture(lambda: None)
    two = [stat(name) for name in names]
    graph, result = capture(lambda: tensor(size))
    three = [stat(name) for name in names]
    added = [(new - old) - (old - older) for new, old, older in zip(three, two, one, strict=True)]
    assert added == [count, taken, result.numel()]
    del graph, second, first


def test_a_result_outlives_its_graph_and_then_takes_only_its_own_segment() -> None:
    """Covers TestCuda.test_graph_memory_stats_and_use_result_after_destroy_graph."""
    graph, (result, passing) = capture(lambda: (tensor(30 * MIB), tensor(40 * MIB)))
    pool, address = graph.pool(), result.data_ptr()
    del graph, passing
    torch.cuda.empty_cache()
    (segment,) = segments(pool)
    assert (segment["address"], segment["total_size"]) == (address, 30 * MIB)
    del result
    torch.cuda.empty_cache()
    assert segments(pool) == []


def test_a_freed_block_stays_with_the_graph() -> None:
    """Covers TestCuda.test_graph_capture_simple, TestBlockStateAbsorption.test_assigning_back_deleter_fns_to_tensor."""
    graph, result = capture(lambda: tensor(30 * MIB))
    address = result.data_ptr()
    del result
    outside = [tensor(30 * MIB) for _ in range(3)]
    assert all(not address <= block.data_ptr() < address + 30 * MIB for block in outside)
    torch.cuda.empty_cache()
    assert [segment["address"] for segment in segments(graph.pool())] == [address]
    outside.clear()


def test_graphs_that_share_a_pool_share_its_free_memory() -> None:
    """Covers TestCuda.test_graph_two_successive, TestCuda.test_graph_three_successive."""
    first, result = capture(lambda: tensor(4096))
    address = result.data_ptr()
    kept, _ = capture(lambda: None, first.pool())
    del result
    reserved = torch.cuda.memory_reserved()
    second, again = capture(lambda: tensor(4096), first.pool())
    assert again.data_ptr() == address
    assert torch.cuda.memory_reserved() == reserved
    del again, first, second, kept


def test_graphs_apart_share_nothing() -> None:
    """Covers TestCuda.test_graph_two_successive, TestCuda.test_graph_concurrent_replay."""
    graphs = [capture(lambda: [tensor(4096).data_ptr() for _ in range(3)]) for _ in range(3)]
    assert len({addresses[0] for _, addresses in graphs}) == 3
    assert len({graph.pool() for graph, _ in graphs}) == 3


def test_a_capture_reuses_what_it_freed_itself() -> None:
    """Covers TestCuda.test_graph_memory_stats_and_use_result_after_destroy_graph."""
    graph, addresses = capture(lambda: {tensor(4096).data_ptr() for _ in range(10)})
    assert len(addresses) == 1
    del graph


def test_a_stream_that_joins_a_capture_gets_a_segment_of_the_same_pool() -> None:
    """Covers TestCuda.test_cuda_graph_allocator_propagates_stream."""
    graph, first, second = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(first):
        graph.capture_begin()
        held = [tensor(40 * MIB)]
    with torch.cuda.stream(second):
        second.wait_stream(first)
        held.append(tensor(40 * MIB))
    first.wait_stream(second)
    with torch.cuda.stream(first):
        graph.capture_end()
    assert [segment["segment_pool_id"] for segment in graph_segments()] == [graph.pool()] * 2
    assert len({segment["stream"] for segment in graph_segments()}) == 2
    held.clear()


def test_a_capture_asks_no_stream_how_far_it_is() -> None:
    """Covers TestCuda.test_graph_record_stream."""
    user = torch.cuda.Stream()
    waiting = tensor(512)
    with torch.cuda.stream(user):
        waiting.fill_(1)
    waiting.record_stream(user)
    del waiting

    def allocates() -> None:
        block = tensor(512)
        user.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(user):
            block.fill_(1)
        block.record_stream(user)
        del block
        torch.cuda.current_stream().wait_stream(user)
        tensor(512)

    graph, _ = capture(allocates)
    torch.cuda.synchronize()
    tensor(512)
    graph.replay()


@pytest.mark.parametrize("streams", [1, 3])
def test_a_block_that_other_streams_use_in_a_capture_is_not_reused_before_they_join(streams: int) -> None:
    """Covers the part of TestMemPool.test_graph_capture_reclaim_2_streams and _4_streams that both allocators do,
    without the setting `graph_capture_record_stream_reuse`: the block is not reused later in the capture either. With
    the setting, PyTorch reuses it then."""
    graph, first, others = torch.cuda.CUDAGraph(), torch.cuda.Stream(), [torch.cuda.Stream() for _ in range(streams)]
    with torch.cuda.stream(first):
        graph.capture_begin()
        sink, block = tensor(512), tensor(512)
        address = block.data_ptr()
        for other in others:
            other.wait_stream(first)
            with torch.cuda.stream(other):
                block.fill_(1)
            block.record_stream(other)
        del block
        before = tensor(512)
        for other in others:
            first.wait_stream(other)
        sink.fill_(1)
        after = tensor(512)
        graph.capture_end()
    assert address not in (before.data_ptr(), after.data_ptr())
    del before, after, sink


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_another_thread_allocates_during_a_capture(mode: str) -> None:
    """Covers TestCuda.test_cuda_graph_error_options."""
    addresses: list[int] = []

    def allocates() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            address = torch.cuda.caching_allocator_alloc(30 * MIB)
        addresses.append(address)
        torch.cuda.caching_allocator_delete(address)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        held = tensor(512)
        thread = threading.Thread(target=allocates)
        thread.start()
        thread.join()
    assert len(addresses) == 1
    assert live_blocks(graph.pool()) == 1
    del held


def test_many_graphs_one_after_another_take_no_more_than_one() -> None:
    """Covers TestCuda.test_repeat_graph_capture_cublas_workspace_memory."""
    free = []
    for _ in range(20):
        graph, result = capture(lambda: tensor(30 * MIB))
        del graph, result
        free.append(torch.cuda.mem_get_info()[0])
    assert free[0] - free[-1] < 30 * MIB


def test_a_graph_is_reset_and_captured_again() -> None:
    """Covers TestCuda.test_graph_capture_reset_recapture, TestCuda.test_cuda_graph_raw_graph_reset_and_recapture."""
    graph = torch.cuda.CUDAGraph()
    for _ in range(2):
        with torch.cuda.graph(graph):
            held = tensor(512)
            held.fill_(1)
        assert live_blocks(graph.pool()) == 1
        graph.replay()
        del held
        graph.reset()
    torch.cuda.empty_cache()
    assert graph_segments() == []


def invalid_capture(size: int) -> None:
    """Captures a wait, which makes the capture invalid. Nothing of it stays referenced."""
    with pytest.raises(torch.AcceleratorError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        held = tensor(size) if size else None
        torch.cuda.synchronize()
    del held
    gc.collect()


# PyTorch itself ends invalid captures since 2.13. Before, each of its own keeps its pool.
@pytest.mark.skipif(ALLOCATOR == "native", reason="PyTorch's own allocator keeps the pools")
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["in this thread", "in a thread that is gone"])
@pytest.mark.parametrize("size", [0, 4 * MIB], ids=["empty", "with a block"])
def test_after_an_invalid_capture_memory_is_given_back_as_before(size: int, is_elsewhere: bool) -> None:
    for _ in range(2):
        if is_elsewhere:
            thread = threading.Thread(target=invalid_capture, args=[size])
            thread.start()
            thread.join()
            # Python does not wait for the thread's end in C++.
            while Path(f"/proc/self/task/{thread.native_id}").exists():
                os.sched_yield()
        else:
            invalid_capture(size)
    plain = tensor(30 * MIB)
    del plain
    graph, result = capture(lambda: tensor(4 * MIB))
    graph.replay()
    torch.cuda.empty_cache()
    assert len(graph_segments()) == 1
    assert stat("reserved_bytes.all.current") < 30 * MIB, "what is cached is given back"
    del graph, result
    torch.cuda.empty_cache()
    assert graph_segments() == []


@pytest.mark.skipif(ALLOCATOR == "native", reason="PyTorch's own allocator keeps the pools")
def test_after_an_invalid_capture_the_memory_of_its_pool_makes_room() -> None:
    before = torch.cuda.memory_reserved()
    invalid_capture(4 * MIB)
    assert torch.cuda.memory_reserved() - before >= 20 * MIB, "the pool keeps its segment until it is needed"
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((before + 64 * MIB) / total)
    assert tensor(60 * MIB).numel() == 60 * MIB


@pytest.mark.values
def test_replays_compute() -> None:
    """Covers TestCuda.test_graph_capture_simple, TestCuda.test_graph_two_successive."""
    inputs = torch.ones(1000, device="cuda")
    graph, result = capture(lambda: sum((inputs + step for step in range(5)), start=inputs * 0))
    inputs.fill_(2)
    graph.replay()
    assert result.sum().item() == 1000 * 20


@pytest.mark.values
def test_replays_out_of_order_overwrite_what_a_shared_pool_freed() -> None:
    """Covers TestCuda.test_graph_three_successive."""
    one = torch.ones(1000, device="cuda")
    first, made = capture(lambda: [one + 1, one + 2])
    # Frees its input: the third graph's result gets the same address.
    second, early = capture(lambda: made.pop(0) + 3, first.pool())
    third, late = capture(lambda: made[0] + 4, first.pool())
    for graph in (first, second, third):
        graph.replay()
    assert (early.sum().item(), late.sum().item()) == (5000, 7000)
    for graph in (first, third, second):
        graph.replay()
    assert (early.sum().item(), late.sum().item()) == (10_000, 7000)
    made.clear()


@pytest.mark.values
def test_modules_are_graphed_in_one_pool() -> None:
    """Covers TestCuda.test_graph_make_graphed_callables_same_pool."""
    torch.manual_seed(0)
    pool = torch.cuda.graph_pool_handle()
    plain = [torch.nn.Linear(32, 32).cuda() for _ in range(3)]
    inputs = torch.randn(8, 32, device="cuda")
    expected = [module(inputs).detach().clone() for module in plain]
    for module, value in zip(plain, expected, strict=True):
        graphed = torch.cuda.make_graphed_callables(module, (inputs,), pool=pool)
        torch.testing.assert_close(graphed(inputs), value)


def test_a_graph_keeps_the_pools_that_it_allocated_from_while_it_lives() -> None:
    if not hasattr(torch.cuda.CUDAGraph, "pools"):
        pytest.skip("graphs of this PyTorch have one pool")
    pool = torch.cuda.MemPool()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outside = tensor(MIB)
        with torch.cuda.use_mem_pool(pool):
            inside = tensor(4 * MIB)
    identity = pool.id
    assert set(graph.pools()) == {graph.pool(), identity}
    assert live_blocks(identity) == 1 and live_blocks(graph.pool()) == 1
    del inside, outside, pool
    torch.cuda.empty_cache()
    assert segments(identity) != []
    del graph
    torch.cuda.empty_cache()
    assert segments(identity) == []
