"""Steps within a budget of a simulated GPU's memory.

Copies move bytes, and kernels compute nothing: the tests look at the saved bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tenure
import tenure.torch

MIB = 1 << 20
LAYERS = 12
NUMBERS = 1 << 20


class Layer(torch.autograd.Function):
    """Saves a tensor of 4 MiB of its own, and counts the saved tensors that came back unchanged."""

    came_back = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor, number: int) -> Tensor:
        content = torch.full((NUMBERS,), float(number))
        saved = content.to(x.device)
        ctx.save_for_backward(saved.view(1024, 1024).t())
        ctx.number = number
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (saved,) = ctx.saved_tensors
        assert saved.stride() == (1, 1024) and saved.is_cuda
        Layer.came_back += bool(saved.cpu().eq(ctx.number).all())
        return gradient.clone(), None


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(16, device="cuda"))

    def forward(self, first: int) -> Tensor:
        x = self.weight
        for layer in range(LAYERS):
            x = Layer.apply(x, first + layer)
        return x


def step(model: Model, number: int) -> None:
    Layer.came_back = 0
    model(number).sum().backward()
    model.weight.grad = None
    assert Layer.came_back == LAYERS, number


@pytest.mark.parametrize("spill", [False, True])
def test_saved_tensors_leave_and_come_back(spill: bool, tmp_path: Path) -> None:
    tenure.torch.install()
    model = Model()
    budget = tenure.torch.budget(model, "50%", spill=tmp_path if spill else None, host_bytes=64 * MIB)
    with budget:
        for number in range(5):
            step(model, number)
            report = budget.report()
            assert report is not None and report.is_planned == (number > 1), report
            if number > 1:
                torch.cuda.reset_peak_memory_stats()
                assert report.spilled_bytes > 16 * MIB and report.fetched_bytes > 16 * MIB, report
        assert budget.bytes is not None and budget.plain_bytes is not None
        assert 48 * MIB <= budget.plain_bytes
        assert budget.bytes == budget.plain_bytes // 2 + 8 * MIB, "the budget's own room comes on top"
        step(model, 7)
        assert torch.cuda.max_memory_reserved() <= budget.bytes
    step(model, 8)
    assert torch.cuda.max_memory_allocated() >= 48 * MIB, "nothing is limited any more"


def test_streams_of_the_program_wait_and_are_waited_for() -> None:
    """Steps run on several streams, each of which frees memory that another used."""
    tenure.torch.install()
    model = Model()
    streams = [torch.cuda.Stream() for _ in range(2)]
    with tenure.torch.budget(model, 32 * MIB, host_bytes=64 * MIB) as budget:
        for number in range(6):
            stream = streams[number % 2]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step(model, number)
            torch.cuda.current_stream().wait_stream(stream)
            report = budget.report()
            assert report is not None and report.spilled_bytes > 0


class Both(Model):
    """A model that calls another one on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        #: A list, so that the inner model is no part of this one: it is on another device.
        self.inner = [nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.Tanh())))]

    def forward(self, first: int) -> Tensor:
        beside = self.inner[0](torch.linspace(-1, 1, 4096 * 256).view(4096, 256)).sum()
        return super().forward(first).sum().cpu() + beside


def test_budgets_of_a_gpu_and_of_the_cpu_nest(tmp_path: Path) -> None:
    tenure.torch.install()
    model, plain = Both(), Both()
    plain.inner[0].load_state_dict(model.inner[0].state_dict())
    plain(0).backward()
    (inner,) = model.inner
    with (
        tenure.torch.budget(model, "50%", host_bytes=64 * MIB) as on_gpu,
        tenure.torch.budget(inner, "60%", spill=tmp_path) as on_cpu,
    ):
        for number in range(5):
            Layer.came_back = 0
            model.zero_grad()
            inner.zero_grad()
            model(number).backward()
            assert Layer.came_back == LAYERS, number
            reports = [budget.report() for budget in (on_gpu, on_cpu)]
            assert all(report is not None and report.is_planned == (number > 1) for report in reports), reports
        assert all(report is not None and report.spilled_bytes > 4 * MIB for report in reports), reports
    assert torch.equal(inner[0].weight.grad, plain.inner[0][0].weight.grad)


def test_a_gpu_without_tenures_allocator_has_no_budget() -> None:
    with pytest.raises(tenure.Error, match=r"call tenure.torch.install\(\)"):
        tenure.torch.budget(Model(), "50%")
