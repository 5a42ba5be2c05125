"""Dimensions of a batch as dimensions of one value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

from tenure._native import Tensor
from tenure.distributions import constraints
from tenure.distributions.distribution import Distribution

__all__ = ["Independent"]


class Independent(Distribution):
    """A distribution of values that consist of independent values of another distribution.

    Parameters
    ----------
    base_distribution : Distribution
    reinterpreted_batch_ndims : int
        The number of its last batch dimensions that become dimensions of one value.
    validate_args : bool, default None

    Examples
    --------
    >>> import tenure
    >>> from tenure.distributions import Independent, Normal
    >>> normal = Independent(Normal(tenure.zeros(4, 3), 1.0), 1)
    >>> normal.log_prob(tenure.zeros(3)).shape
    (4,)
    """

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None
    ) -> None:
        batch = base_distribution.batch_shape
        if not 0 <= reinterpreted_batch_ndims <= len(batch):
            raise ValueError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), "
                f"actual {reinterpreted_batch_ndims} vs {len(batch)}"
            )
        split = len(batch) - reinterpreted_batch_ndims
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        super().__init__(batch[:split], batch[split:] + base_distribution.event_shape, validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether gradients flow through `rsample`."""
        return self.base_dist.has_rsample

    @property
    def support(self) -> constraints.Constraint:
        """The values that samples can have."""
        return constraints.independent(self.base_dist.support, self.reinterpreted_batch_ndims)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        """The value with the highest probability or density."""
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.base_dist.variance

    def expand(self, batch_shape: Sequence[int]) -> Self:
        """Returns a distribution whose parameters are expanded to `batch_shape`, without new memory."""
        within = self._event_shape[: self.reinterpreted_batch_ndims]
        base = self.base_dist.expand((*batch_shape, *within))
        return type(self)(base, self.reinterpreted_batch_ndims, self._validate_args)

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draws `sample_shape` values of each distribution, without a gradient."""
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draws `sample_shape` values of each distribution, through which gradients flow to the parameters."""
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the probability or density of `value`."""
        return self._summed(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        return self._summed(self.base_dist.entropy())

    def _summed(self, value: Tensor) -> Tensor:
        """Sums over the dimensions that belong to one value."""
        dims = tuple(range(-self.reinterpreted_batch_ndims, 0))
        return value.sum(dims) if dims else value

    def __repr__(self) -> str:
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"
