"""The base of learning rate schedulers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from tenure.optim._optimizer import Optimizer

_WRONG_ORDER = (
    "Detected call of `lr_scheduler.step()` before `optimizer.step()`: the first learning rate is skipped. "
    "Call `optimizer.step()` before `lr_scheduler.step()`."
)


def lrs_of(optimizer: Optimizer) -> list[float]:
    """Returns the learning rate of each group."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def one_per_group(name: str, optimizer: Optimizer, values: Sequence[float] | float) -> list[float]:
    """Returns a value for each group."""
    count = len(optimizer.param_groups)
    if isinstance(values, int | float):
        return [values] * count
    if len(values) != count:
        raise ValueError(f"expected {count} values of {name}, one for each parameter group, but got {len(values)}")
    return list(values)


def check_optimizer(optimizer: object) -> None:
    """Raises an error if an object is not an optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")


class LRScheduler:
    """The base class of learning rate schedulers. Subclasses override `get_lr`.

    Parameters
    ----------
    optimizer : Optimizer
        The optimizer whose groups' ``"lr"`` is set.
    last_epoch : int, default -1
        The number of the last epoch of a run that goes on; -1 for a new one.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        for number, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", float(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(f"param 'initial_lr' is not specified in param_groups[{number}] when resuming")
        self.base_lrs = [float(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._is_initial = False
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self) -> list[float]:
        """Computes the next learning rate of each group."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """Returns the learning rates that the scheduler has set last."""
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """Sets the learning rates of the next epoch. Call it after the optimizer's `step`.

        Parameters
        ----------
        epoch : int, default None
            The epoch to move to; by default the next one.
        """
        if self._step_count == 1 and not self.optimizer._was_stepped:
            warnings.warn(_WRONG_ORDER, UserWarning, stacklevel=2)
        self._step_count += 1
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        if epoch is None:
            self.last_epoch += 1
            self._set(self.get_lr())
        else:
            self.last_epoch = epoch
            self._set(self._get_closed_form_lr())

    def _get_closed_form_lr(self) -> list[float]:
        """Computes the learning rates from `last_epoch` alone."""
        return self.get_lr()

    def _set(self, lrs: Sequence[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr
        self._last_lr = lrs_of(self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state: all but the optimizer."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a state that `state_dict` returned.

        Parameters
        ----------
        state_dict : dict
            The state.
        """
        self.__dict__.update(state_dict)
