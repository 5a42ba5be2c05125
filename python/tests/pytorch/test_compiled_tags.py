"""Tags of allocations in inductor's code. On the simulated CUDA, python/tests/tags tests other backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import tenure.torch
from tenure import _native

from .memory import ALLOCATOR

pytestmark = [
    pytest.mark.values,
    pytest.mark.skipif(ALLOCATOR != "tenure", reason="PyTorch's own allocator has no tags"),
]

ROWS = 512
ACTIVATION = ROWS * 1024 * 4


class Model(nn.Module):
    """A model of the user's own class, which saves activations for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1024, 1024), nn.Linear(1024, 1024)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.nn.functional.gelu(self.first(x)))


def compile_and_tag_model(model: nn.Module) -> tuple[Callable[[Tensor], Tensor], tenure.torch.Tagging]:
    called = torch.compile(model, fullgraph=True)
    return called, tenure.torch.tag(model, name="model")


def compile_and_tag_that(model: nn.Module) -> tuple[Callable[[Tensor], Tensor], tenure.torch.Tagging]:
    called = torch.compile(model, fullgraph=True)
    return called, tenure.torch.tag(called, name="model")


def tag_and_compile_in_place(model: nn.Module) -> tuple[Callable[[Tensor], Tensor], tenure.torch.Tagging]:
    tagging = tenure.torch.tag(model, name="model")
    model.compile(fullgraph=True)
    return model, tagging


@pytest.fixture(autouse=True)
def no_graph_is_kept() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    assert not torch._dynamo.utils.counters["graph_break"]
    torch._dynamo.reset()


def figures(tag: str) -> int:
    return tenure.memory.stats(torch.cuda.current_device())[f"requested_bytes.{tag}.current"] or 0


@pytest.mark.parametrize("prepare", [compile_and_tag_model, compile_and_tag_that, tag_and_compile_in_place])
def test_inductor_s_allocations_are_the_models(
    prepare: Callable[[nn.Module], tuple[Callable, tenure.torch.Tagging]],
) -> None:
    model = Model().cuda()
    x = torch.randn(ROWS, 1024, device="cuda")
    expected = model(x).detach()
    called, tagging = prepare(model)
    with tagging:
        for _ in range(3):
            before = figures("activation")
            output = called(x)
            # The tensors saved for backward, and the output.
            assert figures("activation") - before >= 2 * ACTIVATION
            assert torch.allclose(output, expected, rtol=1e-3, atol=1e-3)
            output.sum().backward()
            assert figures("gradient") >= sum(parameter.nbytes for parameter in model.parameters())
            del output
            model.zero_grad()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert _native.current_purpose() == (0, 0)
