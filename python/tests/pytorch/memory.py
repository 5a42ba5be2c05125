"""Functions with which the tests allocate memory and look at it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

# The allocator under test: Tenure's, or PyTorch's (`native`).
ALLOCATOR = os.environ.get("TENURE_TEST_ALLOCATOR", "tenure")
MIB = 1 << 20


def tensor(size: int) -> torch.Tensor:
    """Allocates a tensor of `size` bytes."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def stat(name: str) -> int:
    return int(torch.cuda.memory_stats()[name])


def segments(pool: tuple[int, int]) -> list[dict[str, Any]]:
    """Returns the segments of one pool."""
    return [segment for segment in torch.cuda.memory_snapshot() if segment["segment_pool_id"] == pool]


def graph_segments() -> list[dict[str, Any]]:
    """Returns the segments of all private pools."""
    return [segment for segment in torch.cuda.memory_snapshot() if segment["segment_pool_id"] != (0, 0)]


def live_blocks(pool: tuple[int, int]) -> int:
    return sum(block["state"] == "active_allocated" for segment in segments(pool) for block in segment["blocks"])


def blocks() -> list[dict[str, Any]]:
    return [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]


def capture(function: Callable[[], Any], pool: tuple[int, int] | None = None) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Captures `function`, and returns the graph and the function's result."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = function()
    return graph, result


def limit(size: int) -> None:
    """Lets the allocator reserve at most `size` bytes more than it has now."""
    total = torch.cuda.mem_get_info()[1]
    # The limit is the fraction of the total, rounded down: half a byte keeps it from being one byte too small.
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + size + 0.5) / total)
