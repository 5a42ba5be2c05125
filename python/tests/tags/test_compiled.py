# mypy: disallow-subclassing-any=False
"""Tags of compiled programs. Inductor's code is tested in python/tests/pytorch, on a GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import tenure.torch  # noqa: E402

from .tagging import ACTIVATION, ROW, WIDTH, Scale, batch, held, needs_device  # noqa: E402


class Model(nn.Module):
    """A model of the user's own class, with two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Scale(), Scale()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.first(x))
        return output


@pytest.fixture(autouse=True)
def graph_breaks() -> Iterator[dict[str, int]]:
    """Checks that no graph is broken, and leaves no compiled graph that keeps a model alive."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    breaks = torch._dynamo.utils.counters["graph_break"]
    yield breaks
    assert not breaks
    torch._dynamo.reset()
    gc.collect()


def compiled(module: Any, backend: str) -> Any:
    return torch.compile(module, backend=backend, fullgraph=True)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("outside", [False, True], ids=["tagged, then compiled", "compiled, then tagged"])
@pytest.mark.parametrize(
    "make", [Model, lambda: nn.Sequential(Scale(), nn.Sequential(Scale()))], ids=["own", "torch.nn"]
)
def test_hooks_break_no_compiled_graph(make: Any, outside: bool) -> None:
    model = make()
    function = compiled(model, "eager")
    x = torch.ones(2, WIDTH)
    with tenure.torch.tag(function if outside else model):
        assert torch.equal(function(x), x + 2)
        function(x).sum().backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@needs_device
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "order", ["compile, tag the model", "compile, tag that", "tag, compile", "in place, tag", "tag, in place"]
)
def test_compiled_code_is_the_models_in_which_it_is_entered(order: str, backend: str) -> None:
    model = Model().cuda()
    called: Any = model
    if order.startswith("compile"):
        called = compiled(model, backend)
    elif order == "in place, tag":
        model.compile(backend=backend, fullgraph=True)
    with tenure.torch.tag(called if order.endswith("that") else model, name="model"):
        if order == "tag, compile":
            called = compiled(model, backend)
        elif order == "tag, in place":
            model.compile(backend=backend, fullgraph=True)
        for _ in range(2):
            output = called(batch())
            activations = held("activation")
            # The parts have no memory of their own, and tensors saved for backward count.
            assert set(activations) == {"", "model"} and activations["model"] >= ACTIVATION
            output.sum().backward()
            assert held("gradient")["model"] == 4 * ROW
            model.zero_grad()
            del output


@needs_device
def test_parts_that_are_compiled_are_the_parts() -> None:
    model = Model().cuda()
    model.first.compile(backend="aot_eager", fullgraph=True)
    with tenure.torch.tag(model):
        model.last = compiled(model.last, "aot_eager")
        output = model(batch())
        activations = held("activation")
        assert activations["first"] >= ACTIVATION and activations["last"] >= ACTIVATION
    del output


@needs_device
def test_a_compiled_function_around_the_model_has_no_purpose() -> None:
    model = Model().cuda()
    function = compiled(lambda x: model(x), "aot_eager")
    with tenure.torch.tag(model):
        output = function(batch())
        assert held("activation") == {}
    del output


@needs_device
@pytest.mark.parametrize("order", ["tag, compile", "compile, tag"])
def test_state_that_a_compiled_step_makes_is_tagged(order: str) -> None:
    model = nn.Sequential(Scale()).cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    step = torch.compile(optimizer.step, backend="eager")
    with tenure.torch.tag(model, optimizer):
        if order == "tag, compile":
            step = torch.compile(optimizer.step, backend="eager")
        model(batch()).sum().backward()
        step()
        if order == "compile, tag":
            # No hook sees the compiled step: the report looks for the optimizer's state.
            tenure.torch.report(format="json")
        assert held("optimizer_state")["0"] >= 4 * ROW
    # The break is PyTorch's own.
    torch._dynamo.utils.counters["graph_break"].clear()
