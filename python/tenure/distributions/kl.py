"""Divergences of two distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import tenure
from tenure._native import Tensor
from tenure.distributions.continuous import Exponential, Laplace, Normal, Uniform
from tenure.distributions.discrete import Bernoulli, Categorical
from tenure.distributions.distribution import Distribution
from tenure.distributions.gamma import Beta, Dirichlet, Gamma
from tenure.distributions.independent import Independent

__all__ = ["kl_divergence", "register_kl"]

_Formula = TypeVar("_Formula", bound=Callable[[Any, Any], Tensor])
_FORMULAS: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {}


def register_kl(type_p: type[Distribution], type_q: type[Distribution]) -> Callable[[_Formula], _Formula]:
    """Returns a decorator of the function that computes the divergence of two kinds of distributions.

    Parameters
    ----------
    type_p, type_q : type
    """

    def register(formula: _Formula) -> _Formula:
        _FORMULAS[type_p, type_q] = formula
        return formula

    return register


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """Returns the Kullback-Leibler divergence of `q` from `p`: the mean of log(p / q) over values of `p`.

    Parameters
    ----------
    p, q : Distribution
        Two distributions of one kind, or of kinds for which `register_kl` was given a function.
    """
    for of_p in type(p).__mro__:
        for of_q in type(q).__mro__:
            if (of_p, of_q) in _FORMULAS:
                return _FORMULAS[of_p, of_q](p, q)
    raise NotImplementedError(
        f"No KL(p || q) is implemented for p type {type(p).__name__} and q type {type(q).__name__}"
    )


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale).square() - 1 - ratio.log())


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio = p.scale / q.scale
    distance = (p.loc - q.loc).abs()
    return distance / q.scale + ratio * (-distance / p.scale).exp() - ratio.log() - 1


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Tensor:
    is_outside = (q.low > p.low) | (q.high < p.high)
    return tenure.where(is_outside, math.inf, ((q.high - q.low) / (p.high - p.low)).log())


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - ratio.log() - 1


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    of_one = _product(p.probs, (-q.logits).softplus() - (-p.logits).softplus(), q.probs == 0)
    of_zero = _product(1 - p.probs, q.logits.softplus() - p.logits.softplus(), q.probs == 1)
    return of_one + of_zero


@register_kl(Categorical, Categorical)
def _categorical(p: Categorical, q: Categorical) -> Tensor:
    return _product(p.probs, p.logits - q.logits, q.probs == 0).sum(-1)


def _product(probability: Tensor, ratio: Tensor, is_impossible: Tensor) -> Tensor:
    """Returns the share of events in a divergence: infinite if `q` has none, and 0 if `p` has none."""
    product = tenure.where(is_impossible, math.inf, probability * ratio)
    return tenure.where(probability == 0, 0.0, product)


@register_kl(Gamma, Gamma)
def _gamma(p: Gamma, q: Gamma) -> Tensor:
    return (
        q.concentration * (p.rate / q.rate).log()
        + q.concentration.lgamma()
        - p.concentration.lgamma()
        + (p.concentration - q.concentration) * p.concentration.digamma()
        + (q.rate - p.rate) * (p.concentration / p.rate)
    )


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Tensor:
    of_p = p.concentration1 + p.concentration0
    of_q = q.concentration1 + q.concentration0
    return (
        q.concentration1.lgamma()
        + q.concentration0.lgamma()
        + of_p.lgamma()
        - (p.concentration1.lgamma() + p.concentration0.lgamma() + of_q.lgamma())
        + (p.concentration1 - q.concentration1) * p.concentration1.digamma()
        + (p.concentration0 - q.concentration0) * p.concentration0.digamma()
        + (of_q - of_p) * of_p.digamma()
    )


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    of_p = p.concentration.sum(-1)
    of_q = q.concentration.sum(-1)
    slopes = p.concentration.digamma() - of_p.digamma().unsqueeze(-1)
    return (
        of_p.lgamma()
        - of_q.lgamma()
        - (p.concentration.lgamma() - q.concentration.lgamma()).sum(-1)
        + ((p.concentration - q.concentration) * slopes).sum(-1)
    )


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("No KL(p || q) is implemented for different reinterpreted_batch_ndims")
    return p._summed(kl_divergence(p.base_dist, q.base_dist))
