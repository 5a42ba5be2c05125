"""Tests of tenure.optim.lr_scheduler against torch.optim.lr_scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tenure

torch = pytest.importorskip("torch")

#: Makes a scheduler of a library's module and an optimizer.
Maker = Callable[[Any, Any], Any]

SCHEDULERS: dict[str, Maker] = {
    "LambdaLR": lambda module, of: module.LambdaLR(of, [lambda epoch: 0.9**epoch, lambda epoch: 1 / (1 + epoch)]),
    "StepLR": lambda module, of: module.StepLR(of, 3, 0.5),
    "MultiStepLR": lambda module, of: module.MultiStepLR(of, [2, 5, 5, 9], 0.5),
    "ConstantLR": lambda module, of: module.ConstantLR(of, 0.5, 4),
    "LinearLR": lambda module, of: module.LinearLR(of, 0.25, 0.75, 6),
    "ExponentialLR": lambda module, of: module.ExponentialLR(of, 0.9),
    "PolynomialLR": lambda module, of: module.PolynomialLR(of, 8, 2.0),
    "CosineAnnealingLR": lambda module, of: module.CosineAnnealingLR(of, 4, 0.01),
    "CosineAnnealingWarmRestarts": lambda module, of: module.CosineAnnealingWarmRestarts(of, 3, 2, 0.01),
    "OneCycleLR": lambda module, of: module.OneCycleLR(of, [0.5, 1.0], 20),
    "OneCycleLR, linear": lambda module, of: module.OneCycleLR(
        of, 0.5, epochs=4, steps_per_epoch=5, anneal_strategy="linear", three_phase=True
    ),
    "SequentialLR": lambda module, of: module.SequentialLR(
        of, [module.ConstantLR(of, 0.1, 3), module.CosineAnnealingLR(of, 6), module.ExponentialLR(of, 0.5)], [3, 9]
    ),
    "ChainedScheduler": lambda module, of: module.ChainedScheduler(
        [module.LinearLR(of, 0.5, total_iters=4), module.ExponentialLR(of, 0.9)]
    ),
}


def optimizer(library: Any, rule: str = "SGD") -> Any:
    """Returns an optimizer of two groups."""
    groups = [{"params": [library.ones(1).requires_grad_()], "lr": lr} for lr in (0.1, 0.4)]
    return getattr(library.optim, rule)(groups, **({"momentum": 0.9} if rule == "SGD" else {}))


def settings(of: Any) -> list[Any]:
    """Returns what schedulers set."""
    return [(group["lr"], group.get("momentum"), group.get("betas")) for group in of.param_groups]


def step(of: Any, scheduler: Any) -> Any:
    of.step()
    scheduler.step()
    return settings(of)


@pytest.mark.parametrize("rule", ["SGD", "Adam"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_learning_rates_are_those_of_pytorch(name: str, rule: str) -> None:
    ours = optimizer(tenure, rule)
    theirs = optimizer(torch, rule)
    our_scheduler = SCHEDULERS[name](tenure.optim.lr_scheduler, ours)
    their_scheduler = SCHEDULERS[name](torch.optim.lr_scheduler, theirs)
    assert settings(ours) == settings(theirs)
    for _ in range(15):
        for our, their in zip(step(ours, our_scheduler), step(theirs, their_scheduler), strict=True):
            assert our[0] == pytest.approx(their[0], rel=1e-12)
            assert our[1:] == their[1:]
        assert our_scheduler.get_last_lr() == [group["lr"] for group in ours.param_groups]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_on_from_its_state(name: str) -> None:
    ours = optimizer(tenure)
    scheduler = SCHEDULERS[name](tenure.optim.lr_scheduler, ours)
    for _ in range(4):
        step(ours, scheduler)
    other = optimizer(tenure)
    resumed = SCHEDULERS[name](tenure.optim.lr_scheduler, other)
    resumed.load_state_dict(scheduler.state_dict())
    other.load_state_dict(ours.state_dict())
    assert [step(other, resumed) for _ in range(8)] == [step(ours, scheduler) for _ in range(8)]


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "LambdaLR"])
def test_a_scheduler_goes_on_from_a_state_of_pytorch(name: str) -> None:
    ours = optimizer(tenure)
    theirs = optimizer(torch)
    scheduler = SCHEDULERS[name](tenure.optim.lr_scheduler, ours)
    their_scheduler = SCHEDULERS[name](torch.optim.lr_scheduler, theirs)
    for _ in range(4):
        step(theirs, their_scheduler)
    scheduler.load_state_dict(their_scheduler.state_dict())
    ours.load_state_dict(theirs.state_dict())
    for _ in range(8):
        our = [lr for lr, *_ in step(ours, scheduler)]
        assert our == pytest.approx([lr for lr, *_ in step(theirs, their_scheduler)], rel=1e-12)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
def test_a_plateau_reduces_as_in_pytorch(mode: str, threshold_mode: str) -> None:
    metrics = [1.0, 0.9, 0.95, 0.95, 0.95, 1.2, 1.3, 1.3001, 1.3, 1.3, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    options = {"factor": 0.5, "patience": 1, "threshold": 1e-2, "cooldown": 1, "min_lr": [0.01, 0.3]}
    ours = optimizer(tenure)
    theirs = optimizer(torch)
    schedulers = [
        library.optim.lr_scheduler.ReduceLROnPlateau(of, mode, threshold_mode=threshold_mode, **options)
        for library, of in ((tenure, ours), (torch, theirs))
    ]
    seen = []
    for metric in metrics:
        for scheduler in schedulers:
            scheduler.step(metric)
        seen.append(settings(ours))
        assert settings(ours) == settings(theirs)
    assert seen[0] != seen[-1]


def test_a_scheduler_that_steps_before_the_optimizer_warns() -> None:
    scheduler = tenure.optim.lr_scheduler.StepLR(optimizer(tenure), 1)
    with pytest.warns(UserWarning, match="before"):
        scheduler.step()


def test_a_scheduler_needs_an_optimizer() -> None:
    wrong: Any = None
    with pytest.raises(TypeError, match="NoneType is not an Optimizer"):
        tenure.optim.lr_scheduler.ReduceLROnPlateau(wrong)
