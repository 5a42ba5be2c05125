"""The state of optimizers within a budget of a simulated GPU's memory.

Kernels compute nothing, so the tests write the state themselves, and see whether its bytes are still the same.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import tenure.torch
from tenure._native import BudgetState

MIB = 1 << 20
LAYERS = 8
#: Each layer has a weight of 4 MiB, its gradient, and 8 MiB of an optimizer's state.
WEIGHTS = LAYERS * 4 * MIB


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1 << 20, device="cuda"))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.weight)


def model() -> nn.Sequential:
    tenure.torch.install()
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(1 << 20, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [each[name] for each in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]


def mark(optimizer: torch.optim.Optimizer) -> None:
    for number, tensor in enumerate(moments(optimizer)):
        tensor.copy_(torch.full((1 << 20,), float(number)))


def are_marked(tensors: list[Tensor]) -> bool:
    return all(tensor.is_cuda and bool(tensor.cpu().eq(number).all()) for number, tensor in enumerate(tensors))


def on_host(tensors: list[Tensor]) -> int:
    return sum(BudgetState.is_on_host(tensor.untyped_storage().data_ptr()) for tensor in tensors)


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}])
def test_state_that_finds_no_room_lies_in_host_memory_and_comes_back(options: dict[str, Any]) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), **options)
    limit = 2 * WEIGHTS + 56 * MIB
    with tenure.torch.budget(net, limit, host_bytes=256 * MIB) as budget:
        train(net, optimizer, 1)
        mark(optimizer)
        torch.cuda.reset_peak_memory_stats()
        train(net, optimizer, 6)
        report = budget.report()
        assert torch.cuda.max_memory_reserved() <= limit
        assert report is not None and report.is_planned and report.budget_bytes == limit
        assert report.zero_copy_bytes == on_host(moments(optimizer)) * 4 * MIB > 0
        assert are_marked(moments(optimizer))
        # A copy of the state has its values.
        assert are_marked([tensor.clone() for tensor in moments(optimizer)])
        for tensor in moments(optimizer):
            tensor.record_stream(torch.cuda.Stream())
        saved = copy.deepcopy(optimizer.state_dict())
        assert are_marked([each[name] for each in saved["state"].values() for name in ("exp_avg", "exp_avg_sq")])
        del saved
        optimizer.load_state_dict(optimizer.state_dict())
        train(net, optimizer, 3)
        assert are_marked(moments(optimizer))
    assert on_host(moments(optimizer)) == 0 and are_marked(moments(optimizer))


def test_the_state_of_a_piece_is_on_the_device_while_it_is_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    with tenure.torch.budget(net, 2 * WEIGHTS + 56 * MIB, host_bytes=256 * MIB) as budget:
        train(net, optimizer, 4)
        assert budget._state is not None and budget._state.release(1 << 40)
        mark(optimizer)
        assert on_host(moments(optimizer)) == 2 * LAYERS
        stepped: list[float] = []

        def step(optimizer: torch.optim.Optimizer) -> None:
            own = [optimizer.state[each] for group in optimizer.param_groups for each in group["params"]]
            tensors = [each[name] for each in own for name in ("exp_avg", "exp_avg_sq")]
            assert on_host(tensors) == 0
            for tensor in tensors:
                (value,) = tensor.cpu().unique().tolist()
                stepped.append(value)
                tensor.copy_(torch.full((1 << 20,), 100 + value))

        monkeypatch.setattr(torch.optim.AdamW.step, "__wrapped__", step)
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        assert stepped == list(range(2 * LAYERS))
        assert on_host(moments(optimizer)) == 2 * LAYERS
        assert [tensor.cpu().unique().tolist() for tensor in moments(optimizer)] == [[100.0 + each] for each in stepped]
        assert [len(group["params"]) for group in optimizer.param_groups] == [LAYERS]


def test_state_stays_on_the_device_where_there_is_room() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    with tenure.torch.budget(net, "100%", host_bytes=256 * MIB) as budget:
        train(net, optimizer, 5)
        report = budget.report()
        assert report is not None and report.zero_copy_bytes == 0


def test_a_share_below_all_of_the_state_moves_some_of_it() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    with tenure.torch.budget(net, "70%", host_bytes=256 * MIB) as budget:
        train(net, optimizer, 2)
        mark(optimizer)
        train(net, optimizer, 5)
        report = budget.report()
        assert report is not None and report.budget_bytes is not None and report.is_planned
        assert 0 < report.zero_copy_bytes < 2 * WEIGHTS
        assert are_marked(moments(optimizer))


def test_a_budget_is_refused_where_host_memory_is_too_small_for_the_state() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    with (
        pytest.raises((tenure.Error, torch.OutOfMemoryError)),
        tenure.torch.budget(net, 2 * WEIGHTS + 32 * MIB, host_bytes=24 * MIB),
    ):
        train(net, optimizer, 5)
    # PyTorch leaves the state of the parameter at which memory ran out incomplete.
    optimizer.state.clear()
    train(net, optimizer, 2)


def test_memory_is_back_when_the_optimizer_is_gone() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    with tenure.torch.budget(net, 2 * WEIGHTS + 56 * MIB, host_bytes=256 * MIB) as budget:
        train(net, optimizer, 4)
        assert (report := budget.report()) is not None and report.zero_copy_bytes > 0
        optimizer.state.clear()
        optimizer = torch.optim.SGD(net.parameters())
        train(net, optimizer, 3)
        assert (report := budget.report()) is not None and report.zero_copy_bytes == 0


def test_the_state_of_sharded_parameters_leaves() -> None:
    tenure.torch.install()
    net = nn.Sequential(*(nn.Linear(2048, 2048, bias=False, device="cuda") for _ in range(LAYERS)))
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = distributed.init_device_mesh("cuda", (2,))
    for part in (*net, net):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters())
    with tenure.torch.budget(net, "60%", host_bytes=512 * MIB) as budget:
        for _ in range(6):
            net(torch.ones(1024, 2048, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        report = budget.report()
        assert report is not None and report.is_planned and report.zero_copy_bytes > 0
        parts = [each.to_local() for each in moments(optimizer)]
        assert on_host(parts) * 8 * MIB == report.zero_copy_bytes
    assert on_host(parts) == 0
