"""Distributions of real numbers with a location and a scale, or a rate."""

from __future__ import annotations

import math
from collections.abc import Iterable

import tenure
from tenure._native import Tensor
from tenure.distributions import constraints
from tenure.distributions.distribution import Distribution
from tenure.distributions.utils import broadcast_all, epsilon, smallest

__all__ = ["Exponential", "Laplace", "Normal", "Uniform"]


def _uniform(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Draws numbers from 0 up to but without 1."""
    return tenure.rand(shape, dtype=like.dtype, device=like.device)


class Normal(Distribution):
    """The normal distribution with the mean `loc` and the standard deviation `scale`.

    Parameters
    ----------
    loc, scale : float or Tensor
    validate_args : bool, default None

    Examples
    --------
    >>> from tenure.distributions import Normal
    >>> Normal(1.0, 2.0)
    Normal(loc: 1.0, scale: 2.0)
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    has_rsample = True

    def __init__(self, loc: float | Tensor, scale: float | Tensor, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """The values that samples can have."""
        return constraints.real

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The value with the highest density."""
        return self.loc

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.scale.square()

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draws `sample_shape` values of each distribution, through which gradients flow to the parameters."""
        shape = self._extended_shape(sample_shape)
        return self.loc + tenure.randn(shape, dtype=self.loc.dtype, device=self.loc.device) * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the density of `value`."""
        self._validate_sample(value)
        distance = (value - self.loc).square() / (2 * self.scale.square())
        return -distance - self.scale.log() - math.log(math.sqrt(2 * math.pi))

    def cdf(self, value: Tensor) -> Tensor:
        """Returns the probability of values up to `value`."""
        self._validate_sample(value)
        return 0.5 * (1 + ((value - self.loc) / self.scale / math.sqrt(2)).erf())

    def icdf(self, value: Tensor) -> Tensor:
        """Returns the number whose `cdf` is `value`."""
        return self.loc + self.scale * (2 * value - 1).erfinv() * math.sqrt(2)

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        return 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()


class Laplace(Distribution):
    """The distribution of two exponential distributions, back to back at `loc`.

    Parameters
    ----------
    loc, scale : float or Tensor
    validate_args : bool, default None
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    has_rsample = True

    def __init__(self, loc: float | Tensor, scale: float | Tensor, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """The values that samples can have."""
        return constraints.real

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The value with the highest density."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return 2 * self.scale.square()

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return math.sqrt(2) * self.scale

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draws `sample_shape` values of each distribution, through which gradients flow to the parameters."""
        shape = self._extended_shape(sample_shape)
        # The least number keeps the logarithm finite.
        u = (2 * _uniform(shape, self.loc) - 1).clamp_min(epsilon(self.loc) - 1)
        return self.loc - self.scale * u.sign() * (-u.abs()).log1p()

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the density of `value`."""
        self._validate_sample(value)
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def cdf(self, value: Tensor) -> Tensor:
        """Returns the probability of values up to `value`."""
        self._validate_sample(value)
        distance = value - self.loc
        return 0.5 - 0.5 * distance.sign() * (-distance.abs() / self.scale).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        """Returns the number whose `cdf` is `value`."""
        term = value - 0.5
        return self.loc - self.scale * term.sign() * (-2 * term.abs()).log1p()

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        return 1 + (2 * self.scale).log()


class Uniform(Distribution):
    """The uniform distribution from `low` up to but without `high`.

    Parameters
    ----------
    low, high : float or Tensor
    validate_args : bool, default None
    """

    has_rsample = True

    def __init__(self, low: float | Tensor, high: float | Tensor, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast_all(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:  # type: ignore[override]
        """The constraint of each parameter."""
        return {"low": constraints.less_than(self.high), "high": constraints.greater_than(self.low)}

    @property
    def support(self) -> constraints.Constraint:
        """The values that samples can have."""
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Tensor:
        """NaN: all values have the same density."""
        return tenure.full_like(self.high, math.nan)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return (self.high - self.low).square() / 12

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return (self.high - self.low) / math.sqrt(12)

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draws `sample_shape` values of each distribution, through which gradients flow to the parameters."""
        return self.low + _uniform(self._extended_shape(sample_shape), self.low) * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the density of `value`."""
        self._validate_sample(value)
        is_inside = (self.low <= value) & (self.high > value)
        return is_inside.to(self.low.dtype).log() - (self.high - self.low).log()

    def cdf(self, value: Tensor) -> Tensor:
        """Returns the probability of values up to `value`."""
        self._validate_sample(value)
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        """Returns the number whose `cdf` is `value`."""
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        return (self.high - self.low).log()


class Exponential(Distribution):
    """The distribution of times between events that occur `rate` times in a unit of time.

    Parameters
    ----------
    rate : float or Tensor
    validate_args : bool, default None
    """

    arg_constraints = {"rate": constraints.positive}
    has_rsample = True

    def __init__(self, rate: float | Tensor, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """The values that samples can have."""
        return constraints.nonnegative

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.rate.reciprocal()

    @property
    def mode(self) -> Tensor:
        """The value with the highest density."""
        return tenure.zeros_like(self.rate)

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return self.rate.reciprocal()

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.rate.square().reciprocal()

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draws `sample_shape` values of each distribution, through which gradients flow to the parameters."""
        drawn = -(-_uniform(self._extended_shape(sample_shape), self.rate)).log1p()
        return drawn.clamp_min(smallest(self.rate)) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the density of `value`."""
        self._validate_sample(value)
        return self.rate.log() - self.rate * value

    def cdf(self, value: Tensor) -> Tensor:
        """Returns the probability of values up to `value`."""
        self._validate_sample(value)
        return 1 - (-self.rate * value).exp()

    def icdf(self, value: Tensor) -> Tensor:
        """Returns the number whose `cdf` is `value`."""
        return -(-value).log1p() / self.rate

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        return 1 - self.rate.log()
