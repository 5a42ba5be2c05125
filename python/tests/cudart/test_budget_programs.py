"""Random programs within a budget of a simulated GPU's memory: the same to the bit, and never more than the budget."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from budget_programs import MIB, Program, larger
from switching import computing

import tenure
import tenure.torch

#: TENURE_BUDGET_PROGRAMS=500 tests more.
SEEDS = range(int(os.environ.get("TENURE_BUDGET_PROGRAMS", "4")))


def trained(seed: int, memory: int | str, folder: Path) -> list[bytes]:
    """What a program computes within a budget, of which no more is ever held."""
    program = Program(seed, "cuda")
    budget = tenure.torch.budget(program.budgeted, memory, spill=folder, spill_bytes=64 * MIB, host_bytes=256 * MIB)
    is_known = False

    def after() -> None:
        nonlocal is_known
        if program.asks:
            budget.report()
        if is_known:
            peak = torch.cuda.max_memory_allocated()
            assert budget.bytes is not None and peak <= budget.bytes, f"{peak} of {budget.bytes} bytes: {program}"
        # From the next cycle on, each step keeps to it.
        is_known = budget.bytes is not None
        torch.cuda.reset_peak_memory_stats()

    with budget:
        program.run(after=after)
        assert budget.report() is not None, f"no step was seen: {program}"
    return program.bits()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_is_as_without(seed: int, tmp_path: Path) -> None:
    tenure.torch.install()
    torch.use_deterministic_algorithms(True)
    choose = random.Random(-1 - seed)
    memory: Any = choose.choice([f"{choose.randint(30, 90)}%", f"{choose.randint(30, 90)}%", "100%", 512 * MIB])
    with computing():
        plain = Program(seed, "cuda")
        plain.run()
        expected, what = plain.bits(), str(plain)
        del plain
        gc.collect()
        before = torch.cuda.memory_allocated()
        while True:
            try:
                assert trained(seed, memory, tmp_path) == expected, f"{memory}: {what}"
                break
            except tenure.Error as error:
                # As little as will do.
                memory = larger(error)
    gc.collect()
    assert torch.cuda.memory_allocated() <= before, f"something is left: {what}"
