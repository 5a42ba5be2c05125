"""The scheduler of one cycle up and down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from tenure.optim._optimizer import Optimizer
from tenure.optim._scheduler import LRScheduler, check_optimizer, one_per_group


class OneCycleLR(LRScheduler):
    """The learning rate up to `max_lr`, and down to almost nothing; the momentum the other way (Smith and Topin, 2018).

    Parameters
    ----------
    optimizer : Optimizer
    max_lr : float, or list of float
        The highest learning rate.
    total_steps : int, default None
        The number of steps; by default, `epochs` times `steps_per_epoch`.
    epochs, steps_per_epoch : int, default None
    pct_start : float, default 0.3
        The share of the steps that goes up.
    anneal_strategy : "cos" or "linear", default "cos"
    cycle_momentum : bool, default True
        Whether the momentum changes too.
    base_momentum : float, or list of float, default 0.85
    max_momentum : float, or list of float, default 0.95
    div_factor : float, default 25
        The ratio of `max_lr` and the first learning rate.
    final_div_factor : float, default 1e4
        The ratio of the first and the last learning rate.
    three_phase : bool, default False
        Whether the learning rate first goes down to the first one, as steep as it came up.
    last_epoch : int, default -1
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer)
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
            total_steps = epochs * steps_per_epoch
        if total_steps <= 0:
            raise ValueError(f"Expected positive integer total_steps, but got {total_steps}")
        if not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        self.total_steps = total_steps
        self._anneal_func_type = anneal_strategy
        self._schedule_phases = _phases(total_steps, pct_start, three_phase)
        self.cycle_momentum = cycle_momentum
        self.use_beta1 = "betas" in optimizer.defaults
        if cycle_momentum and not self.use_beta1 and "momentum" not in optimizer.defaults:
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        if last_epoch == -1:
            for group, most in zip(optimizer.param_groups, one_per_group("max_lr", optimizer, max_lr), strict=True):
                first = most / div_factor
                group.update({"initial_lr": first, "max_lr": most, "min_lr": first / final_div_factor})
            if cycle_momentum:
                most_of = one_per_group("max_momentum", optimizer, max_momentum)
                least_of = one_per_group("base_momentum", optimizer, base_momentum)
                for group, most, least in zip(optimizer.param_groups, most_of, least_of, strict=True):
                    group.update({"max_momentum": most, "base_momentum": least})
        self.optimizer = optimizer
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(f"Tried to step {step} times. The specified number of total steps is {self.total_steps}")
        start = 0.0
        phase = self._schedule_phases[-1]
        for earlier in self._schedule_phases[:-1]:
            if step <= earlier["end_step"]:
                phase = earlier
                break
            start = earlier["end_step"]
        share = (step - start) / (phase["end_step"] - start)
        lrs = []
        for group in self.optimizer.param_groups:
            lrs.append(self._anneal(group[phase["start_lr"]], group[phase["end_lr"]], share))
            if self.cycle_momentum:
                momentum = self._anneal(group[phase["start_momentum"]], group[phase["end_momentum"]], share)
                if self.use_beta1:
                    group["betas"] = (momentum, *group["betas"][1:])
                else:
                    group["momentum"] = momentum
        return lrs

    def _anneal(self, start: float, end: float, share: float) -> float:
        if self._anneal_func_type == "cos":
            return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)
        return (end - start) * share + start


def _phases(steps: int, up: float, three_phase: bool) -> list[dict[str, Any]]:
    """Returns the phases, each with its last step and the names of its first and last settings."""

    def phase(end_step: float, start_lr: str, end_lr: str, start_momentum: str, end_momentum: str) -> dict[str, Any]:
        return {
            "end_step": end_step,
            "start_lr": start_lr,
            "end_lr": end_lr,
            "start_momentum": start_momentum,
            "end_momentum": end_momentum,
        }

    rise = phase(float(up * steps) - 1, "initial_lr", "max_lr", "max_momentum", "base_momentum")
    if not three_phase:
        return [rise, phase(steps - 1, "max_lr", "min_lr", "base_momentum", "max_momentum")]
    fall = phase(float(2 * up * steps) - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum")
    return [rise, fall, phase(steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum")]
