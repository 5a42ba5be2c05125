# mypy: disallow-subclassing-any=False
"""Gradients and weights that leave a simulated GPU's memory, where the state of optimizers is not enough.

Kernels compute nothing, so the tests write the bytes themselves, and see whether they are still the same.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tenure.torch
from tenure._native import BudgetState

MIB = 1 << 20
LAYERS = 8
SIZE = 2048
#: Each layer has a weight of 16 MiB, its gradient, and 32 MiB of an optimizer's state.
WEIGHTS = LAYERS * 16 * MIB
#: cuBLAS takes two workspaces, one for each thread.
WORKSPACES = 64 * MIB
HOST_BYTES = 1 << 30


def model() -> nn.Sequential:
    tenure.torch.install()
    return nn.Sequential(*(nn.Linear(SIZE, SIZE, bias=False, device="cuda") for _ in range(LAYERS)))


def on_host(tensors: list[Tensor | None]) -> int:
    return sum(each is not None and BudgetState.is_on_host(each.untyped_storage().data_ptr()) for each in tensors)


def mark(tensors: list[Tensor]) -> None:
    with torch.no_grad():
        for number, tensor in enumerate(tensors):
            tensor.copy_(torch.full(tensor.shape, float(number)))


def are_marked(tensors: list[Tensor]) -> bool:
    return all(tensor.is_cuda and bool(tensor.cpu().eq(number).all()) for number, tensor in enumerate(tensors))


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        net(torch.ones(256, SIZE, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def train_marked(budget: tenure.torch.Budget, net: nn.Module, optimizer: torch.optim.Optimizer, limit: int) -> None:
    """Trains within a limit until a step follows a plan. The weights are marked after the first steps."""
    torch.cuda.reset_peak_memory_stats()
    train(net, optimizer, 2)
    mark(list(net.parameters()))
    train(net, optimizer, 8)
    report = budget.report()
    assert report is not None and report.is_planned
    assert torch.cuda.max_memory_reserved() <= limit


def test_gradients_leave_where_weights_and_gradients_find_no_room() -> None:
    net = model()
    parameters = list(net.parameters())
    optimizer = torch.optim.AdamW(parameters)
    limit = 2 * WEIGHTS + WORKSPACES - 48 * MIB
    with tenure.torch.budget(net, limit, host_bytes=HOST_BYTES) as budget:
        train_marked(budget, net, optimizer, limit)
        assert on_host(list(parameters)) == 0
        net(torch.ones(256, SIZE, device="cuda")).sum().backward()
        gradients = [each.grad for each in parameters if each.grad is not None]
        assert len(gradients) == LAYERS and 0 < on_host([each.grad for each in parameters])
        # Gradients that add up stay where they are.
        before = [each.data_ptr() for each in gradients]
        net(torch.ones(256, SIZE, device="cuda")).sum().backward()
        assert [each.grad.data_ptr() for each in parameters if each.grad is not None] == before
        mark(gradients)
        optimizer.step()
        assert are_marked(gradients) and are_marked(parameters)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.zero_grad()
    assert are_marked(parameters)
    # After the budget, gradients stay.
    net(torch.ones(256, SIZE, device="cuda")).sum().backward()
    assert on_host([each.grad for each in parameters]) == 0


def test_weights_leave_where_they_find_no_room_and_come_for_each_call() -> None:
    net = model()
    parameters = list(net.parameters())
    optimizer = torch.optim.AdamW(parameters)
    limit = WEIGHTS + WORKSPACES - 32 * MIB
    with tenure.torch.budget(net, limit, host_bytes=HOST_BYTES) as budget:
        train_marked(budget, net, optimizer, limit)
        assert on_host(list(parameters)) > 0 and are_marked(parameters)
        saved = copy.deepcopy(net.state_dict())
        assert list(saved) == list(model().state_dict())
        assert are_marked(list(saved.values()))
        del saved
        copied = copy.deepcopy(net)
        copied(torch.ones(256, SIZE, device="cuda"))
        del copied
    assert are_marked(parameters) and on_host(list(parameters)) == 0
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in net)


def test_a_layer_computes_with_the_bytes_of_its_weight() -> None:
    net = model()
    parameters = list(net.parameters())
    seen: list[tuple[float, bool]] = []

    def see(weight: Tensor) -> None:
        first, last = weight[0, 0].item(), weight[-1, -1].item()
        assert first == last
        seen.append((first, on_host([weight]) == 0))

    class Reader(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(weight)
            see(weight)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            (weight,) = ctx.saved_tensors
            see(weight)
            return gradient, torch.zeros_like(weight)

    for layer in net:
        layer.forward = lambda x, layer=layer: Reader.apply(x, layer.weight)
    optimizer = torch.optim.SGD(parameters, 0.0)

    def rounds(call, steps: int) -> None:
        for _ in range(steps):
            call(torch.ones(256, SIZE, device="cuda", requires_grad=True)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def by_checkpoints(x: Tensor) -> Tensor:
        for layer in net:
            x = checkpoint(layer, x, use_reentrant=False)
        return x

    mark(parameters)
    with tenure.torch.budget(net, 2 * WEIGHTS, host_bytes=HOST_BYTES) as budget:
        assert budget._state is not None
        assert budget._state.release(1 << 40, with_parameters=True)
        assert on_host(list(parameters)) == LAYERS
        rounds(net, 5)
        values = [float(number) for number in range(LAYERS)]
        assert seen == [(value, True) for value in (*values, *reversed(values))] * 5
        seen.clear()
        rounds(by_checkpoints, 3)
        again = [value for number in reversed(values) for value in (number, number)]
        assert seen == [(value, True) for value in (*values, *again)] * 3


def planned_on_host(net: nn.Module, steps: int) -> int:
    """Trains a model whose weights have left, until steps are planned. Returns how many weights are on the host."""
    with tenure.torch.budget(net, WEIGHTS + WORKSPACES + 24 * MIB, host_bytes=HOST_BYTES) as budget:
        assert budget._state is not None and budget._state.release(1 << 40, with_parameters=True)
        train(net, torch.optim.AdamW(net.parameters()), steps)
        report = budget.report()
        assert report is not None and report.is_planned
        return on_host(list(net.parameters()))


def test_steps_whose_layers_are_called_in_another_order_are_planned() -> None:
    net = model()

    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = net

        def forward(self, x: Tensor) -> Tensor:
            for layer in reversed(self.layers):
                x = layer(x)
            return x

    assert planned_on_host(Backwards(), 8) == LAYERS


def test_steps_that_call_a_layer_twice_or_in_ever_new_orders_are_planned() -> None:
    net = model()

    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = net
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            first = 1 + self.calls % 7 if self.calls < 12 else 1
            for number in (first, 0, *range(1, LAYERS), 0):
                x = self.layers[number](x)
            return x

    planned_on_host(Shuffled(), 18)


def test_an_interrupt_and_writes_within_a_call_reach_the_weight_itself() -> None:
    net = model()
    first, second = net[0], net[1]

    def write(layer: nn.Module, *_: Any) -> None:
        with torch.no_grad():
            layer.weight.copy_(torch.full((SIZE, SIZE), 7.0))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), tenure.torch.budget(net, 2 * WEIGHTS, host_bytes=HOST_BYTES) as budget:
        assert budget._state is not None and budget._state.release(1 << 40, with_parameters=True)
        first.register_forward_pre_hook(write)
        second.register_forward_pre_hook(interrupt)
        net(torch.ones(256, SIZE, device="cuda"))
    assert first._parameters["weight"].cpu().eq(7.0).all()
    assert all("weight" not in layer.__dict__ for layer in net)


def test_a_call_that_fails_leaves_no_copy_behind() -> None:
    net = model()
    with tenure.torch.budget(net, 2 * WEIGHTS, host_bytes=HOST_BYTES) as budget:
        assert budget._state is not None and budget._state.release(1 << 40, with_parameters=True)
        try:
            net[0](torch.ones(7, 7, device="cuda"))
        except RuntimeError:
            pass
        assert all("weight" not in layer.__dict__ for layer in net)
        assert net[0].weight is next(net.parameters())
