"""What the tests look at, and how they make it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

# The allocator that is tested: Tenure's, or PyTorch's (`native`).
ALLOCATOR = os.environ.get("TENURE_TEST_ALLOCATOR", "tenure")
MIB = 1 << 20


def tensor(size: int) -> torch.Tensor:
    """One of so many bytes."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def stat(name: str) -> int:
    return int(torch.cuda.memory_stats()[name])


def segments(pool: tuple[int, int]) -> list[dict[str, Any]]:
    """Those of one pool."""
    return [segment for segment in torch.cuda.memory_snapshot() if segment["segment_pool_id"] == pool]


def graph_segments() -> list[dict[str, Any]]:
    """Those of all private pools."""
    return [segment for segment in torch.cuda.memory_snapshot() if segment["segment_pool_id"] != (0, 0)]


def live_blocks(pool: tuple[int, int]) -> int:
    return sum(block["state"] == "active_allocated" for segment in segments(pool) for block in segment["blocks"])


def blocks() -> list[dict[str, Any]]:
    return [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]


def capture(function: Callable[[], Any], pool: tuple[int, int] | None = None) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of what `function` does, and what it returned."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = function()
    return graph, result


def limit(size: int) -> None:
    """Lets the allocator reserve `size` bytes more than it has."""
    total = torch.cuda.mem_get_info()[1]
    # The limit is the fraction of the total, rounded down: half a byte more keeps it from being one byte less.
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + size + 0.5) / total)
