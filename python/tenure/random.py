"""Random numbers: the seed and the state of the generator of operations that are given none."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from tenure._native import Generator, Tensor, default_generator, tensor, uint8

__all__ = ["fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]


def manual_seed(seed: int) -> Generator:
    """Moves the default generator to the beginning of a seed's sequence, and returns it.

    Parameters
    ----------
    seed : int
        From -2**63 up to 2**64 - 1; a negative number stands for itself plus 2**64.
    """
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"the seed {seed} is not from -2**63 up to 2**64 - 1")
    return default_generator().manual_seed(seed % 2**64)


def seed() -> int:
    """Seeds the default generator with a number that the system chooses, and returns the number."""
    chosen = int.from_bytes(os.urandom(8), "little")
    manual_seed(chosen)
    return chosen


def initial_seed() -> int:
    """Returns the seed of the default generator."""
    found: int = default_generator().initial_seed()
    return found


def get_rng_state() -> Tensor:
    """Returns the default generator's state, as a tensor of bytes."""
    return tensor(list(struct.pack("<QQ", *default_generator().get_state())), dtype=uint8)


def set_rng_state(new_state: Tensor) -> None:
    """Sets the default generator's state to `new_state`, which `get_rng_state` returned."""
    if new_state.dtype is not uint8 or new_state.shape != (16,):
        raise TypeError(f"a state has 16 elements of uint8, not {list(new_state.shape)} of {new_state.dtype}")
    default_generator().set_state(struct.unpack("<QQ", bytes(new_state.tolist())))


@contextmanager
def fork_rng(enabled: bool = True) -> Iterator[None]:
    """Restores the default generator's state when the block ends.

    Parameters
    ----------
    enabled : bool, default True
        If false, the block runs as if it were not within `fork_rng`.

    Examples
    --------
    >>> import tenure
    >>> _ = tenure.manual_seed(3)
    >>> with tenure.random.fork_rng():
    ...     first = tenure.rand(2)
    >>> tenure.equal(tenure.rand(2), first)
    True
    """
    if not enabled:
        yield
        return
    generator = default_generator()
    state = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(state)
