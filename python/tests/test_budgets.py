"""Training steps of Tenure's tensors within a budget of memory."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import Tensor, _native, nn
from tenure.budgets import Budget, StepReport

F = nn.functional
MIB = 1 << 20
STEPS = 4


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int, is_checkpointed: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)
        self.is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_checkpointed:
            return self.layer(x)
        result: Tensor = tenure.autograd.checkpoint(self.layer, x)
        return result

    def layer(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(self.norms[0](x)).unflatten(-1, (3, 4, -1)).transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        result: Tensor = x + self.narrow(F.gelu(self.wide(self.norms[1](x))))
        return result


Program = tuple[nn.Module, Callable[[int], Tensor]]


def transformer(is_checkpointed: bool = False) -> Program:
    tenure.manual_seed(0)
    blocks = [Block(128, is_checkpointed and number % 2 == 0) for number in range(4)]
    model = nn.Sequential(nn.Embedding(64, 128), *blocks, nn.Linear(128, 64))

    def loss(number: int) -> Tensor:
        tokens = tenure.arange(16 * 128).mul(number + 7).remainder(61).view(16, 128)
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())

    return model, loss


def checkpointed() -> Program:
    return transformer(is_checkpointed=True)


def convolutions() -> Program:
    tenure.manual_seed(0)
    layers = [
        layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    ]
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def loss(number: int) -> Tensor:
        images = tenure.arange(32 * 3 * 64 * 64, dtype=tenure.float32).add(number).sin().view(32, 3, 64, 64)
        return F.cross_entropy(model(images), tenure.arange(32).remainder(8))

    return model, loss


def of_two_sizes() -> Program:
    """A program whose batches differ in size, as a last batch does."""
    model, _ = convolutions()

    def loss(number: int) -> Tensor:
        images = tenure.arange(3 * 64 * 64, dtype=tenure.float32).add(number).sin().view(1, 3, 64, 64)
        examples = 32 if number % 3 else 24
        return F.cross_entropy(model(images.repeat(examples, 1, 1, 1)), tenure.arange(examples).remainder(8))

    return model, loss


def parts_alone() -> Program:
    """A program that calls the parts of its model, and never the model itself."""
    model, _ = convolutions()
    parts = list(model.children())

    def loss(number: int) -> Tensor:
        x = tenure.arange(32 * 3 * 64 * 64, dtype=tenure.float32).add(number).sin().view(32, 3, 64, 64)
        for part in parts:
            x = part(x)
        return F.cross_entropy(x, tenure.arange(32).remainder(8))

    return model, loss


def functions_alone() -> Program:
    """A program that calls no module."""
    tenure.manual_seed(0)
    model = nn.ParameterList(nn.Parameter(tenure.randn(256, 256) / 16) for _ in range(6))

    def loss(number: int) -> Tensor:
        x = tenure.arange(4096 * 256, dtype=tenure.float32).add(number).sin().view(4096, 256)
        for weight in model:
            x = tenure.tanh(x @ weight)
        return x.square().mean()

    return model, loss


PROGRAMS = [transformer, checkpointed, convolutions, of_two_sizes, parts_alone, functions_alone]


def train(
    program: Callable[[], Program],
    memory: int | str | None = None,
    *,
    prepare: Callable[[Budget], None] = lambda _: None,
    **options: Any,
) -> tuple[list[float], list[StepReport]]:
    """Returns the losses and the reports of some steps."""
    model, loss = program()
    optimizer = tenure.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    reports: list[StepReport] = []

    def steps(budget: Budget | None) -> None:
        for number in range(STEPS):
            optimizer.zero_grad()
            value = loss(number)
            value.backward()
            optimizer.step()
            losses.append(value.item())
            if budget is not None:
                report = budget.report()
                assert report is not None, "each step has a report"
                reports.append(report)

    if memory is None:
        steps(None)
    else:
        with tenure.budget(model, memory, **options) as budget:
            prepare(budget)
            steps(budget)
    return losses, reports


@cache
def plain_losses(program: Callable[[], Program]) -> list[float]:
    return train(program)[0]


@pytest.mark.parametrize("program", PROGRAMS)
def test_losses_within_a_share_of_the_memory_are_the_plain_ones(program: Callable[[], Program], tmp_path: Path) -> None:
    losses, reports = train(program, "90%", spill=tmp_path)
    assert losses == plain_losses(program)
    assert [report.budget_bytes is None for report in reports] == [True, True, *[False] * (STEPS - 2)]
    within = reports[2:]
    assert sum(report.spilled_bytes + report.recomputed_bytes for report in within) > 0, f"nothing left: {within}"
    assert within[-1].is_planned, within[-1]


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_saved_tensor_can_leave_and_come_back(program: Callable[[], Program], tmp_path: Path) -> None:
    losses, reports = train(program, "4GiB", spill=tmp_path, prepare=lambda budget: budget._native.move_all())
    assert losses == plain_losses(program)
    assert reports[0].spilled_bytes > MIB and reports[0].fetched_bytes > 0, reports[0]


def test_a_step_that_fits_moves_nothing(tmp_path: Path) -> None:
    _, reports = train(convolutions, "4GiB", spill=tmp_path)
    assert all(report.spilled_bytes == report.recomputed_bytes == 0 for report in reports)


def test_a_budget_in_bytes_is_kept_from_the_first_step_on(tmp_path: Path) -> None:
    model, _ = convolutions()
    with tenure.budget(model, "50%", spill=tmp_path) as budget:
        train_within(budget, convolutions()[1], 2)
        assert budget.plain_bytes and budget.least_bytes
        middle = (budget.plain_bytes + budget.least_bytes) // 2
    losses, reports = train(convolutions, middle, spill=tmp_path)
    assert losses == plain_losses(convolutions)
    assert all(report.peak_bytes is None or report.peak_bytes <= middle for report in reports), reports
    assert reports[0].spilled_bytes + reports[0].recomputed_bytes > 0, "the first step, which is measured, keeps to it"


def train_within(budget: Budget, loss: Callable[[int], Tensor], steps: int) -> None:
    for number in range(steps):
        with budget.step():
            loss(number).backward()


def test_a_budget_that_is_too_small_says_how_much_is_needed(tmp_path: Path) -> None:
    with pytest.raises(tenure.Error, match="is too small: .* a budget of at least"):
        train(convolutions, "2%", spill=tmp_path)
    # The budget is over, and the memory has no limit any more.
    assert train(convolutions, "4GiB", spill=tmp_path)[0] == plain_losses(convolutions)


def test_a_step_may_call_the_model_twice(tmp_path: Path) -> None:
    def accumulated(memory: str | None) -> list[Any]:
        model, loss = convolutions()
        optimizer = tenure.optim.SGD(model.parameters(), lr=0.1)

        def steps(budget: Budget | None) -> None:
            for number in range(3):
                (loss(2 * number) + loss(2 * number + 1)).backward()
                optimizer.step()
                optimizer.zero_grad()

        if memory is None:
            steps(None)
        else:
            with tenure.budget(model, memory, spill=tmp_path) as budget:
                steps(budget)
                report = budget.report()
                assert report is not None and report.spilled_bytes + report.recomputed_bytes > 0
        return [parameter.tolist() for parameter in model.parameters()]

    assert accumulated("80%") == accumulated(None)


def test_a_graph_can_be_used_twice_and_differentiated_twice(tmp_path: Path) -> None:
    def gradients(is_limited: bool) -> list[Any]:
        tenure.manual_seed(0)
        model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
        x = tenure.randn(1024, 256, requires_grad=True)
        found: list[Any] = []

        def step() -> None:
            loss = model(x).sum()
            (first,) = tenure.autograd.grad(loss, x, create_graph=True)
            first.square().sum().backward()
            loss = model(x).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
            found.append([parameter.grad.tolist() for parameter in model.parameters() if parameter.grad is not None])
            model.zero_grad()

        if is_limited:
            with tenure.budget(model, "4GiB", spill=tmp_path) as budget:
                budget._native.move_all()
                for _ in range(3):
                    step()
        else:
            for _ in range(3):
                step()
        return found

    assert gradients(True) == gradients(False)


def test_a_saved_tensor_that_is_written_to_is_told(tmp_path: Path) -> None:
    model = nn.Linear(256, 256)
    with tenure.budget(model, "4GiB", spill=tmp_path) as budget:
        budget._native.move_all()
        hidden = model(tenure.randn(1024, 256)).tanh()
        loss = hidden.sum()
        with tenure.no_grad():
            hidden.zero_()
        with pytest.raises(RuntimeError, match="modified"):
            loss.backward()


def test_parameters_that_change_during_backward_give_right_values_or_an_error(tmp_path: Path) -> None:
    def run(memory: str | None) -> list[Any]:
        model, loss = convolutions()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step_alone)
        if memory is None:
            for number in range(STEPS):
                loss(number).backward()
        else:
            with tenure.budget(model, memory, spill=tmp_path):
                for number in range(STEPS):
                    loss(number).backward()
        return [parameter.tolist() for parameter in model.parameters()]

    def step_alone(parameter: Tensor) -> None:
        assert parameter.grad is not None
        with tenure.no_grad():
            parameter.sub_(parameter.grad * 0.1)
        parameter.grad = None

    plain = run(None)
    try:
        limited = run("75%")
    except (tenure.Error, RuntimeError) as error:
        assert "modified in place" in str(error)
    else:
        assert limited == plain


def test_work_without_gradients_and_failed_calls_are_no_steps(tmp_path: Path) -> None:
    model, loss = convolutions()
    with tenure.budget(model, "4GiB", spill=tmp_path) as budget:
        with tenure.no_grad():
            loss(0)
        assert budget.report() is None
        with pytest.raises(RuntimeError):
            model(tenure.zeros(1, 2, 3))
        loss(0)
        assert budget.report() is None, "no backward pass ran"
        loss(0).backward()
        assert budget.report() is not None


def test_saved_tensors_outlive_their_budget(tmp_path: Path) -> None:
    model, loss = convolutions()
    loss(0).backward()
    plain = [parameter.grad.tolist() for parameter in model.parameters() if parameter.grad is not None]
    model, loss = convolutions()
    with tenure.budget(model, "4GiB", spill=tmp_path) as budget:
        budget._native.move_all()
        value = loss(0)
    value.backward()
    assert [parameter.grad.tolist() for parameter in model.parameters() if parameter.grad is not None] == plain


def test_a_budget_frees_its_room_with_the_last_reference(tmp_path: Path) -> None:
    model, loss = convolutions()
    budget = tenure.budget(model, "4GiB", spill=tmp_path)
    with budget:
        loss(0).backward()
    assert not model._forward_hooks and not model._forward_pre_hooks
    del budget
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_threads_enter_one_budget(tmp_path: Path) -> None:
    model, loss = convolutions()
    with tenure.budget(model, "4GiB", spill=tmp_path) as budget:
        budget._native.move_all()
        found: list[list[Any]] = []

        def work() -> None:
            with budget:
                grads = tenure.autograd.grad(loss(1), list(model.parameters()))
                found.append([grad.tolist() for grad in grads])

        # One after the other: batch normalisation adds up what it sees.
        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    expected = tenure.autograd.grad(loss(1), list(model.parameters()))
    assert found == [[grad.tolist() for grad in expected]] * 2


def test_the_planning_problem_can_be_written(tmp_path: Path) -> None:
    model, loss = convolutions()
    with tenure.budget(model, "85%", spill=tmp_path) as budget:
        with pytest.raises(tenure.Error, match="there is no plan yet"):
            budget.write_problem(tmp_path / "problem.json")
        train_within(budget, loss, 3)
        budget.write_problem(tmp_path / "problem.json")
    assert json.loads((tmp_path / "problem.json").read_text())


def test_mistakes_are_told(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(tenure.Error, match=r"a budget is of a tenure\.nn\.Module, not of list"):
        tenure.budget([model], MIB)  # type: ignore[arg-type]
    with pytest.raises(tenure.Error, match="nowhere, as it has no parameters"):
        tenure.budget(nn.ReLU(), MIB)
    with pytest.raises(tenure.Error, match='memory="much"'):
        tenure.budget(model, "much")
    with pytest.raises(tenure.Error, match="expected 'scheduled'"):
        tenure.budget(model, MIB, planner="best")  # type: ignore[arg-type]
    with tenure.budget(model, "4GiB", spill=tmp_path) as budget:
        with pytest.raises(tenure.Error, match="cpu has a budget already"):
            tenure.budget(model, "4GiB")
    with pytest.raises(tenure.Error, match=r"make another by tenure\.budget\(\)"), budget:
        pass


@pytest.mark.own_process
def test_budgets_of_a_gpu_and_of_the_cpu_hold_at_once(tmp_path: Path) -> None:
    _native.simulate_devices(1, 0)

    def run(memory: str | None) -> list[float]:
        tenure.manual_seed(0)
        first = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())
        second = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh()).to("cuda")
        optimizer = tenure.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        losses = []
        spilled = [0, 0]

        def steps(*budgets: Budget) -> None:
            for number in range(4):
                x = tenure.arange(1024 * 256, dtype=tenure.float32).add(number).sin().view(1024, 256)
                loss = second(first(x).to("cuda")).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
                for index, budget in enumerate(budgets):
                    report = budget.report()
                    assert report is not None
                    spilled[index] += report.spilled_bytes

        if memory is None:
            steps()
            return losses
        with tenure.budget(first, memory, spill=tmp_path) as of_cpu, tenure.budget(second, memory) as of_gpu:
            for budget in (of_cpu, of_gpu):
                budget._native.move_all()
            steps(of_cpu, of_gpu)
        assert all(spilled), spilled
        return losses

    assert run("1GiB") == run(None)
