"""Blocks that several streams use."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .memory import tensor


def busy(stream: torch.cuda.Stream) -> None:
    """Keeps a stream busy: on the simulated CUDA until a thread waits for it, on a GPU for some tenths of a second."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)


def test_a_stream_reuses_its_own_memory_at_once() -> None:
    """Covers TestCuda.test_record_stream."""
    with torch.cuda.stream(torch.cuda.Stream()):
        first = tensor(512)
        address = first.data_ptr()
        del first
        assert tensor(512).data_ptr() == address


def test_memory_is_not_reused_before_another_stream_has_passed() -> None:
    """Covers TestCuda.test_record_stream."""
    owner, user = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(owner):
        block = tensor(512)
    busy(user)
    block.record_stream(user)
    address = block.data_ptr()
    del block
    with torch.cuda.stream(owner):
        assert tensor(512).data_ptr() != address or user.query()


def test_memory_is_reused_when_the_other_stream_has_passed() -> None:
    """Covers TestCuda.test_record_stream."""
    owner, user = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(owner):
        block = tensor(512)
    block.record_stream(user)
    address = block.data_ptr()
    del block
    torch.cuda.synchronize()
    with torch.cuda.stream(owner):
        assert tensor(512).data_ptr() == address


def test_a_view_s_use_keeps_the_block() -> None:
    """Covers TestCuda.test_record_stream_on_shifted_view."""
    owner, user = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(owner):
        block = tensor(512)
    view = block[256:]
    busy(user)
    view.record_stream(user)
    address = block.data_ptr()
    del block, view
    with torch.cuda.stream(owner):
        assert tensor(512).data_ptr() != address or user.query()


def test_a_copy_on_another_stream_is_whole() -> None:
    """Covers TestCuda.test_record_stream."""
    stream = torch.cuda.Stream()
    source = torch.arange(4.0).pin_memory()
    result = torch.empty(4, device="cuda")
    with torch.cuda.stream(stream):
        block = source.cuda(non_blocking=True)
    torch.cuda.current_stream().wait_stream(stream)
    block.record_stream(torch.cuda.current_stream())
    busy(torch.cuda.current_stream())
    result.copy_(block)
    del block
    with torch.cuda.stream(stream):
        torch.zeros(4, device="cuda")
    assert result.tolist() == [0, 1, 2, 3]


class _Doubled(torch.autograd.Function):
    """A function whose backward checks that autograd runs it on the stream of its forward."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.stream = torch.cuda.current_stream()
        return value * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        assert torch.cuda.current_stream() == ctx.stream
        torch.cuda._sleep(5_000_000)
        return gradient * 2


@pytest.mark.values
@pytest.mark.parametrize("iterations", [1, 5])
def test_gradients_of_several_streams_are_whole(iterations: int) -> None:
    """Covers TestCuda.test_streaming_backwards_sync, .test_streaming_backwards_multiple_streams,
    .test_streaming_backwards_sync_graph_root, .test_streaming_backwards_callback."""
    streams, ambient = [torch.cuda.Stream() for _ in range(2)], torch.cuda.Stream()
    leaf = torch.ones(1000, device="cuda", requires_grad=True)
    ambient.wait_stream(torch.cuda.current_stream())
    for _ in range(iterations):
        with torch.cuda.stream(ambient):
            results = []
            for stream in streams:
                stream.wait_stream(ambient)
                with torch.cuda.stream(stream):
                    results.append(_Doubled.apply(leaf))
                ambient.wait_stream(stream)
            seed = torch.full((1000,), 3.0, device="cuda")
            torch.autograd.backward(results[0] + results[1], seed)
            # Backward may still use the tensors when they are freed and overwritten, unless record_stream keeps them.
            for result in results:
                result.record_stream(ambient)
            del results, seed
            torch.full((1000,), 7.0, device="cuda")
    torch.cuda.current_stream().wait_stream(ambient)
    assert leaf.grad is not None
    assert leaf.grad.eq(12.0 * iterations).all()
