"""RMSprop, NAdam and Adafactor. Their constructors are PyTorch's; `foreach` and `capturable` change nothing here."""

from __future__ import annotations

from typing import Any, ClassVar

from tenure._native import Tensor, float32, tensor
from tenure.optim._fused import FusedOptimizer
from tenure.optim._optimizer import ParamsT
from tenure.optim._rules import check, check_betas, check_lr


class RMSprop(FusedOptimizer):
    """RMSprop (Tieleman and Hinton, 2012), also centered (Graves, 2013).

    Parameters
    ----------
    params : iterable
        Parameters, pairs of a name and a parameter, or groups of them.
    lr : float, default 1e-2
        The learning rate.
    alpha : float, default 0.99
        The decay factor of the averages of the gradient and of its square.
    eps : float, default 1e-8
        The number that is added to the denominator.
    weight_decay : float, default 0
        The factor of the parameter that is added to its gradient.
    momentum : float, default 0
        The share of the last step that is added again.
    centered : bool, default False
        Whether the gradient is divided by its standard deviation rather than by its root mean square.
    maximize : bool, default False
        Whether the parameters ascend their gradients.
    """

    _rule: ClassVar[str] = "RMSprop"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_lr(lr)
        check(epsilon=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha)
        defaults: dict[str, Any] = {
            "lr": lr,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
            "capturable": capturable,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)


class NAdam(FusedOptimizer):
    """Adam with Nesterov's momentum (Dozat, 2016).

    The state's `mu_product`, the product of all momenta so far, follows from the number of steps and the present
    settings of the group. A loaded one is not read.

    Parameters
    ----------
    params : iterable
        Parameters, pairs of a name and a parameter, or groups of them.
    lr : float, default 2e-3
        The learning rate.
    betas : (float, float), default (0.9, 0.999)
        The decay factors of the averages of the gradient and of its square.
    eps : float, default 1e-8
        The number that is added to the denominator.
    weight_decay : float, default 0
        The factor of the parameter that is added to its gradient.
    momentum_decay : float, default 4e-3
        The rate at which the momentum grows from half of the first beta to all of it.
    decoupled_weight_decay : bool, default False
        Whether the weight decay is separate from the gradient, as in `AdamW`.
    maximize : bool, default False
        Whether the parameters ascend their gradients.
    """

    _rule: ClassVar[str] = "NAdam"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_lr(lr)
        check(epsilon=eps)
        check_betas(betas)
        check(weight_decay=weight_decay, momentum_decay=momentum_decay)
        defaults: dict[str, Any] = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def _counts(self, group: dict[str, Any], steps: int) -> dict[str, Tensor]:
        product = 1.0
        for step in range(1, steps + 1):
            product *= group["betas"][0] * (1 - 0.5 * 0.96 ** (step * group["momentum_decay"]))
            if product == 0:
                break
        return super()._counts(group, steps) | {"mu_product": tensor(product, dtype=float32)}


class Adafactor(FusedOptimizer):
    """Adafactor (Shazeer and Stern, 2018), whose state for a matrix is a vector of its rows and one of its columns.

    Parameters
    ----------
    params : iterable
        Parameters, pairs of a name and a parameter, or groups of them.
    lr : float, default 1e-2
        The upper limit of the relative step size, which falls as the square root of the steps.
    beta2_decay : float, default -0.8
        The exponent of the step number in the share that a new square has in the average.
    eps : (float or None, float), default (None, 1e-3)
        The least root of an average square, by default the machine epsilon of the parameter's dtype, and the least root
        mean square of a parameter that the step is relative to.
    d : float, default 1
        The root mean square of an update above which the update is scaled down to it.
    weight_decay : float, default 0
        The weight decay, which is separate from the gradient.
    maximize : bool, default False
        Whether the parameters ascend their gradients.
    """

    _rule: ClassVar[str] = "Adafactor"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        if not float(lr) >= 0:
            raise ValueError(f"Learning rate should be >= 0 but is: {lr}")
        if not beta2_decay <= 0:
            raise ValueError(f"beta2_decay should be <= 0 but is: {beta2_decay}")
        if eps[0] is not None and not eps[0] >= 0:
            raise ValueError(f"epsilon1 should be >= 0 but is: {eps[0]}")
        if not eps[1] >= 0:
            raise ValueError(f"epsilon2 should be >= 0 but is: {eps[1]}")
        if not d >= 1:
            raise ValueError(f"Clipping threshold d should be >= 1 but is: {d}")
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay should be >= 0 but is: {weight_decay}")
        defaults: dict[str, Any] = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps": tuple(eps),
            "d": d,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
        }
        super().__init__(params, defaults)
