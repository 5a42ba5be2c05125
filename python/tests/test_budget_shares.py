# mypy: disallow-subclassing-any=False
"""Budgets that are a share of what a step takes: which steps these are, and that a whole share refuses none."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tenure.torch  # noqa: E402

from torch import Tensor, nn  # noqa: E402  isort: skip
from torch.utils.checkpoint import checkpoint  # noqa: E402  isort: skip

MIB = 1 << 20
WIDTH = 128
#: Rows of an activation of one MiB.
ROWS_OF_A_MIB = MIB // (4 * WIDTH)

pytestmark = pytest.mark.usefixtures("one_thread")


class Checkpointed(nn.Module):
    """Layers of which almost nothing is saved: nothing at the peak can leave."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self._all, x, use_reentrant=False)

    def _all(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Logits(nn.Module):
    """A head whose output is most of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 8 * WIDTH)

    def forward(self, x: Tensor) -> Any:
        return self.head(x).log_softmax(-1)


class Repeated(nn.Module):
    """Layers over as many copies of a batch as are told for each call."""

    def __init__(self, times: Iterable[int]) -> None:
        super().__init__()
        self.layers = stack()
        self.times = iter(times)

    def forward(self, x: Tensor) -> Any:
        return self.layers(x.repeat(next(self.times), 1))


def stack() -> Any:
    return nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def small_batch_of_a_large_model() -> Any:
    return nn.Sequential(*(nn.Linear(4 * WIDTH, 4 * WIDTH) if n else nn.Linear(WIDTH, 4 * WIDTH) for n in range(4)))


def batch(mib: int, number: int = 0) -> Tensor:
    return torch.linspace(-1, 1, mib * ROWS_OF_A_MIB * WIDTH).add(number).sin().view(-1, WIDTH)


def seeded(make: Any) -> Any:
    torch.manual_seed(0)
    return make()


def weights(model: Any) -> list[bytes]:
    return [parameter.detach().numpy().tobytes() for parameter in model.parameters()]


def train(model: Any, sizes: Iterable[int], micro: int = 1, budget: Any = None, foreach: bool = False) -> list[bytes]:
    """Trains on batches of these sizes in MiB, with a step of the optimizer after each `micro` of them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=foreach)
    for number, mib in enumerate(sizes):
        model(batch(mib, number)).square().mean().backward()
        if number % micro == micro - 1:
            optimizer.step()
            optimizer.zero_grad()
    if budget is not None:
        budget.report()
    return weights(model)


@pytest.mark.parametrize("share", ["100%", "150%"])
@pytest.mark.parametrize(
    ("make", "foreach"),
    [(Checkpointed, False), (Logits, False), (small_batch_of_a_large_model, True), (stack, False)],
)
def test_a_whole_share_refuses_nothing(make: Any, foreach: bool, share: str, tmp_path: Path) -> None:
    model = seeded(make)
    with tenure.torch.budget(model, share, spill=tmp_path, spill_bytes=64 * MIB) as budget:
        found = train(model, [2] * 6, budget=budget, foreach=foreach)
        assert budget.bytes is not None and budget.plain_bytes is not None and budget.least_bytes is not None
        of_engine = budget.bytes - int(budget.plain_bytes * float(share[:-1]) / 100)
        assert of_engine == 5 * MIB, "the buffers and the slack come on top"
        assert budget.least_bytes <= budget.plain_bytes + 5 * MIB
    assert found == train(seeded(make), [2] * 6, foreach=foreach)


@pytest.mark.parametrize("make", [Checkpointed, Logits])
def test_a_share_of_steps_in_which_nothing_can_leave_names_what_works(make: Any, tmp_path: Path) -> None:
    def within(memory: Any) -> list[bytes]:
        model = seeded(make)
        with tenure.torch.budget(model, memory, spill=tmp_path, spill_bytes=64 * MIB) as budget:
            return train(model, [8] * 5, budget=budget)

    with pytest.raises(tenure.Error, match="too small: it takes .*computed") as told:
        within("50%")
    expected = train(seeded(make), [8] * 5)
    named = re.search(r'a budget of at least (\d+); as a share, that is "(\d+%)"', str(told.value))
    assert named, told.value
    del told
    gc.collect()
    assert within(int(named[1])) == expected
    gc.collect()
    assert within(named[2]) == expected


@pytest.mark.parametrize("share", [90, 100])
def test_a_share_is_of_whole_steps_where_gradients_add_up(share: int, tmp_path: Path) -> None:
    model = seeded(stack)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    known = []
    with tenure.torch.budget(model, f"{share}%", spill=tmp_path, spill_bytes=256 * MIB) as budget:
        for number in range(16):
            model(batch(4, number)).square().mean().backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            report = budget.report()
            assert report is not None
            known.append(budget.bytes is not None)
        assert known == [False] * 8 + [number >= 8 for number in range(8, 16)]
        least, plain = budget.least_bytes, budget.plain_bytes
    assert weights(model) == train(seeded(stack), [4] * 16, micro=4)
    assert least is not None and plain is not None
    held = sum(3 * 4 * parameter.numel() for parameter in model.parameters())
    assert least > held, "gradients and the optimizer's state are a part of it"
    del model, optimizer, budget
    gc.collect()
    model = seeded(stack)
    with tenure.torch.budget(model, least, spill=tmp_path, spill_bytes=256 * MIB) as budget:
        train(model, [4] * 16, micro=4, budget=budget)


def test_a_program_that_only_adds_up_gradients_gets_its_share_after_some_steps(tmp_path: Path) -> None:
    model = seeded(stack)
    with tenure.torch.budget(model, "80%", spill=tmp_path, spill_bytes=64 * MIB) as budget:
        for number in range(66):
            assert (budget.bytes is not None) == (number > 64)
            model(batch(1, number)).square().mean().backward()
            budget.report()


@pytest.mark.parametrize("share", ["95%", "100%"])
@pytest.mark.parametrize("sizes", [[1, 1, 1, 4, 4, 4, 9, 9, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9], [4, 4, 1, 8, 1, 12, 12]])
def test_a_share_grows_with_the_largest_step(share: str, sizes: list[int], tmp_path: Path) -> None:
    def plain() -> list[bytes]:
        return train(seeded(stack), sizes)

    model = seeded(stack)
    with tenure.torch.budget(model, share, spill=tmp_path, spill_bytes=512 * MIB) as budget:
        found = train(model, sizes, budget=budget)
        assert budget.plain_bytes is not None and budget.bytes is not None
        assert budget.plain_bytes > max(sizes) * 8 * MIB, "each layer saves as much as the batch"
        assert budget.bytes == int(budget.plain_bytes * float(share[:-1]) / 100) + 5 * MIB
    assert found == plain()


def test_a_share_refuses_no_step_whose_larger_need_can_not_leave(tmp_path: Path) -> None:
    model = seeded(Logits)
    sizes = [1, 1, 1, 4, 4, 8, 8]
    with tenure.torch.budget(model, "100%", spill=tmp_path, spill_bytes=64 * MIB) as budget:
        found = train(model, sizes, budget=budget)
        least, total = budget.least_bytes, budget.bytes
    assert least is not None and total is not None and least <= total
    assert found == train(seeded(Logits), sizes)


@pytest.mark.parametrize("share", ["60%", "100%"])
@pytest.mark.parametrize("times", [[2] * 4 + [4] * 3, [2] * 4 + [3, 2, 7]])
def test_a_share_refuses_no_step_that_takes_more_than_its_plan(share: str, times: list[int], tmp_path: Path) -> None:
    expected = train(seeded(lambda: Repeated(times)), [1] * len(times))
    model = seeded(lambda: Repeated(times))
    with tenure.torch.budget(model, share, spill=tmp_path, spill_bytes=512 * MIB) as budget:
        found = train(model, [1] * len(times), budget=budget)
    assert found == expected


def test_work_outside_of_steps_may_take_more_than_a_share(tmp_path: Path) -> None:
    model = seeded(stack)
    with tenure.torch.budget(model, "95%", spill=tmp_path, spill_bytes=64 * MIB) as budget:
        train(model, [2] * 4, budget=budget)
        with torch.no_grad():
            evaluated = model(batch(100))
        train(model, [2] * 2, budget=budget)
        report = budget.report()
    assert evaluated.shape[0] == 100 * ROWS_OF_A_MIB
    assert report is not None and report.budget_bytes is not None
