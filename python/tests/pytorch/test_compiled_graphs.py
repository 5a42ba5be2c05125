"""Programs that `torch.compile` captures into a tree of CUDA graphs, as `mode="reduce-overhead"` does."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from .memory import MIB, graph_segments

SIZE = 4 * MIB


@pytest.fixture(autouse=True)
def no_graph_is_kept() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    torch._inductor.cudagraph_trees.reset_cudagraph_trees()


def compiled(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Compiles with a backend that captures PyTorch's own kernels, without a compiler."""
    torch._dynamo.reset()
    return torch.compile(function, backend="cudagraphs")


def values(fill: float = 1) -> Tensor:
    return torch.full((SIZE // 4,), fill, device="cuda")


def live_blocks() -> int:
    """Returns the number of live blocks in all private pools."""
    blocks = [block for segment in graph_segments() for block in segment["blocks"]]
    return sum(block["state"] == "active_allocated" for block in blocks)


def called(function: Callable[[Tensor], Tensor], times: int = 3) -> None:
    """Calls it often enough to warm up, capture and replay."""
    for _ in range(times):
        torch.compiler.cudagraph_mark_step_begin()
        function(values())


def test_a_result_lives_in_the_graphs_pool_until_it_is_dropped() -> None:
    """Covers CudaGraphTreeTests.test_run_simple, .test_peristed_output_livenes,
    .test_aliased_storage_single_weakref."""
    function = compiled(lambda x: x + 1)
    called(function, 1)
    # Replays find their results where this capture puts them.
    torch.compiler.cudagraph_mark_step_begin()
    result = function(values())
    assert live_blocks() == 1
    view = result[1:]
    del result
    assert live_blocks() == 1
    del view
    assert live_blocks() == 0


def test_replays_take_no_more_memory_than_the_capture() -> None:
    """Covers CudaGraphTreeTests.test_function_compiled_multiple_times, .test_execution_into_recording."""
    function = compiled(lambda x: (x * 2 + 1) * 3)
    called(function)
    reserved = torch.cuda.memory_reserved()
    called(function, 20)
    assert torch.cuda.memory_reserved() == reserved


def test_graphs_one_after_another_go_on_from_each_other_s_live_results() -> None:
    """Covers CudaGraphTreeTests.test_live_outputs_multiple_graphs, .test_tensor_dies_between_checkpoint,
    .test_accumulate_multiple_recordings: the pool is restored to the blocks live after the earlier graph's run."""
    first, second, third = [compiled_apart(step) for step in range(3)]
    for path in (second, third, second, third):
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            made = first(values())
            result = path(made)
            assert made.data_ptr() != result.data_ptr()
            del made, result


def compiled_apart(step: int) -> Callable[[Tensor], Tensor]:
    return torch.compile(lambda x: x * (step + 2), backend="cudagraphs")


def test_the_pool_is_given_back_with_the_graphs() -> None:
    """Covers CudaGraphTreeTests.test_cleanup."""
    function = compiled(lambda x: x + 1)
    called(function)
    assert graph_segments()
    del function
    torch._dynamo.reset()
    torch._inductor.cudagraph_trees.reset_cudagraph_trees()
    gc.collect()
    torch.cuda.empty_cache()
    assert graph_segments() == []


@pytest.mark.values
def test_replays_compute_with_new_inputs_and_parameters() -> None:
    """Covers CudaGraphTreeTests.test_run_simple, .test_forward_backward_not_called,
    .test_rerecord_if_static_input_address_changed."""
    function = compiled(lambda x: x * 2 + 1)
    for fill in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        assert function(values(fill)).eq(2 * fill + 1).all()
