"""Random programs within a budget of the CPU's memory: they compute the same bits, and keep to the budget."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tenure  # noqa: E402
import tenure.torch  # noqa: E402

from .budget_programs import MIB, Program, larger  # noqa: E402

#: The seeds of the programs. TENURE_BUDGET_PROGRAMS=500 tests more.
SEEDS = range(int(os.environ.get("TENURE_BUDGET_PROGRAMS", "8")))


pytestmark = pytest.mark.usefixtures("deterministic")


def held(folder: Path) -> int:
    """Returns the bytes that are allocated when a step begins and ends, according to a fresh budget."""
    gc.collect()
    model = torch.nn.Linear(512, 512)
    with tenure.torch.budget(model, "100%", spill=folder, spill_bytes=16 * MIB) as budget:
        model(torch.ones(512, 512)).sum().backward()
        report = budget.report()
    assert report is not None and report.peak_bytes is not None
    return int(report.peak_bytes)


def memory_for(seed: int) -> int | str:
    choose = random.Random(-1 - seed)
    shares: list[int | str] = [f"{choose.randint(30, 90)}%", f"{choose.randint(30, 90)}%", "100%"]
    return choose.choice([*shares, 256 * MIB])


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_is_as_without(seed: int, tmp_path: Path) -> None:
    plain = Program(seed)
    plain.run()
    expected, what = plain.bits(), str(plain)
    del plain
    memory = memory_for(seed)
    while True:
        program = Program(seed)
        budget = tenure.torch.budget(program.budgeted, memory, spill=tmp_path, spill_bytes=64 * MIB)
        reports: list[Any] = []

        def after(program: Program = program, budget: Any = budget, reports: list[Any] = reports) -> None:
            if program.asks:
                reports.append(budget.report())

        try:
            with budget:
                program.run(after=after)
                reports.append(budget.report())
            break
        except (tenure.Error, torch.OutOfMemoryError) as error:
            # Raises the budget by as little as suffices.
            shares = [report.budget_bytes for report in filter(None, reports)]
            memory = larger(error, memory if isinstance(memory, int) else max(filter(None, shares), default=None))
        # Frees the memory of this attempt, which would count in the next one.
        del program, budget, after
        gc.collect()
    what = f"{what}, {memory}, {reports[-1]}"
    assert program.bits() == expected, what
    assert reports[-1] is not None, f"no step was seen: {what}"
    for report in filter(None, reports):
        if report.budget_bytes is not None and report.peak_bytes is not None:
            assert report.peak_bytes <= report.budget_bytes, f"{report}: {what}"


def test_programs_leave_nothing_behind(tmp_path: Path) -> None:
    """The bytes held return to what they were before, even if passes fail."""
    before = held(tmp_path)
    for seed in range(4):
        program = Program(seed)
        with tenure.torch.budget(program.budgeted, 256 * MIB, spill=tmp_path, spill_bytes=64 * MIB):
            program.run()
        del program
    assert held(tmp_path) <= before + MIB // 2
