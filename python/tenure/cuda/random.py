"""Random numbers on GPUs: the seeds and the states of their default generators.

Each GPU has a generator of its own, as in PyTorch. A function that is given no device is for the current one.
"""

from __future__ import annotations

from collections.abc import Iterable

from tenure import _native
from tenure._native import Generator, Tensor
from tenure.cuda._devices import DeviceLike, device_count, index_of

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _generator(device: DeviceLike) -> Generator:
    return _native.default_generator(f"cuda:{index_of(device)}")


def _generator_of_existing(device: DeviceLike) -> Generator:
    """Returns the generator of a GPU, or raises an error if there is no such GPU."""
    _native.check_cuda_device(index_of(device))
    return _generator(device)


def _generators() -> tuple[Generator, ...]:
    return tuple(_generator(index) for index in range(device_count()))


def manual_seed(seed: int) -> None:
    """Moves the current GPU's generator to the beginning of a seed's sequence."""
    _generator(None).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Moves the generators of all GPUs to the beginning of a seed's sequence."""
    for generator in _generators():
        generator.manual_seed(seed)


def seed() -> None:
    """Seeds the current GPU's generator with a number that the system chooses."""
    _generator(None).seed()


def seed_all() -> None:
    """Seeds the generators of all GPUs with one number that the system chooses."""
    manual_seed_all(Generator().seed())


def initial_seed() -> int:
    """Returns the seed of the current GPU's generator."""
    return _generator(None).initial_seed()


def get_rng_state(device: DeviceLike = "cuda") -> Tensor:
    """Returns the state of a GPU's generator, as a tensor of bytes on the CPU."""
    return _generator_of_existing(device).get_state()


def get_rng_state_all() -> list[Tensor]:
    """Returns the states of the generators of all GPUs."""
    return [generator.get_state() for generator in _generators()]


def set_rng_state(new_state: Tensor, device: DeviceLike = "cuda") -> None:
    """Sets the state of a GPU's generator to one that `get_rng_state` returned."""
    _generator_of_existing(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Sets the states of the GPUs' generators to those that `get_rng_state_all` returned."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
