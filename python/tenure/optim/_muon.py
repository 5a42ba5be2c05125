"""Muon. Its constructor is PyTorch's."""

from __future__ import annotations

from typing import Any, ClassVar

from tenure._native import Tensor
from tenure.optim._fused import FusedOptimizer
from tenure.optim._optimizer import ParamsT


class Muon(FusedOptimizer):
    """Muon: a momentum whose matrices are made orthogonal (Jordan et al., 2024).

    Its parameters are matrices. Biases, embeddings and others belong in another optimizer, such as `AdamW`.

    Parameters
    ----------
    params : iterable
        Parameters, pairs of a name and a parameter, or groups of them.
    lr : float, default 1e-3
        The learning rate.
    weight_decay : float, default 0.1
        The weight decay, which is separate from the gradient.
    momentum : float, default 0.95
        The decay factor of the gradient's average.
    nesterov : bool, default True
        Whether the gradient is mixed with its average once more.
    ns_coefficients : (float, float, float), default (3.4445, -4.775, 2.0315)
        The coefficients of x, x³ and x⁵ in the polynomial of the Newton-Schulz iteration.
    eps : float, default 1e-7
        The least norm that a matrix is divided by before the iteration.
    ns_steps : int, default 5
        The number of Newton-Schulz iterations, below 100.
    adjust_lr_fn : {"original", "match_rms_adamw"}, default "original"
        The factor of the learning rate for a matrix of `rows` and `columns`: √max(1, `rows` / `columns`), or
        0.2 √max(`rows`, `columns`), with which updates are as large as those of `AdamW`.

    Examples
    --------
    >>> import tenure
    >>> x = tenure.ones(2, 3, requires_grad=True)
    >>> optimizer = tenure.optim.Muon([x], lr=0.1)
    >>> (x * x).sum().backward()
    >>> optimizer.step()
    """

    _rule: ClassVar[str] = "Muon"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        if not float(lr) >= 0:
            raise ValueError(f"Learning rate should be >= 0 but is: {lr}")
        if not momentum >= 0:
            raise ValueError(f"momentum should be >= 0 but is: {momentum}")
        if not weight_decay >= 0:
            raise ValueError(f"weight decay should be >= 0 but is: {weight_decay}")
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
        defaults: dict[str, Any] = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": tuple(ns_coefficients),
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            if param.ndim != 2:
                sizes = tuple(param.shape)
                raise ValueError(f"Muon only supports 2D parameters whereas we found a parameter with size: {sizes}")

    def _counts(self, group: dict[str, Any], steps: int) -> dict[str, Tensor]:
        return {}
