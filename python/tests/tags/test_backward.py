# mypy: disallow-subclassing-any=False
"""Purposes of the allocations of threads that run backward passes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import tenure.torch  # noqa: E402

from .tagging import NOTHING, ROW, WIDTH, Noting, Scale, backward_thread_has, batch, held, needs_device, purpose  # noqa: E402

pytestmark = needs_device


class Output:
    def __init__(self, y: Tensor) -> None:
        self.y = y


@dataclass(slots=True)
class Record:
    y: Tensor


class OfUnknownType(nn.Module):
    """A model whose output has a type in which no tensor is found."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Scale()

    def forward(self, x: Tensor) -> Output:
        return Output(self.head(x))


def test_backward_works_for_modules_in_turn() -> None:
    first, last, loss = Noting(), Noting(), Noting()
    seen = first.seen = last.seen = loss.seen = []
    model = nn.Sequential(nn.Sequential(first, first), nn.Sequential(nn.ReLU(inplace=True), nn.Sequential(last))).cuda()
    with tenure.torch.tag(model):
        for _ in range(2):
            seen.clear()
            loss(model(batch(requires_grad=True))).sum().backward()
            # The device's thread has no purpose before backward enters the model.
            assert seen == [NOTHING, ("gradient", "1.1.0"), *[("gradient", "0.0")] * 2]
    assert all(thread != threading.get_ident() for thread in (*first.threads, *last.threads, *loss.threads))


def test_a_pass_that_fails_leaves_nothing_behind() -> None:
    model = nn.Sequential(Scale(), Noting(ValueError), Scale()).cuda()
    with tenure.torch.tag(model):
        with pytest.raises(ValueError, match="on purpose"):
            model(batch()).sum().backward()
        assert backward_thread_has() == NOTHING


def test_a_pass_that_does_not_come_through_the_models_output_leaves_nothing_behind() -> None:
    model = nn.Sequential(Scale(), Scale()).cuda()
    inner: list[Tensor] = []
    model[0].register_forward_hook(lambda module, args, output: inner.append(output))
    with tenure.torch.tag(model):
        model(batch())
        inner[0].sum().backward()
        assert backward_thread_has() == NOTHING


def test_a_model_whose_output_is_of_unknown_type_leaves_nothing_behind() -> None:
    model = OfUnknownType().cuda()
    with tenure.torch.tag(model):
        model(batch()).y.sum().backward()
        assert backward_thread_has() == NOTHING


def test_a_model_called_for_a_purpose_leaves_nothing_behind() -> None:
    model = nn.Sequential(Scale()).cuda()
    with tenure.torch.tag(model), tenure.torch.tagged("input", "batch"):
        model(batch()).sum().backward()
        assert backward_thread_has() == NOTHING


def test_a_step_that_calls_its_closure_leaves_nothing_behind() -> None:
    model = nn.Sequential(Scale()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)

    def closure() -> Tensor:
        loss: Tensor = model(batch()).sum()
        loss.backward()
        return loss

    with tenure.torch.tag(model, optimizer):
        optimizer.step(closure)
        assert backward_thread_has() == NOTHING
        assert held("gradient")["0"] == held("optimizer_state")["0"] == 2 * ROW


def test_memory_of_an_untagged_model_has_no_module() -> None:
    tagged, other = OfUnknownType().cuda(), nn.Sequential(*[Scale() for _ in range(10)]).cuda()
    with tenure.torch.tag(tagged):
        tagged(batch()).y.sum().backward()
    tagged.zero_grad()
    other(batch()).sum().backward()
    assert held("gradient") == {}


def test_a_pass_goes_on_after_one_inside_it() -> None:
    after = Noting()

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(Scale(), Scale())

        def forward(self, x: Tensor) -> Tensor:
            # Backward meets the module that was called last first: it is still in this module then.
            result: Tensor = checkpoint(self.inner, after(x), use_reentrant=True)
            return result * 2

    model = Recomputed().cuda()
    with tenure.torch.tag(model, name="model"):
        model(batch(requires_grad=True)).sum().backward()
    assert after.seen == [("gradient", "model")]


def test_passes_of_several_threads_end_apart() -> None:
    model = nn.Sequential(Scale(), Noting(), Scale()).cuda()
    failing = nn.Sequential(Scale(), Noting(ValueError), Scale()).cuda()
    failures: list[Any] = []

    def train(model: nn.Module, fails: bool) -> None:
        for _ in range(50):
            try:
                model(batch()).sum().backward()
            except ValueError:
                failures.append(fails)

    with tenure.torch.tag(model), tenure.torch.tag(failing):
        threads = [threading.Thread(target=train, args=(each, each is failing)) for each in (model, failing)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == [True] * 50
    assert backward_thread_has() == NOTHING


def test_a_pass_that_ends_on_the_callers_thread_leaves_its_purpose_alone() -> None:
    class Moving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start = nn.Parameter(torch.ones(1, WIDTH))
            self.scale = Scale().cuda()

        def forward(self, x: Tensor) -> Tensor:
            # The gradient of the parameter on the CPU is the last one made.
            result: Tensor = self.scale(x * self.start.cuda())
            return result

    model = Moving()
    with tenure.torch.tag(model), tenure.torch.tagged("workspace", module="training"):
        model(batch()).sum().backward()
        assert model.start.grad is not None
        assert purpose() == ("workspace", "training")


OUTPUTS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tuple": (lambda y: (1, y), lambda output: output[1]),
    "list": (lambda y: [y], lambda output: output[0]),
    "mapping": (lambda y: {"y": y}, lambda output: output["y"]),
    "nested": (lambda y: {"y": [(y,)]}, lambda output: output["y"][0][0]),
    "dataclass": (Record, lambda output: output.y),
}


@pytest.mark.parametrize(("wrap", "unwrap"), OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_are_found_however_they_are_nested(
    wrap: Callable[[Tensor], Any], unwrap: Callable[[Any], Tensor]
) -> None:
    class Wrapping(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return wrap(torch.ops.aten.clone(x))

    reached = Noting()
    model = nn.Sequential(Wrapping()).cuda()
    with tenure.torch.tag(model):
        unwrap(model(reached(batch(requires_grad=True)))).sum().backward()
    assert reached.seen == [("gradient", "0")]
