"""The base of distributions."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import ClassVar, Self

from tenure._native import Tensor
from tenure.autograd import no_grad
from tenure.distributions.constraints import Constraint

__all__ = ["Distribution"]


class Distribution:
    """The base of distributions.

    A sample has three kinds of dimensions, in this order: those that `sample` is asked for; `batch_shape`, one
    distribution for each index; and `event_shape`, the sizes of one value of one distribution.

    Parameters
    ----------
    batch_shape, event_shape : tuple of int, default ()
    validate_args : bool, default None
        Whether parameters and values are checked. `None` stands for what `set_default_validate_args` has set, which is
        true unless Python runs with `-O`.

    Attributes
    ----------
    arg_constraints : dict
        The constraint of each parameter.
    has_rsample : bool
        Whether gradients flow through `rsample`.
    has_enumerate_support : bool
        Whether `enumerate_support` can list all values.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    has_rsample = False
    has_enumerate_support = False
    _validate_args = __debug__

    def __init__(
        self,
        batch_shape: Sequence[int] = (),
        event_shape: Sequence[int] = (),
        validate_args: bool | None = None,
    ) -> None:
        self._batch_shape = tuple(batch_shape)
        self._event_shape = tuple(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if not self._validate_args:
            return
        for name, constraint in self.arg_constraints.items():
            # Parameters that are computed from others when they are needed are not there yet.
            value = self.__dict__.get(name)
            if value is not None and not constraint.check(value).all():
                raise ValueError(
                    f"Expected parameter {name} ({type(value).__name__} of shape {value.shape}) "
                    f"of distribution {self!r} to satisfy the constraint {constraint!r}, "
                    f"but found invalid values:\n{value}"
                )

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Sets whether distributions that are made from now on check parameters and values.

        Parameters
        ----------
        value : bool
        """
        if value not in (True, False):
            raise ValueError(f"value={value!r}: expected True or False")
        Distribution._validate_args = value

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions whose indices have a distribution each."""
        return self._batch_shape

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The sizes of one value."""
        return self._event_shape

    @property
    def support(self) -> Constraint:
        """The values that samples can have."""
        raise NotImplementedError(f"{type(self).__name__} does not implement support")

    @property
    def mean(self) -> Tensor:
        """The mean."""
        raise NotImplementedError(f"{type(self).__name__} does not implement mean")

    @property
    def mode(self) -> Tensor:
        """The value with the highest probability or density."""
        raise NotImplementedError(f"{type(self).__name__} does not implement mode")

    @property
    def variance(self) -> Tensor:
        """The variance."""
        raise NotImplementedError(f"{type(self).__name__} does not implement variance")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return self.variance.sqrt()

    def expand(self, batch_shape: Sequence[int]) -> Self:
        """Returns a distribution whose parameters are expanded to `batch_shape`, without new memory."""
        new = copy.copy(self)
        new._batch_shape = tuple(batch_shape)
        for name, constraint in self.arg_constraints.items():
            if name in self.__dict__:
                value = self.__dict__[name]
                event = value.shape[len(value.shape) - constraint.event_dim :]
                new.__dict__[name] = value.expand((*new._batch_shape, *event))
        return new

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draws `sample_shape` values of each distribution, without a gradient."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draws `sample_shape` values of each distribution, through which gradients flow to the parameters."""
        raise NotImplementedError(f"{type(self).__name__} does not implement rsample: gradients do not flow through it")

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the probability or density of `value`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement log_prob")

    def cdf(self, value: Tensor) -> Tensor:
        """Returns the probability of values up to `value`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement cdf")

    def icdf(self, value: Tensor) -> Tensor:
        """Returns the number whose `cdf` is `value`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement icdf")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Returns all values along a new first dimension: for each distribution, or once unless `expand`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement enumerate_support")

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        raise NotImplementedError(f"{type(self).__name__} does not implement entropy")

    def perplexity(self) -> Tensor:
        """Returns e to the power of the entropy."""
        return self.entropy().exp()

    def _extended_shape(self, sample_shape: Iterable[int] = ()) -> tuple[int, ...]:
        return (*sample_shape, *self._batch_shape, *self._event_shape)

    def _validate_sample(self, value: Tensor) -> None:
        """Checks a value's sizes and elements, if values are to be checked."""
        if not self._validate_args:
            return
        if not isinstance(value, Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        shape = value.shape
        if shape[max(0, len(shape) - len(self._event_shape)) :] != self._event_shape:
            raise ValueError(f"The right-most size of value must match event_shape: {shape} vs {self._event_shape}.")
        expected = self._extended_shape()
        for found, needed in zip(reversed(shape), reversed(expected), strict=False):
            if found != 1 and needed != 1 and found != needed:
                raise ValueError(f"Value is not broadcastable with batch_shape+event_shape: {shape} vs {expected}.")
        if not self.support.check(value).all():
            raise ValueError(
                f"Expected value argument ({type(value).__name__} of shape {shape}) to be within the support "
                f"({self.support!r}) of the distribution {self!r}, but found invalid values:\n{value}"
            )

    def __repr__(self) -> str:
        given = {name: self.__dict__[name] for name in self.arg_constraints if name in self.__dict__}
        shown = [f"{name}: {value if value.numel() == 1 else value.shape}" for name, value in given.items()]
        return f"{type(self).__name__}({', '.join(shown)})"
