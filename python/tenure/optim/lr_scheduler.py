"""Schedulers of learning rates, by PyTorch's names. `step` is called after each epoch, or each step.

Examples
--------
>>> import tenure
>>> x = tenure.tensor([4.0], requires_grad=True)
>>> optimizer = tenure.optim.SGD([x], lr=1.0)
>>> scheduler = tenure.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
>>> for epoch in range(3):
...     optimizer.step()
...     scheduler.step()
>>> scheduler.get_last_lr()
[0.5]
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

from tenure.optim._one_cycle import OneCycleLR
from tenure.optim._optimizer import Optimizer
from tenure.optim._plateau import ReduceLROnPlateau
from tenure.optim._scheduler import LRScheduler, lrs_of

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]


class LambdaLR(LRScheduler):
    """The initial learning rate times a function of the epoch.

    Parameters
    ----------
    optimizer : Optimizer
    lr_lambda : callable, or list of them
        The function, or one for each group.
    last_epoch : int, default -1
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        count = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != count:
            raise ValueError(f"Expected {count} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        pairs = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [base * function(self.last_epoch) for base, function in pairs]

    def state_dict(self) -> dict[str, Any]:
        """Returns the state. Of the functions, it has the attributes of those that are objects."""
        kept = [None if isinstance(of, FunctionType) else dict(of.__dict__) for of in self.lr_lambdas]
        return super().state_dict() | {"lr_lambdas": kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "lr_lambdas"})
        for function, kept in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if kept is not None:
                function.__dict__.update(kept)


class _FactorLR(LRScheduler):
    """A scheduler that multiplies the current learning rates by a factor."""

    def _factor(self) -> float:
        """Returns the factor of `last_epoch` and the epoch before."""
        raise NotImplementedError

    def _first_factor(self) -> float:
        """Returns the factor of the first epoch."""
        return 1.0

    def _whole_factor(self) -> float:
        """Returns the factor of `last_epoch` and the beginning."""
        raise NotImplementedError

    def get_lr(self) -> list[float]:
        factor = self._first_factor() if self._is_initial else self._factor()
        return [lr * factor for lr in lrs_of(self.optimizer)]

    def _get_closed_form_lr(self) -> list[float]:
        return [base * self._whole_factor() for base in self.base_lrs]


class StepLR(_FactorLR):
    """The learning rate times `gamma` after every `step_size` epochs.

    Parameters
    ----------
    optimizer : Optimizer
    step_size : int
    gamma : float, default 0.1
    last_epoch : int, default -1
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float:
        return self.gamma if self.last_epoch and self.last_epoch % self.step_size == 0 else 1.0

    def _whole_factor(self) -> float:
        return float(self.gamma ** (self.last_epoch // self.step_size))


class MultiStepLR(_FactorLR):
    """The learning rate times `gamma` after each of the milestones.

    Parameters
    ----------
    optimizer : Optimizer
    milestones : iterable of int
    gamma : float, default 0.1
    last_epoch : int, default -1
    """

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float:
        return float(self.gamma ** self.milestones[self.last_epoch])

    def _whole_factor(self) -> float:
        return float(self.gamma ** bisect_right(sorted(self.milestones.elements()), self.last_epoch))


class ConstantLR(_FactorLR):
    """The learning rate times `factor` in the first `total_iters` epochs.

    Parameters
    ----------
    optimizer : Optimizer
    factor : float, default 1/3
    total_iters : int, default 5
    last_epoch : int, default -1
    """

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 <= factor <= 1:
            raise ValueError(f"the factor must be from 0 to 1, not {factor}")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _first_factor(self) -> float:
        return self.factor

    def _factor(self) -> float:
        if self.last_epoch == 0:
            return self.factor
        return 1.0 / self.factor if self.last_epoch == self.total_iters else 1.0

    def _whole_factor(self) -> float:
        return 1.0 if self.last_epoch >= self.total_iters else self.factor


class LinearLR(_FactorLR):
    """The learning rate times a factor that goes linearly from `start_factor` to `end_factor`.

    Parameters
    ----------
    optimizer : Optimizer
    start_factor : float, default 1/3
    end_factor : float, default 1
    total_iters : int, default 5
        The number of epochs until `end_factor`.
    last_epoch : int, default -1
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1:
            raise ValueError(f"start_factor must be above 0 and at most 1, not {start_factor}")
        if not 0 <= end_factor <= 1:
            raise ValueError(f"end_factor must be from 0 to 1, not {end_factor}")
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _first_factor(self) -> float:
        return self.start_factor

    def _factor(self) -> float:
        if self.last_epoch == 0:
            return self.start_factor
        if self.last_epoch > self.total_iters:
            return 1.0
        change = self.end_factor - self.start_factor
        return 1.0 + change / (self.total_iters * self.start_factor + (self.last_epoch - 1) * change)

    def _whole_factor(self) -> float:
        share = min(self.total_iters, self.last_epoch) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * share


class ExponentialLR(_FactorLR):
    """The learning rate times `gamma` after every epoch.

    Parameters
    ----------
    optimizer : Optimizer
    gamma : float
    last_epoch : int, default -1
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float:
        return self.gamma if self.last_epoch else 1.0

    def _whole_factor(self) -> float:
        return float(self.gamma**self.last_epoch)


class PolynomialLR(_FactorLR):
    """The learning rate times a power of the share of the epochs that are left.

    Parameters
    ----------
    optimizer : Optimizer
    total_iters : int, default 5
        The number of epochs until zero.
    power : float, default 1
    last_epoch : int, default -1
    """

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float:
        if self.last_epoch == 0 or self.last_epoch > self.total_iters:
            return 1.0
        left = 1.0 - self.last_epoch / self.total_iters
        return float((left / (1.0 - (self.last_epoch - 1) / self.total_iters)) ** self.power)

    def _whole_factor(self) -> float:
        return float((1.0 - min(self.total_iters, self.last_epoch) / self.total_iters) ** self.power)


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the learning rate to `eta_min` in `T_max` epochs, then back.

    Parameters
    ----------
    optimizer : Optimizer
    T_max : int
    eta_min : float, default 0
    last_epoch : int, default -1
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _height(self, epoch: int) -> float:
        return 1 + math.cos(math.pi * epoch / self.T_max)

    def get_lr(self) -> list[float]:
        lrs = lrs_of(self.optimizer)
        if self._is_initial:
            return lrs
        if self._step_count == 1 and self.last_epoch > 0:
            return self._get_closed_form_lr()
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            # The cosine is at its end, where the learning rate is `eta_min`, from which no factor leads away.
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            return [lr + (base - self.eta_min) * rise for base, lr in zip(self.base_lrs, lrs, strict=True)]
        ratio = self._height(self.last_epoch) / self._height(self.last_epoch - 1)
        return [ratio * (lr - self.eta_min) + self.eta_min for lr in lrs]

    def _get_closed_form_lr(self) -> list[float]:
        height = self._height(self.last_epoch)
        return [self.eta_min + (base - self.eta_min) * height / 2 for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine from the learning rate to `eta_min`, again and again.

    Parameters
    ----------
    optimizer : Optimizer
    T_0 : int
        The number of epochs of the first cosine.
    T_mult : int, default 1
        The factor by which each cosine is longer than that before.
    eta_min : float, default 0
    last_epoch : int, default -1
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        if not isinstance(T_0, int) or T_0 <= 0:
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if not isinstance(T_mult, int) or T_mult < 1:
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        self.T_0 = T_0
        self.T_i: float = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        height = 1 + math.cos(math.pi * self.T_cur / self.T_i)
        return [self.eta_min + (base - self.eta_min) * height / 2 for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Sets the learning rates of the next epoch, or of `epoch`, which may be a fraction."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        elif epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        elif epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            cosines = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**cosines - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**cosines
        self.last_epoch = math.floor(epoch)
        self._set(self.get_lr())


class _CombinedScheduler(LRScheduler):
    """A scheduler made of others."""

    def _combine(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None) -> None:
        if not schedulers:
            raise ValueError(f"{type(self).__name__} expects at least one scheduler, but got no scheduler.")
        self.optimizer = optimizer or schedulers[0].optimizer
        for number, scheduler in enumerate(schedulers):
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(
                    f"{type(self).__name__} does not support `ReduceLROnPlateau`, whose step needs a metric, "
                    f"but got one at index {number}"
                )
            if scheduler.optimizer is not self.optimizer:
                raise ValueError(
                    f"{type(self).__name__} expects all schedulers to belong to the same optimizer, "
                    f"but that at index {number} has another"
                )
        self._schedulers = schedulers

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"_schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "_schedulers"})
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)


class SequentialLR(_CombinedScheduler):
    """Schedulers one after the other.

    Parameters
    ----------
    optimizer : Optimizer
    schedulers : list of LRScheduler
    milestones : list of int
        The epochs at which each scheduler but the first begins.
    last_epoch : int, default -1
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int], last_epoch: int = -1
    ) -> None:
        self._combine(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than the number of "
                f"milestone points, but got {len(schedulers)} schedulers and {len(milestones)} milestones"
            )
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        # Each scheduler made its first step when it was made; only the first should have.
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        _undo_step(self)
        schedulers[0]._initial_step()
        self._last_lr = schedulers[0].get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        """Sets the learning rates of the next epoch."""
        if epoch is not None:
            raise ValueError("SequentialLR cannot move to an epoch: call step()")
        self.last_epoch += 1
        number = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[number]
        if number > 0 and self._milestones[number - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


def _undo_step(scheduler: LRScheduler) -> None:
    if isinstance(scheduler, _CombinedScheduler):
        for inner in scheduler._schedulers:
            _undo_step(inner)
    else:
        scheduler.last_epoch -= 1


class ChainedScheduler(_CombinedScheduler):
    """Schedulers that all change the learning rates at every step.

    Parameters
    ----------
    schedulers : sequence of LRScheduler
    optimizer : Optimizer, default None
        By default, that of the schedulers.
    """

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        self._combine(schedulers, optimizer)
        self._last_lr = lrs_of(self.optimizer)

    def step(self, epoch: int | None = None) -> None:
        """Steps all schedulers."""
        if epoch is not None:
            raise ValueError("ChainedScheduler cannot move to an epoch: call step()")
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = lrs_of(self.optimizer)
