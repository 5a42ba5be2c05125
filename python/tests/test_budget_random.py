# mypy: disallow-subclassing-any=False
"""Random numbers within a budget: they are drawn again with the same bits, and the program draws the same later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tenure.torch  # noqa: E402

from torch import nn  # noqa: E402  isort: skip

MIB = 1 << 20
STEPS = 6

pytestmark = pytest.mark.usefixtures("deterministic")


class Dropping(nn.Module):
    """Layers whose saved tensors are mostly dropout's: its masks, and its results."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(6))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = nn.functional.dropout(layer(x).tanh(), 0.2)
        return x


class Attending(nn.Module):
    """Attention with dropout, whose masks are as large as the table of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 192) for _ in range(4))

    def forward(self, x: Any) -> Any:
        x = x.view(128, 128, 64)
        for layer in self.layers:
            q, k, v = layer(x).chunk(3, -1)
            x = x + nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
        return x


class Noisy(nn.Module):
    """Noise of several kinds, from the default generator and from another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(4))
        self.generator = torch.Generator().manual_seed(11)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x).tanh()
            x = x * torch.rand_like(x)
            x = x * torch.bernoulli(x.detach().sigmoid(), generator=self.generator)
            x = x * torch.empty_like(x).normal_(1, 0.1, generator=self.generator)
        return x


def trained(model: Any, after_step: Callable[[], None] = lambda: None) -> list[Any]:
    """Returns gradients and losses, and numbers that the program draws after each step."""
    found = []
    for number in range(STEPS):
        torch.manual_seed(number)
        loss = model(torch.linspace(-1, 1, 8192 * 128).view(8192, 128)).square().mean()
        loss.backward()
        found += [loss.detach(), torch.randn(5), torch.get_rng_state()]
        found += [parameter.grad.clone() for parameter in model.parameters()]
        if isinstance(model, Noisy):
            found.append(model.generator.get_state())
        model.zero_grad()
        after_step()
    return found


@pytest.mark.parametrize("kind", [Dropping, Attending, Noisy])
def test_random_results_are_computed_again_and_the_program_draws_the_same(
    kind: Callable[[], Any], tmp_path: Path
) -> None:
    def made() -> Any:
        torch.manual_seed(0)
        return kind()

    expected = trained(made())
    reports = []
    # No tensor finds room on the disk, and what is not random is too little: without it, no plan keeps to the budget.
    with tenure.torch.budget(model := made(), "60%", spill=tmp_path, spill_bytes=2 * MIB) as budget:
        found = trained(model, lambda: reports.append(budget.report()))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    for report in reports[2:]:
        assert report is not None and report.is_planned and report.recomputed_bytes > report.spilled_bytes == 0, report


class Leaky(Dropping):
    """Activations of a random slope: autograd saves the slopes before they are drawn, with the version of before."""

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = nn.functional.rrelu(layer(x), training=True)
        return x


@pytest.mark.parametrize("moves_all", [True, False])
def test_bytes_that_are_written_after_they_were_saved_stay(moves_all: bool, tmp_path: Path) -> None:
    def made() -> Any:
        torch.manual_seed(0)
        return Leaky()

    expected = trained(made())
    reports = []
    with tenure.torch.budget(model := made(), 56 * MIB, spill=tmp_path, spill_bytes=256 * MIB) as budget:
        if moves_all:
            budget._native.move_all()
        found = trained(model, lambda: reports.append(budget.report()))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert all(report is not None and report.spilled_bytes > 0 for report in reports), reports
