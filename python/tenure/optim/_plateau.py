"""The scheduler that follows a metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, SupportsFloat

from tenure.optim._optimizer import Optimizer
from tenure.optim._scheduler import LRScheduler, check_optimizer, lrs_of, one_per_group


class ReduceLROnPlateau(LRScheduler):
    """The learning rate times `factor` when a metric has not become better for more than `patience` epochs.

    Parameters
    ----------
    optimizer : Optimizer
    mode : "min" or "max", default "min"
        Whether less or more is better.
    factor : float, default 0.1
    patience : int, default 10
    threshold : float, default 1e-4
        The least change that counts.
    threshold_mode : "rel" or "abs", default "rel"
        Whether the threshold is a share of the best metric, or a difference.
    cooldown : int, default 0
        The number of epochs after a change that do not count.
    min_lr : float, or list of float, default 0
        The least learning rate.
    eps : float, default 1e-8
        The least change of a learning rate.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        check_optimizer(optimizer)
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown!")
        self.optimizer = optimizer
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.default_min_lr = min_lr if isinstance(min_lr, int | float) else None
        self.min_lrs = one_per_group("min_lr", optimizer, min_lr)
        self.eps = eps
        self.last_epoch = 0
        self.mode_worse = math.inf if mode == "min" else -math.inf
        self._last_lr = lrs_of(optimizer)
        self._reset()

    def _reset(self) -> None:
        self.best = self.mode_worse
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    @property
    def in_cooldown(self) -> bool:
        """Whether epochs do not count at present."""
        return self.cooldown_counter > 0

    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:  # type: ignore[override]
        """Takes the metric of an epoch, and reduces the learning rates if it is time.

        Parameters
        ----------
        metrics : number or Tensor
            The metric.
        epoch : int, default None
            The epoch's number; by default the next one.
        """
        current = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(current):
            self.best = current
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = lrs_of(self.optimizer)

    def _is_better(self, current: float) -> bool:
        sign = 1.0 if self.mode == "max" else -1.0
        if self.threshold_mode == "rel":
            bound = self.best * (1.0 + sign * self.threshold)
        else:
            bound = self.best + sign * self.threshold
        return current > bound if self.mode == "max" else current < bound

    def _reduce(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                raise RuntimeError(
                    f"the optimizer has {len(groups)} parameter groups, and min_lr {len(self.min_lrs)} values: "
                    "set min_lrs when a group is added"
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, least in zip(groups, self.min_lrs, strict=True):
            old = float(group["lr"])
            new = max(old * self.factor, least)
            if old - new > self.eps:
                group["lr"] = new
