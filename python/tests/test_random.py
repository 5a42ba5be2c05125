"""Tests of `tenure.random`."""

from __future__ import annotations

import copy
import pickle

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


def test_a_generator_has_the_methods_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    generator = tenure.Generator()
    assert generator.initial_seed() == torch.Generator().initial_seed()
    assert generator.manual_seed(-2) is generator
    assert generator.initial_seed() == 2**64 - 2
    tenure.rand(3, generator=generator)
    copy = generator.clone_state()
    state = generator.get_state()
    assert state.dtype is tenure.uint8
    first = tenure.rand(3, generator=generator)
    assert tenure.equal(tenure.rand(3, generator=copy), first)
    generator.set_state(state)
    assert tenure.equal(tenure.rand(3, generator=generator), first)
    assert generator.seed() == generator.initial_seed() != 2**64 - 2
    assert tenure.default_generator.initial_seed() == tenure.initial_seed()


def test_generators_are_copied_and_pickled_with_their_states() -> None:
    generator = tenure.Generator().manual_seed(5)
    tenure.rand(3, generator=generator)
    copies = [copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))]
    expected = tenure.rand(3, generator=generator)
    for each in copies:
        assert tenure.equal(tenure.rand(3, generator=each), expected)


# Where there is a GPU, this opens its driver: processes that later tests fork could not use it.
@pytest.mark.own_process
def test_devices_that_there_are_not_have_no_state() -> None:
    with pytest.raises((tenure.Error, RuntimeError)):
        tenure.cuda.get_rng_state(63)
    with pytest.raises((tenure.Error, RuntimeError)):
        tenure.cuda.set_rng_state(tenure.get_rng_state(), 63)
    with pytest.raises(ValueError, match="device_type='xpu'"), tenure.random.fork_rng(devices=[0], device_type="xpu"):
        pass
