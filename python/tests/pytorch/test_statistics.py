"""PyTorch's counters of memory."""

from __future__ import annotations

import pytest
import torch

from .memory import MIB, capture, stat, tensor


def test_a_byte_takes_a_block_of_512() -> None:
    """Covers TestCuda.test_memory_allocation."""
    before = torch.cuda.memory_allocated()
    address = torch.cuda.caching_allocator_alloc(1)
    assert torch.cuda.memory_allocated() == before + 512
    torch.cuda.caching_allocator_delete(address)
    with pytest.raises(RuntimeError, match="invalid device pointer: "):
        torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == before


def test_requested_bytes_are_counted_beside_allocated_bytes() -> None:
    """Covers TestCudaMallocAsync.test_allocator_settings."""
    before = {name: stat(f"{name}.all.current") for name in ("requested_bytes", "allocated_bytes", "active_bytes")}
    held = tensor(1000)
    assert stat("requested_bytes.all.current") - before["requested_bytes"] == 1000
    assert stat("allocated_bytes.all.current") - before["allocated_bytes"] == 1024
    assert stat("active_bytes.all.current") - before["active_bytes"] == held.numel() + 24


def test_counters_since_a_reset_begin_at_nothing() -> None:
    """Covers TestCuda.test_memory_stats."""
    assert stat("active_bytes.all.freed") == 0
    held = tensor(1024)
    assert stat("active_bytes.all.allocated") == 1024
    del held
    assert stat("active_bytes.all.freed") == 1024


def test_a_peak_is_the_most_since_its_reset() -> None:
    """Covers TestCuda.test_memory_stats, TestCuda.test_matmul_memory_use."""
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == before
        first = tensor(3 * MIB)
        second = tensor(2 * MIB)
        del first, second
        assert torch.cuda.max_memory_allocated() == before + 5 * MIB


def test_an_empty_cache_reserves_what_it_did_before() -> None:
    """Covers TestCuda.test_memory_stats."""
    reserved = torch.cuda.memory_reserved()
    held = [tensor(size) for size in (512, MIB, 7 * MIB, 700 * MIB)]
    assert torch.cuda.memory_reserved() >= reserved + 600 * MIB
    held.clear()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.memory_reserved() == torch.cuda.max_memory_reserved() == reserved


def test_small_and_large_requests_are_counted_apart() -> None:
    """Covers TestCuda.test_graph_memory_stats_and_use_result_after_destroy_graph."""
    names = ("active.small_pool.current", "active.large_pool.current")
    small, large = map(stat, names)
    held = [tensor(MIB)]
    assert tuple(map(stat, names)) == (small + 1, large)
    held.append(tensor(MIB + 1))
    assert tuple(map(stat, names)) == (small + 1, large + 1)


@pytest.mark.parametrize(("graphs", "generators"), [(1, 1), (3, 2), (4, 8)])
def test_graphs_keep_two_blocks_for_each_generator(graphs: int, generators: int) -> None:
    """Covers TestCuda.test_memory_stats_of_multiple_generators_and_graphs."""
    default = torch.cuda.default_generators[0]
    states = [default.graphsafe_get_state()] + [default.clone_state() for _ in range(generators - 1)]
    before = stat("active.all.current"), stat("active_bytes.all.current")
    made = []
    for _ in range(graphs):
        graph = torch.cuda.CUDAGraph()
        for state in states:
            graph.register_generator_state(state)
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            torch.rand(1, device="cuda")
            graph.capture_end()
        made.append(graph)
    added = stat("active.all.current") - before[0], stat("active_bytes.all.current") - before[1]
    # Graphs of 2.11 share the states of generators; those of 2.12 and 2.13 have their own. Newer graphs find the
    # generators that they use themselves: here, each uses the default one.
    minor = int(torch.__version__.split(".")[1])
    states_kept = generators if minor < 12 else graphs * generators if minor < 14 else graphs
    assert added == (2 * states_kept, 2 * 512 * states_kept)
    del graph, state, states
    made.clear()


@pytest.mark.values
def test_a_library_s_workspace_is_counted() -> None:
    """Covers TestCuda.test_cublas_workspace_explicit_allocation."""
    matrix = torch.ones(8, 8, device="cuda")
    torch._C._cuda_clearCublasWorkspaces()
    used = []
    for _ in range(2):
        before = stat("active_bytes.all.allocated")
        torch.matmul(matrix, matrix)
        used.append(stat("active_bytes.all.allocated") - before)
        torch._C._cuda_clearCublasWorkspaces()
    assert used[0] == used[1] >= 4 * MIB


def test_a_graph_s_memory_is_counted_while_the_graph_lives() -> None:
    """Covers TestCuda.test_graph_memory_stats_and_use_result_after_destroy_graph."""
    before = torch.cuda.memory_reserved()
    graph, result = capture(lambda: tensor(30 * MIB))
    assert torch.cuda.memory_reserved() >= before + 30 * MIB
    del graph, result
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before
