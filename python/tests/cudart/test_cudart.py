"""The simulated CUDA under PyTorch's own allocator: the ground on which ours is tested without a GPU.

It does not compute as a real device would; these tests say what it does instead.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import pytest
import torch

from ..pytorch import peers

MIB = 1 << 20
EXPANDABLE = "expandable_segments:True"


def tensor(mib: float = 1) -> Any:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def test_pytorch_finds_a_device() -> None:
    assert torch.cuda.is_available()
    properties = torch.cuda.get_device_properties(0)
    assert (properties.name, properties.major) == ("Simulated", 9)
    assert properties.total_memory == 8 << 30


def test_devices_are_as_many_and_as_large_as_asked() -> None:
    os.environ.update(TENURE_CUDART_DEVICES="2", TENURE_CUDART_CAPACITY=str(64 * MIB))
    with torch.cuda.device(1):
        kept = tensor(40)
    assert kept.device.index == 1
    assert [torch.cuda.mem_get_info(device) for device in range(2)] == [(64 * MIB, 64 * MIB), (24 * MIB, 64 * MIB)]
    assert torch.cuda.can_device_access_peer(0, 1)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="total capacity of 64.00 MiB of which 24.00 MiB is free"):
        torch.empty(40 * MIB, dtype=torch.uint8, device="cuda:1")


def test_copies_and_fills_move_bytes() -> None:
    source = torch.arange(1000)
    assert torch.equal(source.cuda().clone().cpu(), source)
    assert torch.zeros(7, device="cuda").tolist() == [0] * 7
    assert torch.full((3,), 2.5, dtype=torch.half, device="cuda").tolist() == [2.5] * 3
    assert source.pin_memory().is_pinned()


def test_pages_are_taken_when_they_are_written() -> None:
    os.environ["TENURE_CUDART_CAPACITY"] = str(64 << 40)
    tensor(16 << 20)


def test_work_takes_as_long_as_a_slow_h200_would() -> None:
    os.environ.update(TENURE_CUDART_CLOCK="virtual", TENURE_CUDART_SLOWNESS="1000")
    host, device = torch.ones(4 * MIB, dtype=torch.uint8).pin_memory(), tensor(4)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    marks[0].record()
    device.copy_(host, non_blocking=True)
    marks[1].record()
    device.clone()
    marks[2].record()
    device.add_(1)
    marks[3].record()
    torch.cuda.synchronize()
    times = [before.elapsed_time(after) for before, after in zip(marks, marks[1:], strict=False)]
    assert times == pytest.approx([1000 * 4 * MIB / rate / 1e6 for rate in (54, 1500, 500)], rel=0.01)
    device[:1000].fill_(7)
    assert device[:1000].cpu().eq(7).all()
    assert host.copy_(device).eq(1).all(), "what is large is not moved"


def test_a_stream_that_sleeps_is_busy_and_its_events_with_it() -> None:
    os.environ["TENURE_CUDART_CLOCK"] = "virtual"
    side, before, after = torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(side):
        before.record()
        torch.cuda._sleep(50_000_000)
        after.record()
    assert (side.query(), before.query(), after.query()) == (False, True, False)
    torch.cuda.current_stream().wait_stream(side)
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert side.query() and after.query()
    assert before.elapsed_time(after) == 50


def test_a_wait_for_a_stream_that_sleeps_takes_as_long() -> None:
    began = time.monotonic()  # noqa: TID251 (a lower bound on work that takes this long)
    torch.cuda._sleep(50_000_000)
    torch.cuda.synchronize()
    assert time.monotonic() - began >= 0.05  # noqa: TID251 (a lower bound on work that takes this long)


def test_a_block_that_a_busy_stream_uses_is_not_given_again() -> None:
    os.environ["TENURE_CUDART_CLOCK"] = "virtual"
    side = torch.cuda.Stream()
    block = tensor()
    address = block.data_ptr()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
    block.record_stream(side)
    del block
    assert tensor().data_ptr() != address


def test_a_graph_does_its_copies_and_fills_when_it_is_replayed() -> None:
    total = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ones = torch.ones(4, device="cuda")
        total.copy_(ones)
    assert total.tolist() == [0] * 4
    graph.replay()
    assert total.tolist() == [1] * 4
    assert graph.pool() != (0, 0)


def test_a_side_stream_joins_a_capture() -> None:
    total, side, graph = torch.zeros(4, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            total.fill_(3)
        torch.cuda.current_stream().wait_stream(side)
    assert total.tolist() == [0] * 4
    graph.replay()
    assert total.tolist() == [3] * 4


def test_a_capture_bears_no_call_that_waits() -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="cudaErrorStreamCaptureUnsupported"):
            torch.cuda.synchronize()
        with pytest.raises(RuntimeError, match="cudaErrorStreamCaptureInvalidated"):
            graph.capture_end()
    # Leaks the graph: PyTorch ends the process when a graph is destroyed whose capture failed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(graph))


def test_an_event_of_a_capture_cannot_be_queried() -> None:
    graph, event = torch.cuda.CUDAGraph(), torch.cuda.Event()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        event.record()
        graph.capture_end()
    with pytest.raises(RuntimeError, match="cudaErrorCapturedEvent"):
        event.query()


def test_a_pool_keeps_its_memory_apart() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = tensor()
    outside = tensor()
    (segment,) = pool.snapshot()
    assert segment["address"] <= inside.data_ptr() < segment["address"] + segment["total_size"]
    assert not segment["address"] <= outside.data_ptr() < segment["address"] + segment["total_size"]


def test_an_expandable_segment_grows_in_place() -> None:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = EXPANDABLE
    tensors = [tensor(20) for _ in range(3)]
    (segment,) = torch.cuda.memory_snapshot()
    assert segment["is_expandable"] and segment["total_size"] == 60 * MIB
    assert [later.data_ptr() - tensors[0].data_ptr() for later in tensors] == [0, 20 * MIB, 40 * MIB]
    assert torch.cuda.mem_get_info()[0] == (8 << 30) - 60 * MIB


@pytest.mark.parametrize("settings", ["", EXPANDABLE])
def test_another_process_sees_a_tensor_in_place(settings: str) -> None:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = settings
    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    process = context.Process(target=peers.shows_and_fills, args=(tensors, answers))
    process.start()
    shared = torch.ones(3, device="cuda")
    tensors.put(shared)
    assert answers.get(timeout=300) == [1] * 3
    answers.get(timeout=300)
    assert shared.tolist() == [2] * 3
    process.join()
    assert process.exitcode == 0
