"""Losses. `size_average` and `reduce` are PyTorch's older names of `reduction`."""

from __future__ import annotations

import math

from tenure import _operations as _ops
from tenure._native import Tensor
from tenure.nn.functional.sparse import pairwise_distance

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
]

_Legacy = bool | None


def _reduction(size_average: _Legacy, reduce: _Legacy, reduction: str) -> str:
    if size_average is None and reduce is None:
        return reduction
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    if reduction not in ("mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return losses.mean() if reduction == "mean" else losses.sum()


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: _Legacy = None,
    reduce: _Legacy = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes absolute differences."""
    return _ops.l1_loss(input, target, _reduction(size_average, reduce, reduction))


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: _Legacy = None,
    reduce: _Legacy = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes squared differences."""
    return _ops.mse_loss(input, target, _reduction(size_average, reduce, reduction))


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: _Legacy = None,
    reduce: _Legacy = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """Computes squared differences up to `beta`, and absolute differences beyond."""
    if beta == 0:
        return l1_loss(input, target, size_average, reduce, reduction)
    return _ops.smooth_l1_loss(input, target, beta, _reduction(size_average, reduce, reduction))


def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Computes `delta` times `smooth_l1_loss` with a `beta` of `delta`."""
    return _ops.huber_loss(input, target, delta, reduction)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: _Legacy = None,
    ignore_index: int = -100,
    reduce: _Legacy = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Computes the cross entropy of logits and classes, or of logits and probabilities."""
    how = _reduction(size_average, reduce, reduction)
    return _ops.cross_entropy(input, target, weight, ignore_index, how, label_smoothing)


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: _Legacy = None,
    ignore_index: int = -100,
    reduce: _Legacy = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes the negative log-likelihood of classes, from logarithms of probabilities."""
    return _ops.nll_loss(input, target, weight, ignore_index, _reduction(size_average, reduce, reduction))


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: _Legacy = None,
    reduce: _Legacy = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes the cross entropy of probabilities and targets, both from 0 to 1."""
    return _ops.binary_cross_entropy(input, target, weight, _reduction(size_average, reduce, reduction))


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: _Legacy = None,
    reduce: _Legacy = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Computes `binary_cross_entropy` of the sigmoid of `input`."""
    how = _reduction(size_average, reduce, reduction)
    return _ops.binary_cross_entropy_with_logits(input, target, weight, pos_weight, how)


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: _Legacy = None,
    reduce: _Legacy = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Computes the Kullback-Leibler divergence; ``"batchmean"`` divides the sum by the size of the batch."""
    how = _reduction(size_average, reduce, reduction)
    if how == "batchmean":
        return _ops.kl_div(input, target, log_target, "sum") / input.shape[0]
    return _ops.kl_div(input, target, log_target, how)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: _Legacy = None,
    eps: float = 1e-8,
    reduce: _Legacy = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes the negative log-likelihood of Poisson distributions."""
    losses = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        stirling = target * target.log() - target + 0.5 * (2 * math.pi * target).log()
        losses = losses + stirling.masked_fill(target <= 1, 0.0)
    return _reduced(losses, _reduction(size_average, reduce, reduction))


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Computes the negative log-likelihood of normal distributions of the variances `var`."""
    if tuple(var.shape) == tuple(input.shape[:-1]):
        var = var.unsqueeze(-1)
    # The limit changes the value, and not the gradient.
    var = var + (_ops.clamp_min(var.detach(), eps) - var.detach())
    losses = 0.5 * (var.log() + (input - target).square() / var)
    return _reduced(losses + 0.5 * math.log(2 * math.pi) if full else losses, reduction)


def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: _Legacy = None,
    reduce: _Legacy = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes max(0, -target·(x₁ - x₂) + margin)."""
    losses = (margin - target * (input1 - input2)).relu()
    return _reduced(losses, _reduction(size_average, reduce, reduction))


def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: _Legacy = None,
    reduce: _Legacy = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes x where the target is 1, and max(0, margin - x) where it is -1."""
    far = (margin - input).relu().masked_fill(target == 1, 0.0)
    near = input.masked_fill(target == -1, 0.0)
    return _reduced(far + near, _reduction(size_average, reduce, reduction))


def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: _Legacy = None,
    reduce: _Legacy = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes log(1 + exp(-target·x))."""
    return _reduced((-target * input).exp().log1p(), _reduction(size_average, reduce, reduction))


def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: _Legacy = None,
    reduce: _Legacy = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes the mean binary cross entropy over classes."""
    losses = -(target * _ops.logsigmoid(input) + (1 - target) * _ops.logsigmoid(-input))
    losses = losses if weight is None else losses * weight
    return _reduced(losses.mean(-1), _reduction(size_average, reduce, reduction))


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: _Legacy = None,
    reduce: _Legacy = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes 1 - cos where the target is 1, and max(0, cos - margin) where it is -1."""
    squares = [x.square().sum(-1) + 1e-12 for x in (input1, input2)]
    cosine = (input1 * input2).sum(-1) / (squares[0] * squares[1]).sqrt()
    losses = (1 - cosine).masked_fill(target != 1, 0.0) + (cosine - margin).relu().masked_fill(target != -1, 0.0)
    return _reduced(losses, _reduction(size_average, reduce, reduction))


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: _Legacy = None,
    reduce: _Legacy = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes max(0, distance to the positive - distance to the negative + margin)."""
    near, far = pairwise_distance(anchor, positive, p, eps), pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = _ops.minimum(far, pairwise_distance(positive, negative, p, eps))
    return _reduced((near - far + margin).relu(), _reduction(size_average, reduce, reduction))
