"""The gamma distribution, and those of shares of several gamma-distributed numbers."""

from __future__ import annotations

from collections.abc import Iterable

import tenure
from tenure._native import Tensor
from tenure.distributions import constraints
from tenure.distributions.distribution import Distribution
from tenure.distributions.incomplete_gamma import lower_incomplete_gamma
from tenure.distributions.standard_gamma import log_standard_gamma, standard_gamma
from tenure.distributions.utils import broadcast_all, epsilon, smallest, xlogy

__all__ = ["Beta", "Dirichlet", "Gamma"]


class Gamma(Distribution):
    """The gamma distribution with the shape `concentration` and the rate `rate`.

    Parameters
    ----------
    concentration, rate : float or Tensor
    validate_args : bool, default None
    """

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    has_rsample = True

    def __init__(self, concentration: float | Tensor, rate: float | Tensor, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """The values that samples can have."""
        return constraints.nonnegative

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        """The value with the highest density."""
        return ((self.concentration - 1) / self.rate).clamp_min(0)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.concentration / self.rate.square()

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draws `sample_shape` values of each distribution, through which gradients flow to the parameters."""
        value = standard_gamma(self.concentration.expand(self._extended_shape(sample_shape))) / self.rate
        return value.clamp_min(smallest(value))

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the density of `value`."""
        value = tenure.as_tensor(value, dtype=self.rate.dtype, device=self.rate.device)
        self._validate_sample(value)
        return (
            xlogy(self.concentration, self.rate)
            + xlogy(self.concentration - 1, value)
            - self.rate * value
            - self.concentration.lgamma()
        )

    def cdf(self, value: Tensor) -> Tensor:
        """Returns the probability of at most `value`. Gradients flow to `value` and `rate`, as in PyTorch."""
        value = tenure.as_tensor(value, dtype=self.rate.dtype, device=self.rate.device)
        self._validate_sample(value)
        return lower_incomplete_gamma(self.concentration, self.rate * value)

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1 - a) * a.digamma()


class Dirichlet(Distribution):
    """The distribution of shares of a whole, which are in the last dimension.

    Gradients of `rsample` are those of the gamma-distributed numbers of which the shares are made. They have the mean
    of PyTorch's, which are derivatives of each share alone, but differ from them sample by sample.

    Parameters
    ----------
    concentration : Tensor
    validate_args : bool, default None
    """

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    has_rsample = True

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.ndim < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """The values that samples can have."""
        return constraints.simplex

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def mode(self) -> Tensor:
        """The value with the highest density."""
        above = (self.concentration - 1).clamp_min(0)
        mode = above / above.sum(-1, keepdim=True)
        largest = tenure.one_hot(mode.argmax(-1), self.concentration.shape[-1]).to(mode.dtype)
        return tenure.where((self.concentration < 1).all(-1, keepdim=True), largest, mode)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        total = self.concentration.sum(-1, keepdim=True)
        return self.concentration * (total - self.concentration) / (total.square() * (total + 1))

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draws `sample_shape` values of each distribution, through which gradients flow to the parameters."""
        # Logarithms, since the numbers themselves may all be nearly 0.
        return log_standard_gamma(self.concentration.expand(self._extended_shape(sample_shape))).softmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the density of `value`."""
        self._validate_sample(value)
        return (
            xlogy(self.concentration - 1, value).sum(-1)
            + self.concentration.sum(-1).lgamma()
            - self.concentration.lgamma().sum(-1)
        )

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        a = self.concentration
        total = a.sum(-1)
        return (
            a.lgamma().sum(-1)
            - total.lgamma()
            - (a.shape[-1] - total) * total.digamma()
            - ((a - 1) * a.digamma()).sum(-1)
        )


class Beta(Distribution):
    """The beta distribution, of one of two shares of a whole.

    Gradients of `rsample` are those of the two gamma-distributed numbers of which the share is made. They have the mean
    of PyTorch's, which are derivatives of the share alone, but differ from them sample by sample.

    Parameters
    ----------
    concentration1, concentration0 : float or Tensor
        The concentrations of this share and of the other.
    validate_args : bool, default None
    """

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    has_rsample = True

    def __init__(
        self, concentration1: float | Tensor, concentration0: float | Tensor, validate_args: bool | None = None
    ) -> None:
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        super().__init__(self.concentration1.shape, validate_args=validate_args)

    @property
    def _dirichlet(self) -> Dirichlet:
        return Dirichlet(tenure.stack([self.concentration1, self.concentration0], -1), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """The values that samples can have."""
        return constraints.unit_interval

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        """The value with the highest density."""
        return self._dirichlet.mode[..., 0]

    @property
    def variance(self) -> Tensor:
        """The variance."""
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total.square() * (total + 1))

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draws `sample_shape` values of each distribution, through which gradients flow to the parameters."""
        shape = self._extended_shape(sample_shape)
        ratio = log_standard_gamma(self.concentration1.expand(shape)) - log_standard_gamma(
            self.concentration0.expand(shape)
        )
        # The density of 0 and of 1 may be infinite.
        return ratio.sigmoid().clamp(smallest(ratio), 1 - epsilon(ratio) / 2)

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the density of `value`."""
        self._validate_sample(value)
        return self._dirichlet.log_prob(tenure.stack([value, 1 - value], -1))

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        return self._dirichlet.entropy()
