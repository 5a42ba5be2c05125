"""Samples of the gamma distribution of rate 1, and their gradients."""

from __future__ import annotations

from typing import Any

import tenure
from tenure._native import Tensor
from tenure.autograd import Function, once_differentiable
from tenure.distributions.utils import smallest

__all__ = ["log_standard_gamma", "standard_gamma", "standard_gamma_grad"]


def standard_gamma(concentration: Tensor) -> Tensor:
    """Draws a sample for each concentration. Gradients flow through it by implicit reparameterisation.

    Parameters
    ----------
    concentration : Tensor
    """
    sample: Tensor = _StandardGamma.apply(concentration)
    return sample


def log_standard_gamma(concentration: Tensor) -> Tensor:
    """Draws the logarithm of a sample for each concentration: those of small concentrations are nearly 0.

    Parameters
    ----------
    concentration : Tensor
    """
    is_small = (concentration < 1).to(concentration.dtype)
    return standard_gamma(concentration + is_small).log() + is_small * _log_uniform(concentration) / concentration


class _StandardGamma(Function):
    @staticmethod
    def forward(ctx: Any, concentration: Tensor) -> Tensor:
        # 16 bits are too few for the steps between.
        wide = concentration.float() if concentration.element_size() < 4 else concentration
        is_small = wide < 1
        sample = _above_one((wide + is_small.to(wide.dtype)).reshape(-1)).view(wide.shape)
        # A sample of `a` is one of `a + 1` times the power 1 / a of a uniform number.
        sample = tenure.where(is_small, sample * (_log_uniform(wide) / wide).exp(), sample)
        sample = sample.to(concentration.dtype)
        sample = sample.clamp_min(smallest(sample))
        ctx.save_for_backward(concentration, sample)
        return sample

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        concentration, sample = ctx.saved_tensors
        return grad * standard_gamma_grad(concentration, sample)


def _log_uniform(like: Tensor) -> Tensor:
    """Draws logarithms of uniformly distributed numbers above 0, up to 1."""
    return (-tenure.rand_like(like.detach())).log1p()


def _above_one(concentration: Tensor) -> Tensor:
    """Draws samples for concentrations of at least 1: Marsaglia and Tsang (2000), "A simple method for generating gamma
    variables". The rejected ones, at most one in twenty, are drawn again.
    """
    d = concentration - 1 / 3
    c = (9 * d).sqrt().reciprocal()
    sample = d.clone()
    pending = tenure.arange(concentration.numel(), dtype=tenure.int64, device=concentration.device)
    while pending.numel() > 0:
        x = tenure.randn_like(c)
        v = (1 + c * x) * (1 + c * x) * (1 + c * x)
        # Logarithms of numbers that are not positive are no matter: these are rejected.
        is_near = _log_uniform(c) < 0.5 * x * x + d - d * v + d * v.log()
        # NaN is accepted, since it would be drawn again for ever.
        is_accepted = (v > 0) & is_near | (d != d)
        sample[pending[is_accepted]] = (d * v)[is_accepted]
        is_rejected = ~is_accepted
        pending, c, d = pending[is_rejected], c[is_rejected], d[is_rejected]
    return sample


def standard_gamma_grad(concentration: Tensor, sample: Tensor) -> Tensor:
    """Returns the derivatives of samples by their concentrations: -(dF / da) / f, with the distribution function F.

    These are the formulas of PyTorch's `standard_gamma_grad` (`aten/src/ATen/native/Distributions.h`), accurate to
    about 5e-4 of the value.

    Parameters
    ----------
    concentration, sample : Tensor
    """
    is_short = concentration.element_size() < 4
    a, x = (concentration.float(), sample.float()) if is_short else (concentration, sample)
    is_small, is_large = x < 0.8, a > 8
    # Each formula gets numbers of its own domain, so that none overflows.
    found = tenure.where(is_large, _of_large(tenure.where(is_large, a, 9.0), x), _by_fit(a, x))
    found = tenure.where(is_small, _by_series(a, tenure.where(is_small, x, 0.5)), found)
    return found.to(concentration.dtype)


def _by_series(a: Tensor, x: Tensor) -> Tensor:
    """Differentiates the Taylor series of the distribution function, for small samples."""
    numerator = tenure.ones_like(x)
    denominator = a
    first = numerator / denominator
    second = first / denominator
    for i in range(1, 6):
        numerator = numerator * (-x / i)
        denominator = denominator + 1
        first = first + numerator / denominator
        second = second + numerator / denominator.square()
    # Both the derivative and the density have the factor x ** a.
    slope = (x.log() - a.digamma()) * first - second
    return (-slope * x * x.exp()).nan_to_num(nan=0.0)


def _of_large(a: Tensor, x: Tensor) -> Tensor:
    """Approximates by Rice's saddle point expansion, for large concentrations."""
    near = (1 + 24 * a * (1 + 12 * a)) / (1244160 * a.square().square())
    near = near * (1440 * a.square() + 6 * x * (53 - 120 * x) - 65 * x.square() / a + a * (107 + 3600 * x))
    is_near = (x >= 0.9 * a) & (x <= 1.1 * a)
    x = tenure.where(is_near, 0.5 * a, x)
    root = (8 * a).sqrt()
    ratio = (x / a).log()
    power = (x - a - a * ratio).pow(-1.5)
    both = root / (a - x) + tenure.where(x < a, -power, power)
    term = ratio * both - (2 / a).sqrt() * (a + x) / (a - x).square()
    stirling = 1 + 1 / (12 * a) * (1 + 1 / (24 * a))
    return tenure.where(is_near, near, -stirling * x * term / root)


# The numerator's four coefficients and the denominator's four, each a polynomial of the second degree.
_FIT = (
    (0.16009398, 0.53487893, 0.040121004),
    (-0.094634809, 0.1298071, -0.0065914022),
    (0.025146376, 0.065735949, -0.0026286047),
    (-0.0030648343, -0.0015649758, -0.0013441777),
    (1.0, 0.16639465, 0.017050642),
    (0.32668115, 0.020070113, -0.0021309326),
    (0.10406089, -0.0035938915, 0.00085092367),
    (0.0014179084, -0.00058392623, -1.5247877e-07),
)


def _by_fit(a: Tensor, x: Tensor) -> Tensor:
    """Evaluates a rational function that was fitted, for moderate concentrations."""
    u, v = (x / a).log(), a.log()
    of_u = [constant + u * (linear + u * square) for constant, linear, square in _FIT]
    numerator = of_u[0] + v * (of_u[1] + v * (of_u[2] + v * of_u[3]))
    denominator = of_u[4] + v * (of_u[5] + v * (of_u[6] + v * of_u[7]))
    return (numerator / denominator).exp()
