# mypy: disallow-subclassing-any=False
"""Random numbers within a budget of a simulated GPU's memory.

Kernels compute nothing there, but PyTorch counts the numbers that they draw.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import tenure
import tenure.torch

MIB = 1 << 20


class Dropping(nn.Module):
    """Dropout and noise on tensors of 4 MiB, from operations with and without an argument for the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1024, device="cuda"))
        self.generator = torch.Generator("cuda").manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(6):
            x = nn.functional.dropout(x * self.weight, 0.5)
            x = x * torch.empty_like(x).normal_(generator=self.generator)
            x = x * torch.rand_like(x)
        return x


def drawn(model: Dropping, budget: Any = None) -> list[Tensor]:
    """Returns the states of the generators after each step."""
    torch.cuda.manual_seed(0)
    states = []
    for _ in range(5):
        model(torch.zeros(1024, 1024, device="cuda")).sum().backward()
        model.weight.grad = None
        states += [torch.cuda.get_rng_state(), model.generator.get_state()]
        if budget is not None and budget.report().is_planned:
            assert budget.report().recomputed_bytes > 0, budget.report()
    return states


def test_numbers_that_are_drawn_again_do_not_count() -> None:
    tenure.torch.install()
    expected = drawn(Dropping())
    model = Dropping()
    with tenure.torch.budget(model, "50%", host_bytes=8 * MIB) as budget:
        found = drawn(model, budget)
        report = budget.report()
    assert report is not None and report.is_planned
    assert len({bytes(state.numpy()) for state in expected}) == 10, "each step draws"
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
