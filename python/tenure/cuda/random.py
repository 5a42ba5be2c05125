"""Random numbers on devices.

All devices draw from the generator of `tenure.random`, as the CPU does. So these functions seed, save and restore that
one; a device given to them says nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable

from tenure import random
from tenure._native import Tensor
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


def manual_seed(seed: int) -> None:
    """Moves the generator to the beginning of a seed's sequence."""
    random.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Moves the generator to the beginning of a seed's sequence."""
    random.manual_seed(seed)


def seed() -> None:
    """Seeds the generator with a number that the system chooses."""
    random.seed()


def seed_all() -> None:
    """Seeds the generator with a number that the system chooses."""
    random.seed()


def initial_seed() -> int:
    """Returns the seed of the generator."""
    return random.initial_seed()


def get_rng_state(device: DeviceLike = "cuda") -> Tensor:
    """Returns the generator's state, as a tensor of bytes on the CPU."""
    index_of(device)
    return random.get_rng_state()


def get_rng_state_all() -> list[Tensor]:
    """Returns the generator's state once for each device."""
    return [random.get_rng_state() for _ in range(device_count())]


def set_rng_state(new_state: Tensor, device: DeviceLike = "cuda") -> None:
    """Sets the generator's state to one that `get_rng_state` returned."""
    index_of(device)
    random.set_rng_state(new_state)


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Sets the generator's state to the last of those that `get_rng_state_all` returned."""
    for state in new_states:
        random.set_rng_state(state)
