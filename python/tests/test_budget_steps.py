# mypy: disallow-subclassing-any=False
"""Steps of a budget for many ways of calling the model, and their cost where nothing has to be moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tenure.torch  # noqa: E402

from torch import Tensor, nn  # noqa: E402  isort: skip
from torch._C import _autograd  # noqa: E402  isort: skip
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks  # noqa: E402  isort: skip

MIB = 1 << 20
WIDTH = 256
#: Rows of an activation of one MiB.
ROWS_OF_A_MIB = MIB // (4 * WIDTH)


pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """Layers that each save twice the batch."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        #: The number of passes through the layers.
        self.times = 1
        self.fails_at: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(list(self.layers) * self.times):
            if number == self.fails_at:
                raise KeyError(number)
            x = layer(x).tanh().exp()
        return x


class Trained(nn.Module):
    """A model as Lightning trains it: the loop calls a method, which calls a part of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"net": Net()})

    def training_step(self, x: Tensor) -> Tensor:
        return self.parts["net"](x).square().mean()


class Functions(nn.Module):
    """A model whose modules are never called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) / WIDTH for _ in range(6))

    def training_step(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = (x @ weight).tanh().exp()
        return x.square().mean()


def batch(number: int = 0, mib: int = 3) -> Tensor:
    return torch.linspace(-1, 1, mib * ROWS_OF_A_MIB * WIDTH).add(number).sin().view(-1, WIDTH)


def gradients(model: Any) -> list[bytes]:
    return [parameter.grad.numpy().tobytes() for parameter in model.parameters() if parameter.grad is not None]


Loop = Callable[[Any, int], None]


def updated(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.01 * parameter.grad


def whole(model: Any, number: int) -> None:
    model(batch(number)).square().mean().backward()


def by_method(model: Any, number: int) -> None:
    model.training_step(batch(number)).backward()


def accumulated(model: Any, number: int) -> None:
    for part in range(3):
        whole(model, number * 3 + part)


def penalized(model: Any, number: int) -> None:
    x = batch(number).requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (slope.square().mean() + model(x.detach()).mean()).backward()


def evaluated(model: Any, number: int) -> None:
    whole(model, number)
    with torch.no_grad():
        model(batch(number, 5))
    # And by a program that leaves gradients on.
    model(batch(number))


def interrupted(model: Any, number: int) -> None:
    if number % 2:
        model.fails_at = 4
        with pytest.raises(KeyError):
            model(batch(number))
        model.fails_at = None
    whole(model, number)


def kept(model: Any, number: int) -> None:
    # No backward pass goes through these tensors; they live on into the next step.
    model.output = model(batch(number))
    model.output.square().mean().backward()
    model.aside = model.layers[0](batch(number)).tanh()


@pytest.mark.parametrize(
    ("make", "loop"),
    [
        (Net, whole),
        (Trained, by_method),
        (Functions, by_method),
        (Net, accumulated),
        (Net, penalized),
        (Net, evaluated),
        (Net, interrupted),
        (Net, kept),
    ],
)
def test_a_budget_holds_whatever_calls_the_model(make: Callable[[], Any], loop: Loop, tmp_path: Path) -> None:
    def train(budget: Any, model: Any) -> list[list[bytes]]:
        made = []
        for number in range(10):
            model.zero_grad()
            loop(model, number)
            made.append(gradients(model))
            updated(model)
            if budget is not None and (report := budget.report()):
                reports.append(report)
        return made

    reports: list[tenure.torch.StepReport] = []
    plain = train(None, make())
    model = make()
    with tenure.torch.budget(model, "80%", spill=tmp_path, spill_bytes=512 * MIB) as budget:
        assert train(budget, model) == plain
        memory = budget.bytes
    assert memory is not None and len(reports) >= 8
    assert all(report.peak_bytes is None or report.peak_bytes <= memory for report in reports[3:]), reports
    # A step that begins while bytes of the one before are still being written holds more than others: it is measured.
    planned = [report for report in reports if report.is_planned]
    assert len(planned) >= 3, reports
    assert all(report.budget_bytes == memory and report.spilled_bytes > 0 for report in planned), reports


def test_critics_and_generators_take_turns(tmp_path: Path) -> None:
    def train(models: Any, is_budgeted: bool) -> list[bytes]:
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in models]
        made = []
        for number in range(8):
            generated = models[0](batch(number))
            for optimizer in optimizers:
                optimizer.zero_grad()
            (models[1](generated.detach()).mean() - models[1](batch(number)).mean()).backward()
            optimizers[1].step()
            models[1](generated).mean().backward()
            optimizers[0].step()
            made += gradients(models)
            if is_budgeted:
                assert budget.report() is not None
        return made

    plain = train(nn.ModuleList([Net(), Net()]), False)
    models = nn.ModuleList([Net(), Net()])
    with tenure.torch.budget(models, "80%", spill=tmp_path, spill_bytes=512 * MIB) as budget:
        assert train(models, True) == plain
        report = budget.report()
    assert report is not None and report.is_planned, report


def test_a_budget_in_bytes_is_enforced_from_the_first_allocation(tmp_path: Path) -> None:
    model = Net()
    with (
        tenure.torch.budget(model, 16 * MIB, spill=tmp_path, spill_bytes=512 * MIB),
        pytest.raises(torch.OutOfMemoryError),
    ):
        torch.empty(32 * MIB)


def is_hooked() -> bool:
    return _autograd._top_saved_tensors_default_hooks(True) is not None


def looked_at(model: Any) -> list[bool]:
    """Returns whether hooks are installed when the model is called."""
    found: list[bool] = []
    model.layers[0].register_forward_hook(lambda *_: found.append(is_hooked()))
    return found


def test_a_step_that_fits_is_left_alone(tmp_path: Path) -> None:
    model = Net()
    found = looked_at(model)
    with tenure.torch.budget(model, 256 * MIB, spill=tmp_path, spill_bytes=512 * MIB) as budget:
        for number in range(4):
            whole(model, number)
            report = budget.report()
            assert report is not None and report.is_planned == (number > 0)
            assert number == 0 or report.spilled_bytes == report.fetched_bytes == 0
        assert found == [True, False, False, False]
        # Hooks of the program are called as without a budget, and stay where they are.
        saved: list[Tensor] = []

        def pack(tensor: Tensor) -> Tensor:
            saved.append(tensor.detach())
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor), save_on_cpu():
            whole(model, 4)
        assert not saved and found[-1]
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            whole(model, 5)
        assert saved
    assert not is_hooked()


def test_sizes_that_change_each_step_cost_nothing_where_they_fit(tmp_path: Path) -> None:
    model = Net()
    found = looked_at(model)
    with tenure.torch.budget(model, 256 * MIB, spill=tmp_path, spill_bytes=512 * MIB) as budget:
        for number in range(12):
            rows = 3 * ROWS_OF_A_MIB + 7 * (number * 5 % 12)
            model(torch.ones(rows, WIDTH)).sum().backward()
            report = budget.report()
            assert report is not None and (number == 0 or report.spilled_bytes == 0)
    assert found == [True] + [False] * 11


def test_sizes_that_were_never_measured_go_by_plans_of_those_that_were(tmp_path: Path) -> None:
    model, plain = Net(), Net()
    rows = [ROWS_OF_A_MIB * eighths // 8 for eighths in (24, 32, 25, 31, 27, 29, 30, 26, 28, 33)]
    reports = []
    with tenure.torch.budget(model, "75%", spill=tmp_path, spill_bytes=512 * MIB) as budget:
        for number in rows:
            model(torch.ones(number, WIDTH)).sum().backward()
            reports.append(budget.report())
            updated(model)
    for number in rows:
        plain(torch.ones(number, WIDTH)).sum().backward()
        updated(plain)
    assert gradients(model) == gradients(plain)
    assert [report is not None and report.is_planned for report in reports] == [False] * 2 + [True] * 8
    assert any(report is not None and report.spilled_bytes > 0 for report in reports[2:])


def test_a_step_that_takes_more_than_it_did_is_watched_again(tmp_path: Path) -> None:
    model, plain = Net(), Net()
    found = looked_at(model)
    memory = 128 * MIB
    with tenure.torch.budget(model, memory, spill=tmp_path, spill_bytes=512 * MIB) as budget:
        for number in range(7):
            model.zero_grad()
            model.times = 6 if number > 2 else 1
            whole(model, number)
            report = budget.report()
            assert report is not None and (report.peak_bytes is None or report.peak_bytes <= memory)
            assert report.is_planned == (number in (1, 2, 5, 6)), number
            assert number < 3 or report.spilled_bytes > 0
    plain.times = 6
    whole(plain, 6)
    assert gradients(model) == gradients(plain)
    assert found[1] is False
