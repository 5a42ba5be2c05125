"""Tests of `tenure.random`."""

from __future__ import annotations

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
