"""The regularized lower incomplete gamma function: the cumulative distribution function of gamma distributions."""

from __future__ import annotations

import tenure
from tenure._native import Tensor

#: Terms are added until they change nothing any more, which is looked at after so many.
_TERMS_BETWEEN_CHECKS = 16
#: Stands for zeros that continued fractions divide by.
_TINY = 1e-300
_EPSILON = 2.0**-52


def lower_incomplete_gamma(a: Tensor, x: Tensor) -> Tensor:
    """Computes the integral of `t**(a - 1) * exp(-t)` from 0 to `x`, divided by the gamma function of `a`.

    Gradients flow to `x` alone, as in PyTorch.

    Parameters
    ----------
    a : Tensor
        Positive numbers.
    x : Tensor
        Numbers that are not negative.
    """
    with tenure.no_grad():
        wide_a, wide_x = a.detach().to(tenure.float64), x.detach().to(tenure.float64)
        is_inside = (wide_x > 0) & wide_x.isfinite()
        inside = tenure.where(is_inside, wide_x, 1.0)
        # The density times `x`.
        scale = (wide_a * inside.log() - inside - wide_a.lgamma()).exp()
        is_low = inside < wide_a + 1
        low = scale * _series(wide_a, tenure.where(is_low, inside, wide_a))
        high = 1 - scale * _fraction(wide_a, tenure.where(is_low, wide_a + 2, inside))
        # 0 gives 0, infinity 1, and NaN stays.
        outside = tenure.where(wide_x > 0, wide_x.clamp(max=1.0), wide_x)
        result = tenure.where(is_inside, tenure.where(is_low, low, high), outside).to(x.dtype)
    if not x.requires_grad:
        return result
    density = tenure.where(is_inside, scale / inside, 0.0).to(x.dtype)
    return result + (x - x.detach()) * density


def _series(a: Tensor, x: Tensor) -> Tensor:
    """Sums `x**n / (a * (a + 1) * ... * (a + n))` over all `n`."""
    term = a.reciprocal()
    total, n = term, 0
    while True:
        for _ in range(_TERMS_BETWEEN_CHECKS):
            n += 1
            term = term * x / (a + n)
            total = total + term
        # NaN is never small.
        if not (term > total * _EPSILON).any():
            return total


def _fraction(a: Tensor, x: Tensor) -> Tensor:
    """Computes the upper function's continued fraction by Lentz's method: "Numerical Recipes", section 6.2."""
    b = x + 1 - a
    c = tenure.full_like(x, 1 / _TINY)
    d = b.reciprocal()
    product, n = d, 0
    while True:
        for _ in range(_TERMS_BETWEEN_CHECKS):
            n += 1
            numerator = n * (a - n)
            b = b + 2
            d = _away_from_zero(numerator * d + b).reciprocal()
            c = _away_from_zero(b + numerator / c)
            factor = d * c
            product = product * factor
        if not ((factor - 1).abs() > 4 * _EPSILON).any():
            return product


def _away_from_zero(x: Tensor) -> Tensor:
    return tenure.where(x.abs() < _TINY, _TINY, x)
