"""Random programs of tensors free what they use: at once, or with the garbage collector where they made cycles.

`TENURE_PROGRAM=SEED pytest -s` runs the program of one seed, and says which steps it takes.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from .random_programs.cycles import CYCLES  # noqa: E402
from .random_programs.pool import live_bytes  # noqa: E402
from .random_programs.runner import live_tensors, run_program, without_collector  # noqa: E402

PROGRAM = os.environ.get("TENURE_PROGRAM")
PROGRAMS = int(os.environ.get("TENURE_PROGRAMS", "300"))
#: The programs from which on the process must have all the memory that it ever needs.
MANY = 5000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_random_programs_free_what_they_use_on_time() -> None:
    resident = []
    with without_collector():
        for seed in range(PROGRAMS) if PROGRAM is None else [int(PROGRAM)]:
            run_program(seed, (lambda _: None) if PROGRAM is None else print)
            assert live_tensors() == 0, f"program {seed} leaves tensors"
            if seed % 100 == 99:
                gc.collect()
                resident.append(resident_bytes())
    if PROGRAMS >= MANY:
        half = len(resident) // 2
        growth = max(resident[half + half // 2 :]) - max(resident[half : half + half // 2])
        assert growth < 4 << 20, f"{growth} bytes more in the last quarter: {resident}"


@pytest.mark.parametrize("make", CYCLES, ids=lambda make: make.__name__)
def test_a_collection_frees_tensors_in_reference_cycles(make: Callable[[], None]) -> None:
    with without_collector():
        before = live_bytes()
        make()
        assert live_tensors() > 0
        gc.collect()
        assert (live_tensors(), live_bytes()) == (0, before)
