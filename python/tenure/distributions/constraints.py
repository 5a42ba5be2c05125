"""Constraints on parameters and values of distributions, by the names of `torch.distributions.constraints`."""

from __future__ import annotations

from tenure._native import Tensor

__all__ = [
    "Constraint",
    "boolean",
    "greater_than",
    "greater_than_eq",
    "independent",
    "integer_interval",
    "interval",
    "less_than",
    "nonnegative",
    "positive",
    "real",
    "real_vector",
    "simplex",
    "unit_interval",
]


class Constraint:
    """The set of values that a parameter or a sample may have.

    Attributes
    ----------
    is_discrete : bool
        Whether the set has isolated values only.
    event_dim : int
        The number of last dimensions that together make one value.
    """

    is_discrete = False
    event_dim = 0

    def check(self, value: Tensor) -> Tensor:
        """Returns, for each value of `value`, whether it is in the set."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__.removeprefix('_')}()"


class _Real(Constraint):
    def check(self, value: Tensor) -> Tensor:
        return value == value


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value == 0) | (value == 1)


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-6)


class greater_than(Constraint):
    """The numbers above `lower_bound`."""

    def __init__(self, lower_bound: float | Tensor) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Tensor) -> Tensor:
        """Returns, for each value of `value`, whether it is in the set."""
        return value > self.lower_bound

    def __repr__(self) -> str:
        return f"GreaterThan(lower_bound={self.lower_bound})"


class greater_than_eq(Constraint):
    """The numbers from `lower_bound`."""

    def __init__(self, lower_bound: float | Tensor) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Tensor) -> Tensor:
        """Returns, for each value of `value`, whether it is in the set."""
        return value >= self.lower_bound

    def __repr__(self) -> str:
        return f"GreaterThanEq(lower_bound={self.lower_bound})"


class less_than(Constraint):
    """The numbers below `upper_bound`."""

    def __init__(self, upper_bound: float | Tensor) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        """Returns, for each value of `value`, whether it is in the set."""
        return value < self.upper_bound

    def __repr__(self) -> str:
        return f"LessThan(upper_bound={self.upper_bound})"


class interval(Constraint):
    """The numbers from `lower_bound` to `upper_bound`."""

    def __init__(self, lower_bound: float | Tensor, upper_bound: float | Tensor) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value: Tensor) -> Tensor:
        """Returns, for each value of `value`, whether it is in the set."""
        return (value >= self.lower_bound) & (value <= self.upper_bound)

    def __repr__(self) -> str:
        name = "".join(word.capitalize() for word in type(self).__name__.split("_"))
        return f"{name}(lower_bound={self.lower_bound}, upper_bound={self.upper_bound})"


class integer_interval(interval):
    """The integers from `lower_bound` to `upper_bound`."""

    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        """Returns, for each value of `value`, whether it is in the set."""
        return (value % 1 == 0) & super().check(value)


class independent(Constraint):
    """The values whose last `reinterpreted_batch_ndims` dimensions all satisfy `base_constraint`."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: Tensor) -> Tensor:
        """Returns, for each value of `value`, whether it is in the set."""
        found = self.base_constraint.check(value)
        for _ in range(self.reinterpreted_batch_ndims):
            found = found.all(-1)
        return found

    def __repr__(self) -> str:
        return f"IndependentConstraint({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


real = _Real()
real_vector = independent(real, 1)
boolean = _Boolean()
simplex = _Simplex()
positive = greater_than(0.0)
nonnegative = greater_than_eq(0.0)
unit_interval = interval(0.0, 1.0)
