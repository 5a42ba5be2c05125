# mypy: disallow-subclassing-any=False
"""Planned steps, which go by the program's allocations: what differs from the plan changes no number."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tenure.torch  # noqa: E402

from torch import Tensor, nn  # noqa: E402  isort: skip
from torch.autograd.graph import saved_tensors_hooks  # noqa: E402  isort: skip
from torch.utils.checkpoint import checkpoint  # noqa: E402  isort: skip

MIB = 1 << 20
WIDTH, ROWS, LAYERS = 128, 4096, 8
#: The steps that differ, after some that follow the plan, and before others that do so again.
DIFFERENT = (5, 6)
STEPS = 10

pytestmark = pytest.mark.usefixtures("one_thread")


class Interrupted(Exception):
    pass


class Layers(nn.Module):
    """Layers with something else in the middle, in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.between: Callable[[Tensor], Any] = lambda x: x

    def forward(self, x: Tensor) -> Any:
        for number, layer in enumerate(self.layers):
            if number == LAYERS // 2:
                x = self.between(x)
            x = torch.tanh(layer(x) * 1.5) + x
        return x


def more_large_memory(x: Tensor) -> Tensor:
    return x + torch.zeros(ROWS, WIDTH)


def smaller(x: Tensor) -> Tensor:
    return x[: ROWS // 2]


def twice_as_many_saved(x: Tensor) -> Tensor:
    return (x.sin() * x.cos()).view(WIDTH, ROWS).sigmoid().view(ROWS, WIDTH)


def read_without_allocating(x: Tensor) -> Tensor:
    return x + float(x.view(-1)[7].item())


def into_memory_of_another(x: Tensor) -> Tensor:
    out = torch.empty_like(x, requires_grad=False)
    torch.mul(x.detach(), 2.0, out=out)
    return x * out


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    return y.mul_(0.5).sin_()


def checkpointed(x: Tensor) -> Any:
    return checkpoint(lambda y: y.sin().cos(), x, use_reentrant=False)


def under_other_hooks(x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        return x.sin().cos()


def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.square().sum().sqrt()
    return x / scale


def raising(x: Tensor) -> Tensor:
    raise Interrupted


def copied_by_a_thread(x: Tensor) -> Tensor:
    made = []
    thread = threading.Thread(target=lambda: made.append(x.detach().clone()))
    thread.start()
    thread.join()
    return x * made[0]


def of_a_function(x: Tensor) -> Any:
    weight = torch.ones(WIDTH)
    return x + torch.func.grad(lambda w: (x.detach()[:8] * w).square().sum())(weight)


def trained(between: Callable[[Tensor], Any] | None, budget: Any = None, model: Any = None) -> tuple[Any, list[Any]]:
    """Trains a model, with a difference in some steps. Returns the losses and parameters, and reports."""
    model = model or made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, reports = [], []
    for step in range(STEPS):
        model.between = between if between is not None and step in DIFFERENT else lambda x: x
        x = torch.linspace(-1, 1, ROWS * WIDTH).add(step).sin().view(ROWS, WIDTH)
        try:
            loss = model(x).square().mean()
            loss.backward()
            losses.append(loss.item())
        except Interrupted:
            pass
        optimizer.step()
        optimizer.zero_grad()
        reports.append(budget.report() if budget is not None else None)
    return (losses, [each.detach().numpy().tobytes() for each in model.parameters()]), reports


def made() -> Any:
    torch.manual_seed(0)
    return Layers()


@pytest.mark.parametrize(
    "between",
    [
        None,
        more_large_memory,
        smaller,
        twice_as_many_saved,
        read_without_allocating,
        into_memory_of_another,
        in_place,
        checkpointed,
        under_other_hooks,
        without_gradients,
        raising,
        copied_by_a_thread,
        of_a_function,
    ],
)
def test_a_step_that_differs_from_its_plan_has_the_same_numbers(
    between: Callable[[Tensor], Any] | None, tmp_path: Path
) -> None:
    expected, _ = trained(between)
    model = made()
    with tenure.torch.budget(model, 40 * MIB, spill=tmp_path, spill_bytes=256 * MIB) as budget:
        found, reports = trained(between, budget, model)
    assert found == expected
    steps = [report for report in reports if report is not None]
    moved = [report.spilled_bytes + report.recomputed_bytes for report in steps]
    assert steps[3].is_planned and moved[3] > 0, "the steps before go by a plan"
    assert steps[-1].is_planned and moved[-1] > 0, "and so do later ones"


class Routed(nn.Module):
    """Layers that send each row to one of some experts: their sizes depend on data, and some are too small to count."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.Tanh(), nn.Linear(3 * WIDTH, WIDTH)) for _ in range(12)
        )

    def forward(self, x: Tensor) -> Any:
        for number, expert in enumerate(self.experts):
            # Some 2000 rows of 512 bytes, more or less.
            chosen = torch.where((x[:, number] * 1e4).sin() > 0.05 * (number % 3 - 1))[0]
            x = x.index_add(0, chosen, expert(x[chosen]).tanh())
        return x


def test_a_step_whose_sizes_depend_on_data_follows_its_plan(tmp_path: Path) -> None:
    def made() -> Any:
        torch.manual_seed(0)
        return Routed()

    expected, _ = trained(None, None, made())
    model = made()
    with tenure.torch.budget(model, 40 * MIB, spill=tmp_path, spill_bytes=256 * MIB) as budget:
        found, reports = trained(None, budget, model)
    assert found == expected
    # A step's report is that of the step before.
    for report in reports[4:]:
        assert report.is_planned and report.spilled_bytes + report.recomputed_bytes > 0, reports


class Narrow(nn.Module):
    """Layers with narrow ones between them, whose tensors are too small to count in the smaller steps."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [(nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH // 2, WIDTH)) for _ in range(LAYERS)]
        self.layers = nn.ModuleList(layer for pair in pairs for layer in pair)

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x) * 1.5)
        return x


def test_sizes_in_which_other_tensors_are_large_have_plans_by_the_same_measurements(tmp_path: Path) -> None:
    # From 2048 and 4096 rows on, wide and narrow tensors have 1 MiB.
    rows = (2500, 4800, 4500, 3300, 4300, 2600, 4100, 3900, 2900, 4700)

    def trained_on_rows(budget: Any = None, model: Any = None) -> tuple[Any, list[Any]]:
        torch.manual_seed(0)
        model = model or Narrow()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reports = []
        for number in rows:
            loss = model(torch.linspace(-1, 1, number * WIDTH).sin().view(number, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            reports.append(budget.report() if budget is not None else None)
        return [each.detach().numpy().tobytes() for each in model.parameters()], reports

    expected, _ = trained_on_rows()
    torch.manual_seed(0)
    model = Narrow()
    with tenure.torch.budget(model, "60%", spill=tmp_path, spill_bytes=256 * MIB) as budget:
        found, reports = trained_on_rows(budget, model)
    assert found == expected
    # Two sizes are measured, and all others go by plans that are made of them.
    assert all(report.is_planned for report in reports[2:]), reports
    assert all(report.spilled_bytes + report.recomputed_bytes > 0 for report in (reports[2], reports[-1]))


def test_functions_that_allow_no_hooks_run_in_all_steps(tmp_path: Path) -> None:
    expected, _ = trained(None)
    weight, rows = torch.ones(WIDTH, requires_grad=False), torch.linspace(-1, 1, 4 * WIDTH).view(4, WIDTH)

    def gradients() -> Any:
        of_row = torch.func.grad(lambda w, row: (w * row).tanh().square().sum())
        return torch.func.vmap(of_row, (None, 0))(weight, rows)

    outside = gradients()
    model = made()
    model.register_forward_pre_hook(lambda *unused: inside.append(gradients()))
    inside: list[Any] = []
    with tenure.torch.budget(model, "70%", spill=tmp_path, spill_bytes=256 * MIB) as budget:
        found, reports = trained(None, budget, model)
    assert found == expected and len(inside) == STEPS
    assert all(torch.equal(each, outside) for each in inside)
    assert reports[-1].is_planned and reports[-1].spilled_bytes > 0


def test_two_threads_in_one_budget_find_room(tmp_path: Path) -> None:
    models = nn.ModuleList([made(), made()])
    expected = trained(None)[0]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        with budget:
            found[number] = trained(None, None, models[number])[0]

    # Either takes 40 MiB by itself.
    with tenure.torch.budget(models, 60 * MIB, spill=tmp_path, spill_bytes=256 * MIB) as budget:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {0: expected, 1: expected}
