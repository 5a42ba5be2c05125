"""Random programs within a budget of a simulated GPU's memory: the same bits, and never more bytes than the budget."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

# Optimizers import this at their first step. It is imported once here: tests are forks of this process.
import torch._dynamo

import tenure
import tenure.torch

from ..budget_programs import MIB, Program, larger
from .switching import computing

#: The seeds of the programs. TENURE_BUDGET_PROGRAMS=500 tests more.
SEEDS = range(int(os.environ.get("TENURE_BUDGET_PROGRAMS", "4")))


def held() -> int:
    """Returns the bytes that are allocated, without those of passes that failed.

    A backward pass runs on a thread of PyTorch's. If it fails, the program may go on before this thread releases the
    exception, whose frames hold all that the program holds. The next pass runs on the same thread, after the release.
    """
    torch.ones(1, device="cuda", requires_grad=True).sum().backward()
    gc.collect()
    return torch.cuda.memory_allocated()


def trained(seed: int, memory: int | str, folder: Path) -> list[bytes]:
    """Returns the bits that a program computes within a budget, and checks that it never holds more."""
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
        # Each step keeps to the budget from the next cycle on.
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
        before = held()
        computed = None
        while computed is None:
            try:
                computed = trained(seed, memory, tmp_path)
            except (tenure.Error, torch.OutOfMemoryError) as error:
                # Raises the budget by as little as suffices.
                memory = larger(error, memory)
            assert held() <= before, f"something is left: {memory}: {what}"
    assert computed == expected, f"{memory}: {what}"
