"""Requests that fail for want of memory, and limits."""

from __future__ import annotations

import re

import pytest
import torch

from .memory import MIB, capture, limit, tensor


def test_the_error_says_what_was_asked_for_and_what_there_is() -> None:
    """Covers TestCuda.test_out_of_memory, TestCudaMallocAsync.test_raises_oom."""
    with pytest.raises(
        torch.OutOfMemoryError, match=r"Tried to allocate 800000000\.00 GiB\. GPU 0 has a total capacity of"
    ):
        tensor(800_000_000 << 30)


def size(name: str) -> str:
    return rf"(?P<{name}>[\d.]+ (?:bytes|KiB|MiB|GiB))"


WORDS = (
    rf"^CUDA out of memory\. Tried to allocate {size('requested')}\. GPU 0 has a total capacity of {size('total')} of "
    rf"which {size('free')} is free\. "
    r"(?:(?:Including non-PyTorch memory, this process|Process \d+) has [\d.]+ \w+ memory in use\. )*"
    rf"{size('allowed')} allowed; Of the allocated memory {size('allocated')} is allocated by PyTorch, "
    rf"(?:with {size('pools')} allocated in private pools \(e\.g\., CUDA Graphs\), )?"
    rf"and {size('unallocated')} is reserved by PyTorch but unallocated\. "
    r"If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    r"avoid fragmentation\.  See documentation for Memory Management  \(https://docs\.pytorch\.org/docs/stable/notes/cuda\.html#"
    r"optimizing-memory-usage-with-pytorch-cuda-alloc-conf\)"
)


@pytest.mark.skipif(not torch.__version__.startswith("2.11."), reason="these are the words of 2.11")
def test_the_error_has_all_of_pytorch_s_words() -> None:
    limit(200 * MIB)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor(40 * MIB)
    held = tensor(80 * MIB)
    with pytest.raises(torch.OutOfMemoryError) as error:
        tensor(160 * MIB)
    said = re.match(WORDS, str(error.value))
    assert said is not None, error.value
    assert (said["requested"], said["pools"], said["unallocated"]) == ("160.00 MiB", "40.00 MiB", "0 bytes")
    assert said["allocated"] == f"{torch.cuda.memory_allocated() / MIB + 40:.2f} MiB"
    del held, pool


def test_no_device_has_an_exbibyte() -> None:
    """Covers TestCuda.test_out_of_memory."""
    with pytest.raises(RuntimeError, match="Tried to allocate more than 1EB memory"):
        tensor(8_000_000_000 << 30)


def test_after_the_error_all_goes_on() -> None:
    """Covers TestCuda.test_out_of_memory, TestCuda.test_out_of_memory_retry."""
    half = torch.cuda.get_device_properties(0).total_memory // 2
    reserved = torch.cuda.memory_reserved()
    first = tensor(half)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        tensor(half + MIB)
    assert torch.cuda.memory_reserved() >= reserved + half
    del first
    assert tensor(half).numel() == half


def test_cached_memory_is_given_back_before_the_error() -> None:
    """Other processes may need it."""
    reserved = torch.cuda.memory_reserved()
    tensor(200 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        tensor(1 << 42)
    assert torch.cuda.memory_reserved() <= reserved


def test_cached_memory_of_another_shape_is_given_up_for_a_request() -> None:
    """Covers TestCuda.test_out_of_memory_retry, TestCudaMallocAsync.test_max_split_expandable."""
    limit(120 * MIB)
    held = [tensor(40 * MIB) for _ in range(3)]
    with pytest.raises(torch.OutOfMemoryError):
        tensor(40 * MIB)
    held.clear()
    assert tensor(120 * MIB).numel() == 120 * MIB


def test_a_fraction_limits_what_is_reserved() -> None:
    """Covers TestCuda.test_set_per_process_memory_fraction."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.5)
    tensor(int(total * 0.499) - torch.cuda.memory_reserved())
    torch.cuda.empty_cache()
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        tensor(total // 2 + 2 * MIB)


def test_a_fraction_is_read_back_as_it_was_set() -> None:
    """Covers TestCuda.test_get_per_process_memory_fraction."""
    for fraction in (0.0, 0.1, 1 / 3, 1.0):
        torch.cuda.set_per_process_memory_fraction(fraction)
        assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(fraction, abs=1e-9)


@pytest.mark.parametrize("fraction", [-0.1, 2.0])
def test_a_fraction_lies_between_nothing_and_all(fraction: float) -> None:
    """Covers TestCuda.test_set_per_process_memory_fraction."""
    with pytest.raises(ValueError, match="Invalid fraction value"):
        torch.cuda.set_per_process_memory_fraction(fraction)


def test_observers_are_told_first() -> None:
    """Covers TestCudaMallocAsync.test_notifies_oom."""
    seen: list[tuple[int, int, int, int]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *arguments: seen.append(arguments))
    with pytest.raises(torch.OutOfMemoryError):
        tensor(1 << 42)
    device, asked, total, free = seen[0]
    assert (device, total) == (0, torch.cuda.mem_get_info()[1])
    assert asked >= 1 << 42
    assert 0 <= free <= total


def test_a_request_beyond_the_configured_fraction_is_rejected() -> None:
    """Covers TestCuda.test_throw_on_cudamalloc_oom: the driver is never asked for more than the configured fraction."""
    if "num_oom_rejections" not in torch.cuda.memory_stats():
        pytest.skip("this PyTorch has no such setting")
    total = torch.cuda.mem_get_info()[1]
    fraction = (torch.cuda.memory_reserved() + 200 * MIB) / total
    torch.cuda.memory._set_allocator_settings(f"per_process_memory_fraction:{fraction},throw_on_cudamalloc_oom:True")
    torch.cuda.set_per_process_memory_fraction(1.0)
    held = tensor(100 * MIB)
    ooms = torch.cuda.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError):
        tensor(150 * MIB)
    stats = torch.cuda.memory_stats()
    assert (stats["num_oom_rejections"], stats["num_ooms"]) == (1, ooms)
    torch.cuda.memory._set_allocator_settings("throw_on_cudamalloc_oom:False")
    assert tensor(150 * MIB).numel() == 150 * MIB
    del held


def test_an_error_of_an_observer_reaches_the_program() -> None:
    raising = [ValueError("the observer's")]

    def observe(*_: int) -> None:
        if raising:
            raise raising.pop()

    torch._C._cuda_attach_out_of_memory_observer(observe)
    with pytest.raises(ValueError, match="the observer's"):
        tensor(1 << 42)
    with pytest.raises(torch.OutOfMemoryError):
        tensor(1 << 42)


def test_a_capture_that_runs_out_of_memory_says_so() -> None:
    """Covers TestCuda.test_graph_capture_oom."""
    with pytest.raises(RuntimeError, match="out of memory"):
        capture(lambda: tensor(1 << 42))
    graph, result = capture(lambda: tensor(512))
    assert result.numel() == 512


def test_memory_that_waits_for_a_stream_is_waited_for() -> None:
    """Covers TestCuda.test_caching_allocator_record_stream_oom."""
    limit(100 * MIB)
    stream = torch.cuda.Stream()
    for _ in range(50):
        block = tensor(40 * MIB)
        with torch.cuda.stream(stream):
            block.fill_(1)
        block.record_stream(stream)
        del block
