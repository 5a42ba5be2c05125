"""Runs random programs, and checks that each leaves nothing behind."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy

import tenure
from tenure import Tensor

from . import graphs, steps
from .cycles import cycle
from .pool import Entry, Leaf, Memory, Pool, live_bytes

STEPS = [*steps.STEPS, *graphs.STEPS]


def live_tensors() -> int:
    """Returns the number of tensor objects of this program: `gc.freeze` keeps earlier ones apart."""
    return sum(isinstance(found, Tensor) for found in gc.get_objects())


@contextmanager
def without_collector() -> Iterator[None]:
    """Keeps the garbage collector off, and what exists apart, so that a collection takes little time."""
    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


def take_steps(pool: Pool, count: int, say: Callable[[str], None]) -> None:
    for _ in range(count):
        taken = pool.random.choice(STEPS)
        if not pool.entries:
            taken = steps.create
        say(taken.__name__)
        taken(pool)


def on_threads(pool: Pool, say: Callable[[str], None]) -> None:
    """Runs steps on threads, each of which has tensors that all read, a row of one tensor, and a leaf of all."""
    count = pool.random.randint(2, 4)
    rows = numpy.zeros((count, 6))
    board = Entry(tenure.zeros(count, 6, dtype=tenure.float64), rows, Memory(count * 48))
    of_all = Leaf(tenure.ones(3, dtype=tenure.float64, requires_grad=True), numpy.ones(3))
    pools = [Pool(random.Random(pool.random.random()), is_shared=True) for _ in range(count)]
    shared = pool.entries[:4]
    errors: list[BaseException] = []
    begin = threading.Barrier(count)

    def run(number: int, own: Pool) -> None:
        own.entries.append(steps.row_of(board, number))
        for entry in shared:
            array = entry.array.view()
            array.flags.writeable = False
            own.add(entry.tensor.view(entry.tensor.shape), array, entry.memory)
        try:
            begin.wait()
            take_steps(own, 6, lambda name: say(f"  {number} {name}"))
            for _ in range(3):
                (of_all.tensor * (number + 1)).sum().backward()
            own.check()
            while own.random.random() < 0.8 and own.entries:
                own.drop()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number, own)) for number, own in enumerate(pools)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    of_all.add(numpy.full(3, 3.0 * sum(range(count + 1))))
    board.check()
    of_all.check()
    for own in pools:
        pool.exports += own.exports
        pool.leaves += own.leaves
        pool.graphs += own.graphs
        # Threads' views of shared tensors have read-only arrays.
        pool.entries += own.entries


def run_steps(seed: int, say: Callable[[str], None]) -> bool:
    """Runs a program to its end. Returns whether it made reference cycles."""
    pool = Pool(random.Random(seed))
    take_steps(pool, pool.random.randint(4, 20), say)
    if pool.random.random() < 0.15:
        cycle(pool)
    if pool.random.random() < 0.2:
        on_threads(pool, say)
        take_steps(pool, 4, say)
    pool.check()
    pool.clear()
    return pool.has_cycles


def run_program(seed: int, say: Callable[[str], None] = lambda _: None) -> None:
    """Runs the program of a seed, and checks that all its memory and all its tensors are free afterwards.

    Raises
    ------
    AssertionError
        A value is wrong, or something is left. The message begins with the seed.
    """
    before = live_bytes()
    try:
        if run_steps(seed, say):
            gc.collect()
        assert live_bytes() == before, f"{live_bytes() - before} bytes are left"
    except Exception as error:
        raise AssertionError(f"program {seed} (TENURE_PROGRAM={seed} runs it alone): {error!r}") from error
