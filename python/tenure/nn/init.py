"""Initial values of parameters, by the names of `torch.nn.init`.

The functions draw from the default generator unless they are given another, and draw the same numbers as Rust's
`tenure_nn::Init`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Literal

from tenure import _operations as _ops
from tenure._native import Generator, Tensor
from tenure.autograd import no_grad

__all__ = [
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "sparse_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

_is_skipped: ContextVar[bool] = ContextVar("_is_skipped", default=False)


@contextlib.contextmanager
def _skipped() -> Iterator[None]:
    """Leaves tensors as they are, within the context."""
    token = _is_skipped.set(True)
    try:
        yield
    finally:
        _is_skipped.reset(token)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Returns the factor of the standard deviation that suits an activation.

    Parameters
    ----------
    nonlinearity : str
        The name of a function of `tenure.nn.functional`.
    param : float, default None
        The slope of `leaky_relu`: 0.01 by default.
    """
    if nonlinearity in _GAINS:
        return _GAINS[nonlinearity]
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    raise ValueError(f"Unsupported nonlinearity {nonlinearity}")


_CONVOLUTIONS = [f"conv{transposed}{dims}d" for transposed in ("", "_transpose") for dims in (1, 2, 3)]
_GAINS: dict[str, float] = dict.fromkeys(["linear", "sigmoid", *_CONVOLUTIONS], 1.0) | {
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 3.0 / 4,
}


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fills a tensor with uniformly distributed numbers from `a` up to but without `b`."""
    if _is_skipped.get():
        return tensor
    with no_grad():
        # An empty range is refused, so one value is filled in.
        return tensor.fill_(a) if a == b else tensor.uniform_(a, b, generator=generator)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fills a tensor with normally distributed numbers."""
    if _is_skipped.get():
        return tensor
    with no_grad():
        return tensor.normal_(mean, std, generator=generator)


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Fills a tensor with normally distributed numbers. Numbers outside `a` and `b` are drawn again."""
    if _is_skipped.get():
        return tensor
    low, high = (a - mean) / std, (b - mean) / std
    if not low < high:
        raise ValueError(f"trunc_normal_: a must be less than b, got {a} and {b}")
    with no_grad():
        tensor.normal_(0.0, 1.0, generator=generator)
        while True:
            is_far = _ops.logical_or(tensor < low, tensor > high)
            if not is_far.any().item():
                break
            again = _ops.randn(tuple(tensor.shape), dtype=tensor.dtype, device=tensor.device, generator=generator)
            tensor.copy_(_ops.where(is_far, again, tensor))
        return tensor.mul_(std).add_(mean)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fills a tensor with one number."""
    if _is_skipped.get():
        return tensor
    with no_grad():
        return tensor.fill_(val)


def ones_(tensor: Tensor) -> Tensor:
    """Fills a tensor with ones."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Fills a tensor with zeros."""
    return constant_(tensor, 0.0)


def _filled(tensor: Tensor, values: Tensor) -> Tensor:
    if _is_skipped.get():
        return tensor
    with no_grad():
        return tensor.copy_(values)


def eye_(tensor: Tensor) -> Tensor:
    """Fills a matrix with ones on the diagonal and zeros elsewhere."""
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    return _filled(tensor, _ops.eye(tensor.shape[0], tensor.shape[1], dtype=tensor.dtype, device=tensor.device))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fills a convolution's weight so that the convolution returns its input, as far as there are channels."""
    sizes = tuple(tensor.shape)
    if len(sizes) not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    if sizes[0] % groups:
        raise ValueError("dim 0 must be divisible by groups")
    each = sizes[0] // groups
    centre = tuple(size // 2 for size in sizes[2:])
    values = _ops.zeros(sizes, dtype=tensor.dtype, device=tensor.device)
    for group in range(groups):
        for channel in range(min(each, sizes[1])):
            values[(group * each + channel, channel, *centre)] = 1.0
    return _filled(tensor, values)


def _fans(tensor: Tensor) -> tuple[int, int]:
    """Returns the numbers of inputs of one output and of outputs of one input."""
    if tensor.ndim < 2:
        raise ValueError("Fan in and fan out cannot be computed for tensor with fewer than 2 dimensions")
    outputs, inputs, *kernel = tensor.shape
    return inputs * math.prod(kernel), outputs * math.prod(kernel)


def _kaiming(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    """Returns the standard deviation, by the formula of Rust's `Init` for a leaky ReLU: its bits must be the same."""
    modes = ("fan_in", "fan_out")
    if mode.lower() not in modes:
        raise ValueError(f"Mode {mode} not supported, please use one of {list(modes)}")
    fan = max(_fans(tensor)[modes.index(mode.lower())], 1)
    if nonlinearity in ("leaky_relu", "relu"):
        slope = a if nonlinearity == "leaky_relu" else 0.0
        return math.sqrt(2.0 / (1.0 + slope * slope) / fan)
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def _is_empty(tensor: Tensor) -> bool:
    return 0 in tensor.shape


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: Literal["fan_in", "fan_out"] = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fills a weight with uniformly distributed numbers, whose variance layers preserve (He et al., 2015).

    Parameters
    ----------
    tensor : Tensor
        The weight, of at least two dimensions.
    a : float, default 0
        The slope of `leaky_relu`.
    mode : {"fan_in", "fan_out"}
        The direction in which the variance is preserved: forward or backward.
    nonlinearity : str, default "leaky_relu"
    generator : Generator, default None
    """
    if _is_empty(tensor):
        return tensor
    bound = math.sqrt(3.0) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: Literal["fan_in", "fan_out"] = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fills a weight with normally distributed numbers of the variance of `kaiming_uniform_`."""
    if _is_empty(tensor):
        return tensor
    return normal_(tensor, 0.0, _kaiming(tensor, a, mode, nonlinearity), generator)


def _xavier(tensor: Tensor, gain: float) -> float:
    inputs, outputs = _fans(tensor)
    return gain * math.sqrt(2.0 / float(max(inputs, 1) + max(outputs, 1)))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fills a weight with uniformly distributed numbers, whose variance suits both directions (Glorot, 2010)."""
    bound = math.sqrt(3.0) * _xavier(tensor, gain)
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fills a weight with normally distributed numbers of the variance of `xavier_uniform_`."""
    return normal_(tensor, 0.0, _xavier(tensor, gain), generator)


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """Fills a weight with a matrix whose rows, or columns if it has more rows, are orthogonal and of length `gain`."""
    if tensor.ndim < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if tensor.numel() == 0:
        return tensor
    rows, columns = tensor.shape[0], tensor.numel() // tensor.shape[0]
    if _is_skipped.get():
        return tensor
    with no_grad():
        drawn = _ops.randn((max(rows, columns), min(rows, columns)), generator=generator).to("cpu")
        basis: list[Any] = []
        for vector in drawn.t().unbind():
            # The second pass removes the rounding errors of the first.
            for _ in range(2):
                for other in basis:
                    vector = vector - other * _ops.dot(other, vector)
            basis.append(vector / vector.square().sum().sqrt())
        values = _ops.stack(basis)
        values = values if rows <= columns else values.t()
        return tensor.copy_((values * gain).reshape(tuple(tensor.shape)))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Fills a matrix with normally distributed numbers, but sets a share of each column to 0."""
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    if _is_skipped.get():
        return tensor
    rows, columns = tensor.shape
    zeros = math.ceil(sparsity * rows)
    normal_(tensor, 0.0, std, generator)
    with no_grad():
        for column in range(columns):
            tensor[_ops.randperm(rows, generator=generator)[:zeros], column] = 0
    return tensor
