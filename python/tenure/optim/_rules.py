"""The optimizers. Their constructors are PyTorch's; `foreach`, `fused` and `capturable` change nothing here."""

from __future__ import annotations

from typing import Any, ClassVar

from tenure._native import Tensor
from tenure.optim._fused import FusedOptimizer
from tenure.optim._optimizer import ParamsT


def check(**numbers: float | Tensor) -> None:
    """Raises PyTorch's error if one of the numbers is negative."""
    for name, number in numbers.items():
        if not float(number) >= 0:
            raise ValueError(f"Invalid {name} value: {number}")


def check_lr(lr: float | Tensor) -> None:
    """Raises PyTorch's error if the learning rate is negative."""
    if not float(lr) >= 0:
        raise ValueError(f"Invalid learning rate: {lr}")


def check_betas(betas: tuple[float, float]) -> None:
    """Raises PyTorch's error if a decay factor is not from 0 to below 1."""
    for index, beta in enumerate(betas):
        if not 0 <= beta < 1:
            raise ValueError(f"Invalid beta parameter at index {index}: {beta}")


class SGD(FusedOptimizer):
    """Gradient descent, with momentum if that is above 0.

    Parameters
    ----------
    params : iterable
        Parameters, pairs of a name and a parameter, or groups of them.
    lr : float, default 1e-3
        The learning rate.
    momentum : float, default 0
        The share of the last step that is added again.
    dampening : float, default 0
        The share of the gradient that does not enter the momentum.
    weight_decay : float, default 0
        The factor of the parameter that is added to its gradient.
    nesterov : bool, default False
        Whether the gradient is taken at the place where the momentum leads.
    maximize : bool, default False
        Whether the parameters ascend their gradients.
    """

    _rule: ClassVar[str] = "SGD"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_lr(lr)
        check(momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults: dict[str, Any] = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def _counts(self, group: dict[str, Any], steps: int) -> dict[str, Tensor]:
        return {}


class Adam(FusedOptimizer):
    """Adam (Kingma and Ba, 2015).

    Parameters
    ----------
    params : iterable
        Parameters, pairs of a name and a parameter, or groups of them.
    lr : float, default 1e-3
        The learning rate.
    betas : (float, float), default (0.9, 0.999)
        The decay factors of the averages of the gradient and of its square.
    eps : float, default 1e-8
        The number that is added to the denominator.
    weight_decay : float, default 0
        The factor of the parameter that is added to its gradient.
    amsgrad : bool, default False
        Not supported.
    maximize : bool, default False
        Whether the parameters ascend their gradients.
    decoupled_weight_decay : bool, default False
        Whether the weight decay is separate from the gradient: `AdamW`.
    """

    _rule: ClassVar[str] = "Adam"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        check_lr(lr)
        check(epsilon=eps, weight_decay=weight_decay)
        check_betas(betas)
        defaults: dict[str, Any] = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults)


class AdamW(Adam):
    """Adam with a weight decay that is separate from the gradient (Loshchilov and Hutter, 2019).

    The parameters are those of `Adam`, with a weight decay of 0.01.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )


class Adagrad(FusedOptimizer):
    """Adagrad (Duchi et al., 2011).

    Parameters
    ----------
    params : iterable
        Parameters, pairs of a name and a parameter, or groups of them.
    lr : float, default 1e-2
        The learning rate.
    lr_decay : float, default 0
        The decay of the learning rate, which is divided by 1 + `lr_decay` times the number of earlier steps.
    weight_decay : float, default 0
        The factor of the parameter that is added to its gradient.
    initial_accumulator_value : float, default 0
        The initial sum of squares.
    eps : float, default 1e-10
        The number that is added to the denominator.
    maximize : bool, default False
        Whether the parameters ascend their gradients.
    """

    _rule: ClassVar[str] = "Adagrad"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_lr(lr)
        check(
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            epsilon=eps,
        )
        defaults: dict[str, Any] = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._native.prepare(self.param_groups)
