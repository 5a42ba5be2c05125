"""Losses."""

from __future__ import annotations

from typing import Any

from tenure._native import Tensor
from tenure.nn import functional as F
from tenure.nn.functional.loss import _reduction
from tenure.nn.module import Module

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "MarginRankingLoss",
    "MultiLabelSoftMarginLoss",
    "NLLLoss",
    "PoissonNLLLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "TripletMarginLoss",
]


class _Loss(Module):
    """A loss. Tensors among its settings are buffers."""

    _function: Any
    _tensors: tuple[str, ...] = ()

    def __init__(self, reduction: str, **settings: Any) -> None:
        super().__init__()
        self.reduction = reduction
        self._names = tuple(settings)
        for name, value in settings.items():
            if name in self._tensors:
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, *inputs: Tensor) -> Tensor:
        settings = {name: getattr(self, name) for name in self._names}
        result: Tensor = type(self)._function(*inputs, reduction=self.reduction, **settings)
        return result


class L1Loss(_Loss):
    """Computes absolute differences."""

    _function = staticmethod(F.l1_loss)

    def __init__(self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean") -> None:
        super().__init__(_reduction(size_average, reduce, reduction))


class MSELoss(_Loss):
    """Computes squared differences."""

    _function = staticmethod(F.mse_loss)

    def __init__(self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean") -> None:
        super().__init__(_reduction(size_average, reduce, reduction))


class SmoothL1Loss(_Loss):
    """Computes squared differences up to `beta`, and absolute differences beyond."""

    _function = staticmethod(F.smooth_l1_loss)

    def __init__(
        self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean", beta: float = 1.0
    ) -> None:
        super().__init__(_reduction(size_average, reduce, reduction), beta=beta)


class HuberLoss(_Loss):
    """Computes `delta` times `SmoothL1Loss` with a `beta` of `delta`."""

    _function = staticmethod(F.huber_loss)

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction, delta=delta)


class CrossEntropyLoss(_Loss):
    """Computes the cross entropy of logits and classes, or of logits and probabilities."""

    _function = staticmethod(F.cross_entropy)
    _tensors = ("weight",)

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            _reduction(size_average, reduce, reduction),
            weight=weight,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
        )


class NLLLoss(_Loss):
    """Computes the negative log-likelihood of classes, from logarithms of probabilities."""

    _function = staticmethod(F.nll_loss)
    _tensors = ("weight",)

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(_reduction(size_average, reduce, reduction), weight=weight, ignore_index=ignore_index)


class BCELoss(_Loss):
    """Computes the cross entropy of probabilities and targets, both from 0 to 1."""

    _function = staticmethod(F.binary_cross_entropy)
    _tensors = ("weight",)

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(_reduction(size_average, reduce, reduction), weight=weight)


class BCEWithLogitsLoss(_Loss):
    """Computes `BCELoss` of the sigmoid of the input."""

    _function = staticmethod(F.binary_cross_entropy_with_logits)
    _tensors = ("weight", "pos_weight")

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(_reduction(size_average, reduce, reduction), weight=weight, pos_weight=pos_weight)


class KLDivLoss(_Loss):
    """Computes the Kullback-Leibler divergence."""

    _function = staticmethod(F.kl_div)

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        log_target: bool = False,
    ) -> None:
        super().__init__(_reduction(size_average, reduce, reduction), log_target=log_target)


class PoissonNLLLoss(_Loss):
    """Computes the negative log-likelihood of Poisson distributions."""

    _function = staticmethod(F.poisson_nll_loss)

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        size_average: bool | None = None,
        eps: float = 1e-8,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(_reduction(size_average, reduce, reduction), log_input=log_input, full=full, eps=eps)


class GaussianNLLLoss(_Loss):
    """Computes the negative log-likelihood of normal distributions."""

    _function = staticmethod(F.gaussian_nll_loss)

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction, full=full, eps=eps)


class MarginRankingLoss(_Loss):
    """Computes max(0, -target·(x₁ - x₂) + margin)."""

    _function = staticmethod(F.margin_ranking_loss)

    def __init__(
        self, margin: float = 0.0, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__(_reduction(size_average, reduce, reduction), margin=margin)


class HingeEmbeddingLoss(_Loss):
    """Computes x where the target is 1, and max(0, margin - x) where it is -1."""

    _function = staticmethod(F.hinge_embedding_loss)

    def __init__(
        self, margin: float = 1.0, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__(_reduction(size_average, reduce, reduction), margin=margin)


class SoftMarginLoss(_Loss):
    """Computes log(1 + exp(-target·x))."""

    _function = staticmethod(F.soft_margin_loss)

    def __init__(self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean") -> None:
        super().__init__(_reduction(size_average, reduce, reduction))


class MultiLabelSoftMarginLoss(_Loss):
    """Computes the mean binary cross entropy over classes."""

    _function = staticmethod(F.multilabel_soft_margin_loss)
    _tensors = ("weight",)

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(_reduction(size_average, reduce, reduction), weight=weight)


class CosineEmbeddingLoss(_Loss):
    """Computes 1 - cos where the target is 1, and max(0, cos - margin) where it is -1."""

    _function = staticmethod(F.cosine_embedding_loss)

    def __init__(
        self, margin: float = 0.0, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__(_reduction(size_average, reduce, reduction), margin=margin)


class TripletMarginLoss(_Loss):
    """Computes max(0, distance to the positive - distance to the negative + margin)."""

    _function = staticmethod(F.triplet_margin_loss)

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(_reduction(size_average, reduce, reduction), margin=margin, p=p, eps=eps, swap=swap)
