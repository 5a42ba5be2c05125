"""Pinned host memory: exact sizes, streams respected, cached within a limit, and given back when asked."""

from __future__ import annotations

import gc
import inspect
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import tenure.torch

MIB = 1 << 20

pytestmark = pytest.mark.skipif(not hasattr(torch._C, "_host_emptyCache"), reason="a PyTorch with a cache of its own")


def mapped() -> int:
    """Returns the bytes of this process's pinned memory, as the system counts them."""
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "tenure-pinned" in line]
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    return sum(last - first for first, last in ranges)


def install_only(**options: Any) -> None:
    os.environ["TENURE_CUDART_CLOCK"] = "virtual"
    tenure.torch.install(**options)


def install(**options: Any) -> None:
    """Installs Tenure, and starts CUDA, without which PyTorch has no figures."""
    install_only(**options)
    torch.cuda.init()


def pinned(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, pin_memory=True)


@pytest.mark.parametrize(
    "sizes",
    [[33 * MIB], [9 * MIB] * 97, [1 + i * i * 7919 % (40 * MIB) for i in range(300)]],
    ids=["one", "equal", "odd"],
)
def test_pinned_memory_takes_the_bytes_that_were_asked_for(sizes: list[int]) -> None:
    install()
    tensors = [pinned(size) for size in sizes]
    assert all(tensor.is_pinned() for tensor in tensors)
    assert mapped() <= 1.01 * sum(sizes)
    figures = torch.cuda.host_memory_stats()
    assert figures["allocated_bytes.current"] == mapped()
    assert sum(sizes) <= figures["active_bytes.current"] <= mapped()
    assert figures["active_requests.current"] == len(sizes)
    del tensors
    assert torch.cuda.host_memory_stats()["active_bytes.current"] == 0
    torch._C._host_emptyCache()
    assert mapped() == torch.cuda.host_memory_stats()["allocated_bytes.current"] == 0
    assert figures["num_host_alloc"] == torch.cuda.host_memory_stats()["num_host_free"]


def test_steps_of_the_same_sizes_pin_nothing_after_the_first() -> None:
    install()
    for step in range(5):
        tensors = [pinned(size * 123_457) for size in range(1, 80)]
        del tensors
        if step == 0:
            after_first = torch.cuda.host_memory_stats()["num_host_alloc"]
    assert torch.cuda.host_memory_stats()["num_host_alloc"] == after_first


def test_a_tensor_freed_under_a_copy_is_not_given_again_before_the_copy_is_done() -> None:
    install()
    streams = [torch.cuda.Stream(), torch.cuda.current_stream()]
    for stream in streams:
        source = pinned(3 * MIB).fill_(7)
        address = source.data_ptr()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000_000)
            copy = source.to("cuda", non_blocking=True)
        del source
        others = [pinned(3 * MIB).fill_(9) for _ in range(3)]
        assert address not in [other.data_ptr() for other in others]
        stream.synchronize()
        del copy
        again = [pinned(3 * MIB) for _ in range(4)]
        assert address in [other.data_ptr() for other in again]


def test_a_view_and_a_copy_from_it_count_for_the_whole_tensor() -> None:
    install()
    source = pinned(4 * MIB).fill_(3)
    address = source.data_ptr()
    view = source[MIB : 2 * MIB]
    assert view.is_pinned()
    torch.cuda._sleep(1_000_000_000)
    copy = view.to("cuda", non_blocking=True)
    del source, view
    assert pinned(4 * MIB).data_ptr() != address
    assert not torch.cuda.current_stream().query()
    del copy


def test_data_loaders_pin_what_forked_workers_make() -> None:
    install()
    held = torch.arange(5000).pin_memory()
    # The dataset's own tensor is pinned, and read by the workers.
    loader = DataLoader(TensorDataset(held), batch_size=100, num_workers=2, pin_memory=True)
    seen = []
    for (batch,) in loader:
        assert batch.is_pinned()
        seen += batch.cuda(non_blocking=True).tolist()
    assert seen == list(range(5000))


def test_a_forked_child_reads_pinned_memory_and_frees_none_of_it() -> None:
    install()
    held = torch.arange(1000).pin_memory()
    child = os.fork()
    if child == 0:
        right = held.tolist() == list(range(1000))
        del held
        gc.collect()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held.tolist() == list(range(1000))


def test_a_child_that_starts_cuda_itself_frees_what_it_pins() -> None:
    install_only()
    child = os.fork()
    if child == 0:
        torch.cuda.init()
        for _ in range(5):
            tensor = pinned(10 * MIB)
            del tensor
        os._exit(0 if mapped() == 10 * MIB else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_of_a_process_that_has_pinned_memory_pins_none() -> None:
    install()
    freed = pinned(5 * MIB)
    del freed
    child = os.fork()
    if child == 0:
        try:
            pinned(5 * MIB)
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_tensor_freed_during_a_capture_comes_back_after_its_graph() -> None:
    install()
    side = torch.cuda.Stream()
    target = torch.zeros(1000, dtype=torch.uint8, device="cuda")
    for _ in range(5):
        source = pinned(4 * MIB)
        with torch.cuda.stream(side):
            source.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            target.fill_(1)
            del source
        del graph
    assert torch.cuda.host_memory_stats()["active_bytes.peak"] <= 8 * MIB
    torch._C._host_emptyCache()
    assert mapped() == 0


def test_dead_graphs_hold_no_pinned_memory_when_the_next_begins() -> None:
    install()
    target = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()
    for _ in range(5):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            graph.capture_begin()
            target.copy_(pinned(8 * MIB), non_blocking=True)
            graph.capture_end()
        del graph
    assert torch.cuda.host_memory_stats()["active_bytes.current"] <= 8 * MIB


def test_a_graph_keeps_the_pinned_memory_that_it_copies_from() -> None:
    install()
    target = torch.zeros(1000, dtype=torch.uint8, device="cuda")
    source = pinned(1000).fill_(5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source, non_blocking=True)
    address = source.data_ptr()
    del source
    others = [pinned(1000).fill_(6) for _ in range(4)]
    assert address not in [other.data_ptr() for other in others]
    graph.replay()
    assert target.tolist() == [5] * 1000
    del graph, others
    gc.collect()
    torch._C._host_emptyCache()
    assert mapped() == 0


def test_pinned_memory_within_a_capture_is_the_graphs() -> None:
    install()
    target = torch.zeros(1000, dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        source = pinned(1000).fill_(5)
        target.copy_(source, non_blocking=True)
        address = source.data_ptr()
        del source
        assert pinned(1000).data_ptr() != address
    others = [pinned(1000).fill_(6) for _ in range(4)]
    assert address not in [other.data_ptr() for other in others]
    graph.replay()
    assert target.tolist() == [5] * 1000
    del graph, others
    torch._C._host_emptyCache()
    assert mapped() == 0


def test_an_invalid_capture_leaves_no_pinned_memory_behind() -> None:
    install()
    for _ in range(3):
        with pytest.raises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.ones(4, device="cuda").copy_(pinned(4), non_blocking=True)
            torch.cuda.synchronize()
    gc.collect()
    torch._C._host_emptyCache()
    assert mapped() == 0
    source = pinned(3 * MIB)
    address = source.data_ptr()
    source.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    del source
    assert pinned(3 * MIB).data_ptr() == address


def test_no_more_is_cached_than_was_said() -> None:
    install(pinned_cache="16MiB")
    tensors = [pinned(5 * MIB) for _ in range(10)]
    del tensors
    assert mapped() == 15 * MIB
    tensors = [pinned(5 * MIB) for _ in range(10)]
    for tensor in tensors:
        tensor.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    del tensors, tensor
    assert mapped() == 15 * MIB


def test_reports_name_who_pins_host_memory(tmp_path: Path) -> None:
    install()
    held = pinned(5 * MIB + 1)
    report = tenure.torch.report(format="json")
    assert report["pinned"] == [
        {
            "user": "PyTorch",
            "requested_bytes": held.nbytes,
            "used_bytes": 5 * MIB + 4096,
            "pinned_bytes": 5 * MIB + 4096,
        }
    ]
    assert "Pinned host memory" in tenure.torch.report(tmp_path / "memory.html").read_text()


def test_peaks_and_sums_are_reset_apart() -> None:
    install()
    del [pinned(8 * MIB)][0]
    torch._C._host_emptyCache()
    assert torch.cuda.host_memory_stats()["allocated_bytes.peak"] == 8 * MIB
    torch.cuda.reset_peak_host_memory_stats()
    assert torch.cuda.host_memory_stats()["allocated_bytes.peak"] == 0
    assert torch.cuda.host_memory_stats()["allocated_bytes.freed"] == 8 * MIB
    torch.cuda.reset_accumulated_host_memory_stats()
    assert torch.cuda.host_memory_stats()["allocated_bytes.freed"] == 0


HAS_HISTORY = "record_pinned_host_memory" in inspect.signature(torch.cuda.memory._record_memory_history).parameters


@pytest.mark.skipif(not HAS_HISTORY, reason="this PyTorch has no history of pinned memory")
def test_histories_and_snapshots_have_pinned_memory() -> None:
    install()
    torch.cuda.memory._record_memory_history(stacks="python", record_pinned_host_memory=True)
    first, second = pinned(3 * MIB), pinned(5 * MIB)
    address = first.data_ptr()
    del first
    snapshot = torch.cuda.memory._snapshot()
    blocks = {block["address"]: block for block in snapshot["host_segments"]}
    assert (blocks[address]["total_size"], blocks[second.data_ptr()]["total_size"]) == (3 * MIB, 5 * MIB)
    events = [entry["action"] for entry in snapshot["host_traces"] if entry["addr"] == address]
    assert events == ["segment_alloc", "alloc", "free_requested", "free_completed"]
    (begun,) = [entry for entry in snapshot["host_traces"] if entry["action"] == "alloc" and entry["addr"] == address]
    assert any(frame["name"].startswith("test_histories") for frame in begun["frames"])
