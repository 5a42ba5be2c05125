"""Distributions of integers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property

import tenure
from tenure._native import Tensor
from tenure.autograd import no_grad
from tenure.distributions import constraints
from tenure.distributions.distribution import Distribution
from tenure.distributions.utils import broadcast_all, logits_to_probs, probs_to_logits, smallest

__all__ = ["Bernoulli", "Categorical"]

_NOT_ONE = "Either `probs` or `logits` must be specified, but not both."


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return tenure.binary_cross_entropy_with_logits(logits, target, reduction="none")


class Bernoulli(Distribution):
    """The distribution that is 1 with a probability, else 0.

    Parameters
    ----------
    probs : float or Tensor, default None
        The probabilities of 1. Either these or `logits` must be given.
    logits : float or Tensor, default None
        The logarithms of the odds of 1.
    validate_args : bool, default None
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    has_enumerate_support = True

    def __init__(
        self,
        probs: float | Tensor | None = None,
        logits: float | Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if probs is not None and logits is None:
            (self.probs,) = broadcast_all(probs)
            shape = self.probs.shape
        elif logits is not None and probs is None:
            (self.logits,) = broadcast_all(logits)
            shape = self.logits.shape
        else:
            raise ValueError(_NOT_ONE)
        super().__init__(shape, validate_args=validate_args)

    @cached_property
    def logits(self) -> Tensor:
        """The logarithms of the odds of 1."""
        return probs_to_logits(self.probs, is_binary=True)

    @cached_property
    def probs(self) -> Tensor:
        """The probabilities of 1."""
        return logits_to_probs(self.logits, is_binary=True)

    @property
    def param_shape(self) -> tuple[int, ...]:
        """The sizes of the parameter."""
        return self._batch_shape

    @property
    def support(self) -> constraints.Constraint:
        """The values that samples can have."""
        return constraints.boolean

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.probs

    @property
    def mode(self) -> Tensor:
        """The value with the highest probability, or NaN if both have the same."""
        return tenure.where(self.probs == 0.5, math.nan, (self.probs > 0.5).to(self.probs.dtype))

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draws `sample_shape` values of each distribution, without a gradient."""
        with no_grad():
            return self.probs.expand(self._extended_shape(sample_shape)).bernoulli()

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the probability of `value`."""
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        return -_cross_entropy(logits, value)

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        return _cross_entropy(self.logits, self.probs)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Returns 0 and 1 along a new first dimension: for each distribution, or once unless `expand`."""
        values = tenure.arange(2, dtype=self.probs.dtype, device=self.probs.device)
        values = values.view((-1,) + (1,) * len(self._batch_shape))
        return values.expand((2, *self._batch_shape)) if expand else values


class Categorical(Distribution):
    """The distribution of the index of one of several events.

    Parameters
    ----------
    probs : Tensor, default None
        The probabilities of the events along the last dimension, or numbers in proportion to them. Either these or
        `logits` must be given.
    logits : Tensor, default None
        The logarithms of such numbers.
    validate_args : bool, default None

    Examples
    --------
    >>> import tenure
    >>> from tenure.distributions import Categorical
    >>> Categorical(tenure.tensor([1.0, 3.0])).probs.tolist()
    [0.25, 0.75]
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    has_enumerate_support = True

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        if probs is not None and logits is None:
            if probs.ndim < 1:
                raise ValueError("`probs` parameter must be at least one-dimensional.")
            self.probs = probs / probs.sum(-1, keepdim=True)
            shape = probs.shape
        elif logits is not None and probs is None:
            if logits.ndim < 1:
                raise ValueError("`logits` parameter must be at least one-dimensional.")
            self.logits = logits - logits.logsumexp(-1, keepdim=True)
            shape = logits.shape
        else:
            raise ValueError(_NOT_ONE)
        self._num_events = shape[-1]
        super().__init__(shape[:-1], validate_args=validate_args)

    @cached_property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities."""
        return probs_to_logits(self.probs)

    @cached_property
    def probs(self) -> Tensor:
        """The probabilities."""
        return logits_to_probs(self.logits)

    @property
    def param_shape(self) -> tuple[int, ...]:
        """The sizes of the parameter."""
        return (*self._batch_shape, self._num_events)

    @property
    def support(self) -> constraints.Constraint:
        """The values that samples can have."""
        return constraints.integer_interval(0, self._num_events - 1)

    @property
    def mean(self) -> Tensor:
        """NaN: events have no mean."""
        return tenure.full_like(self.probs.select(-1, 0), math.nan)

    @property
    def mode(self) -> Tensor:
        """The event with the highest probability."""
        return self.probs.argmax(-1)

    @property
    def variance(self) -> Tensor:
        """NaN: events have no variance."""
        return self.mean

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draws `sample_shape` values of each distribution, without a gradient."""
        with no_grad():
            probs = self.probs.expand((*self._extended_shape(sample_shape), self._num_events))
            # The first of exponentially distributed times, each with the rate of its event's probability.
            times = -(-tenure.rand_like(probs)).log1p()
            return (probs / times.clamp_min(smallest(times))).argmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the probability of `value`."""
        self._validate_sample(value)
        index, logits = broadcast_all(value.long().unsqueeze(-1), self.logits)
        return logits.gather(-1, index[..., :1]).squeeze(-1)

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        # Events of probability 0 add nothing.
        return -(self.logits.nan_to_num(nan=math.nan) * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Returns all events along a new first dimension: for each distribution, or once unless `expand`."""
        values = tenure.arange(self._num_events, dtype=tenure.int64, device=self.probs.device)
        values = values.view((-1,) + (1,) * len(self._batch_shape))
        return values.expand((self._num_events, *self._batch_shape)) if expand else values
