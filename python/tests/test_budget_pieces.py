# mypy: disallow-subclassing-any=False
"""Steps of an optimizer in pieces: they compute the same bits as the whole step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from tenure.torch.budgets.pieces import can_step_in_pieces, pieces_of, step_only

KINDS: list[tuple[type[optim.Optimizer], dict[str, Any]]] = [
    (optim.SGD, {"lr": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (optim.Adam, {"amsgrad": True}),
    (optim.AdamW, {"foreach": True}),
    (optim.AdamW, {"fused": True}),
    (optim.Adagrad, {}),
    (optim.Adadelta, {"foreach": True}),
    (optim.Adamax, {}),
    (optim.NAdam, {"foreach": True}),
    (optim.RAdam, {}),
    (optim.RMSprop, {"momentum": 0.5, "centered": True}),
    (optim.Rprop, {}),
    (optim.ASGD, {"foreach": True}),
]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))


def optimizer_of(net: nn.Sequential, kind: type[optim.Optimizer], options: dict[str, Any]) -> optim.Optimizer:
    # The second group has a learning rate of its own, and one parameter never has a gradient.
    net[5].bias.requires_grad_(False)
    groups = [{"params": net[:3].parameters()}, {"params": net[3:].parameters(), "lr": 0.02}]
    return kind(groups, **options)


def backward(net: nn.Sequential, number: int) -> None:
    torch.manual_seed(number)
    net(torch.randn(4, 8)).square().sum().backward()


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize("most", [1, 300, 1 << 20])
def test_pieces_compute_the_same_bits_as_the_whole_step(
    kind: type[optim.Optimizer], options: dict[str, Any], most: int
) -> None:
    whole, parts = model(), model()
    plain, in_pieces = optimizer_of(whole, kind, options), optimizer_of(parts, kind, options)
    for number in range(4):
        backward(whole, number)
        backward(parts, number)
        plain.step()
        assert can_step_in_pieces(in_pieces, (in_pieces,), {})
        pieces = list(pieces_of(in_pieces, lambda parameter: parameter.nbytes, most))
        assert len(pieces) == {1: 11, 300: 6, 1 << 20: 1}[most]
        with step_only(in_pieces) as step:
            for piece in pieces:
                step(piece)
        assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))
        assert [len(group["params"]) for group in in_pieces.param_groups] == [6, 6]
        # In a budget, the optimizer's own step then finds no parameters.
        parameters = [group["params"] for group in in_pieces.param_groups]
        for group in in_pieces.param_groups:
            group["params"] = []
        in_pieces.step()
        for group, own in zip(in_pieces.param_groups, parameters, strict=True):
            group["params"] = own
    states = [copy.deepcopy(each.state_dict()["state"]) for each in (plain, in_pieces)]
    flat = [[value for one in state.values() for value in one.values()] for state in states]
    assert len(flat[0]) == len(flat[1])
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(*flat, strict=True) if a is not None)


def test_parameters_come_back_when_a_piece_fails() -> None:
    net = model()
    optimizer = optimizer_of(net, optim.SGD, {"lr": 0.1})
    with pytest.raises(ValueError, match="shorter"), step_only(optimizer) as step:
        step([[]])
    assert [len(group["params"]) for group in optimizer.param_groups] == [6, 6]


class Own(optim.SGD):
    """Does something else than its base class might."""


def test_steps_that_could_differ_in_pieces_are_left_whole() -> None:
    net = model()

    def closure() -> Tensor:
        return torch.zeros(())

    plain = optimizer_of(net, optim.Adam, {})
    assert can_step_in_pieces(plain, (plain,), {}) and can_step_in_pieces(plain, (plain, None), {"closure": None})
    assert not can_step_in_pieces(plain, (plain, closure), {})
    assert not can_step_in_pieces(plain, (plain,), {"closure": closure})
    for other in (Own(net.parameters(), lr=0.1), optim.LBFGS(net.parameters())):
        assert not can_step_in_pieces(other, (other,), {})
    for register in (plain.register_step_pre_hook, plain.register_step_post_hook):
        handle = register(lambda *_: None)
        assert not can_step_in_pieces(plain, (plain,), {})
        handle.remove()
    assert can_step_in_pieces(plain, (plain,), {})
