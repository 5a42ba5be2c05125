"""Tests of `tenure.random` and `tenure.frombuffer`."""

from __future__ import annotations

import gc

import pytest

import tenure


def test_a_seed_and_a_state_repeat_the_numbers() -> None:
    assert tenure.manual_seed(-1).initial_seed() == 2**64 - 1
    tenure.manual_seed(5)
    assert tenure.initial_seed() == 5
    tenure.rand(3)
    state = tenure.get_rng_state()
    first = tenure.rand(4)
    tenure.set_rng_state(state)
    assert tenure.equal(tenure.rand(4), first)
    assert tenure.seed() == tenure.initial_seed() != 5


def test_random_numbers_in_a_fork_do_not_count() -> None:
    tenure.manual_seed(5)
    expected = tenure.rand(4)
    tenure.manual_seed(5)
    with pytest.raises(KeyError), tenure.random.fork_rng():
        tenure.rand(100)
        raise KeyError
    assert tenure.equal(tenure.rand(4), expected)


def test_a_state_of_other_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="16 elements"):
        tenure.set_rng_state(tenure.zeros(3))
    with pytest.raises(ValueError, match="seed"):
        tenure.manual_seed(2**64)


@pytest.mark.parametrize(
    "name",
    ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"],
)
def test_a_buffers_tensor_has_the_numbers_that_pytorch_finds(name: str) -> None:
    torch = pytest.importorskip("torch")
    content = bytearray([1, 0, 1, 0, 1, 1, 0, 0] * 3)
    ours = tenure.frombuffer(content, dtype=getattr(tenure, name), offset=8)
    theirs = torch.frombuffer(content, dtype=getattr(torch, name), offset=8)
    assert ours.tolist() == theirs.tolist()


def test_a_tensor_on_a_buffer_shares_its_bytes_and_keeps_it() -> None:
    content = bytearray(8)
    tensor = tenure.frombuffer(content, dtype=tenure.int32, count=1, offset=4)
    tensor.fill_(258)
    assert content == bytearray([0, 0, 0, 0, 2, 1, 0, 0])
    with pytest.raises(BufferError):
        content.append(1)
    del tensor
    gc.collect()
    content.append(1)


def test_a_read_only_buffer_is_copied() -> None:
    content = b"\1\2"
    tensor = tenure.frombuffer(content, dtype=tenure.uint8)
    tensor += 1
    assert tensor.tolist() == [2, 3]
    assert content == b"\1\2"


def test_tensors_on_buffers_may_go_while_an_exception_is_raised() -> None:
    def failing() -> None:
        tensor = tenure.frombuffer(bytearray(4))
        raise KeyError(tensor.numel())

    with pytest.raises(KeyError, match="1"):
        failing()
    gc.collect()


@pytest.mark.parametrize(
    ("size", "count", "offset", "message"),
    [(0, -1, 0, "must not be 0"), (8, 0, 0, "must not be 0"), (8, -1, 8, "offset"), (8, -1, -1, "offset"),
     (7, -1, 0, "whole number"), (8, 3, 0, "3 elements")],
)  # fmt: skip
def test_elements_beyond_a_buffer_are_refused(size: int, count: int, offset: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tenure.frombuffer(bytearray(size), dtype=tenure.int32, count=count, offset=offset)
