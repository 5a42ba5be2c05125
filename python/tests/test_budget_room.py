# mypy: disallow-subclassing-any=False
"""Room in a budget: for recomputation, and for memory until its last owner frees it."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tenure.torch  # noqa: E402

from torch import nn  # noqa: E402  isort: skip

MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("deterministic")


class Chains(nn.Module):
    """A model that saves tensors which several operations recompute from unsaved ones; one operation writes in
    place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.Linear(256, 256), nn.LayerNorm(256), nn.Linear(256, 256)]) for _ in range(6)
        )

    def forward(self, x: Any) -> Any:
        for first, norm, second in self.layers:
            with torch.no_grad():
                scale = x.clone().mul_(0.99)
            x = x * scale
            y = torch.relu(norm(first(x)))
            y = torch.tanh(y) * torch.sigmoid(y) + 1.0
            x = x + second(y * 0.5).sin()
        return x


def trained(model: Any, steps: int) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(steps):
        model(torch.linspace(-0.1, 0.1, 2048 * 256).view(2048, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


def test_operations_that_are_repeated_have_room_for_what_they_make_on_the_way(tmp_path: Path) -> None:
    def made() -> Any:
        torch.manual_seed(0)
        return Chains()

    expected = trained(made(), 6)
    # The disk has room for a part: the rest is recomputed.
    with tenure.torch.budget(model := made(), "60%", spill=tmp_path, spill_bytes=8 * MIB) as budget:
        found = trained(model, 6)
        report = budget.report()
    assert report is not None and report.is_planned and report.recomputed_bytes > 0
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_a_budget_is_gone_with_its_last_reference(tmp_path: Path) -> None:
    model = Chains()
    gc.collect()
    gc.disable()
    try:
        with tenure.torch.budget(model, "100%", spill=tmp_path, spill_bytes=64 * MIB) as budget:
            trained(model, 1)
        left, of_model = weakref.ref(budget), weakref.ref(model)
        del budget, model
        assert left() is None and of_model() is None
    finally:
        gc.enable()
