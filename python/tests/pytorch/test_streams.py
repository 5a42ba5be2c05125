"""Blocks that streams share."""

from __future__ import annotations

import torch
from memory import tensor


def busy(stream: torch.cuda.Stream) -> None:
    """Keeps a stream at work for some tenths of a second: on a busy machine it may end before the test looks."""
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
