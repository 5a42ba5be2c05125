"""Random numbers: the seeds and the states of the generators of operations that are given none.

Each device has a generator of its own, as in PyTorch. `manual_seed` and `seed` are for all devices, the other functions
for the CPU; `tenure.cuda` has those for GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tenure import _native
from tenure._native import Generator, Tensor

__all__ = ["fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]

#: The CPU's default generator.
default_generator: Generator = _native.default_generator("cpu")


def manual_seed(seed: int) -> Generator:
    """Moves the default generators of all devices to the beginning of a seed's sequence, and returns the CPU's.

    Parameters
    ----------
    seed : int
        From -2**63 up to 2**64 - 1; a negative number stands for itself plus 2**64.
    """
    _native.manual_seed(seed)
    return default_generator


def seed() -> int:
    """Seeds the default generators of all devices with a number that the system chooses, and returns the number."""
    chosen = default_generator.seed()
    manual_seed(chosen)
    return chosen


def initial_seed() -> int:
    """Returns the seed of the CPU's default generator."""
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """Returns the state of the CPU's default generator, as a tensor of bytes."""
    return default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Sets the state of the CPU's default generator to `new_state`, which `get_rng_state` returned."""
    default_generator.set_state(new_state)


@contextmanager
def fork_rng(
    devices: Iterable[_native.device | str | int] | None = None, enabled: bool = True, *, device_type: str = "cuda"
) -> Iterator[None]:
    """Restores the states of the CPU's and of GPUs' default generators when the block ends.

    Parameters
    ----------
    devices : iterable of device, str or int, default None
        The GPUs. None stands for all.
    enabled : bool, default True
        If false, the block runs as if it were not within `fork_rng`.
    device_type : str, default "cuda"
        The type of the devices that numbers stand for.

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
    if devices is None:
        states = _native.DefaultStates()
        try:
            yield
        finally:
            states.restore()
        return
    if device_type != "cuda":
        raise ValueError(f"device_type={device_type!r}: the devices of fork_rng are of type 'cuda'")
    named = [f"{device_type}:{device}" if isinstance(device, int) else device for device in devices]
    generators = [default_generator, *map(_native.default_generator, named)]
    before = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
