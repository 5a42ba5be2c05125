"""Activations."""

from __future__ import annotations

from collections.abc import Callable

from tenure import _operations as _ops
from tenure._native import Tensor, dtype
from tenure._operations import relu_, sigmoid, softplus, softsign, tanh

__all__ = [
    "celu",
    "elu",
    "gelu",
    "glu",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "log_softmax",
    "logsigmoid",
    "mish",
    "prelu",
    "relu",
    "relu6",
    "relu_",
    "rrelu",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
]

logsigmoid = _ops.logsigmoid


def _in_place(input: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    # The gradient needs the old values, which the copy keeps.
    return input.copy_(function(input.clone()))


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes max(x, 0)."""
    return relu_(input) if inplace else _ops.relu(input)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes x·sigmoid(x)."""
    return _ops.silu_(input) if inplace else _ops.silu(input)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """Clamps x to the range from 0 to 6."""
    return _in_place(input, _ops.relu6) if inplace else _ops.relu6(input)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes `elu`, scaled so that layers keep mean 0 and variance 1."""
    return _in_place(input, _ops.selu) if inplace else _ops.selu(input)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes x·tanh(softplus(x))."""
    return _in_place(input, _ops.mish) if inplace else _ops.mish(input)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes (x + 3) / 6, clamped to 0 and 1."""
    return _in_place(input, _ops.hardsigmoid) if inplace else _ops.hardsigmoid(input)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes x·hardsigmoid(x)."""
    return _in_place(input, _ops.hardswish) if inplace else _ops.hardswish(input)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Computes x where x is positive, else `alpha`·(eˣ - 1)."""
    return _in_place(input, lambda x: elu(x, alpha)) if inplace else _ops.elu(input, alpha)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Computes x where x is positive, else `alpha`·(exp(x / `alpha`) - 1)."""
    return _in_place(input, lambda x: celu(x, alpha)) if inplace else _ops.celu(input, alpha)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Computes x where x is positive, else `negative_slope`·x."""
    if inplace:
        return _in_place(input, lambda x: leaky_relu(x, negative_slope))
    return _ops.leaky_relu(input, negative_slope)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """Clamps x to the range from `min_val` to `max_val`."""
    if inplace:
        return _in_place(input, lambda x: hardtanh(x, min_val, max_val))
    return _ops.hardtanh(input, min_val, max_val)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """Computes x where x is above `threshold`, else `value`."""
    if inplace:
        return _in_place(input, lambda x: _ops.threshold(x, threshold, value))
    return _ops.threshold(input, threshold, value)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Computes x·Φ(x), or its approximation with the hyperbolic tangent if `approximate` is ``"tanh"``."""
    return _ops.gelu(input) if approximate == "none" else _ops.gelu(input, approximate)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Computes x where x is positive, else `weight`·x, with one weight or one for each channel."""
    if weight.numel() > 1 and input.ndim > 1:
        weight = weight.reshape((1, -1) + (1,) * (input.ndim - 2))
    return _ops.where(input > 0, input, input * weight)


def rrelu(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """Computes `leaky_relu` with slopes that are drawn between `lower` and `upper` in training."""
    if inplace:
        return _in_place(input, lambda x: rrelu(x, lower, upper, training))
    if not training:
        return _ops.leaky_relu(input, (lower + upper) / 2)
    slopes = lower + (upper - lower) * _ops.rand_like(input.detach())
    return _ops.where(input >= 0, input, input * slopes)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """Multiplies the first half of a dimension with the sigmoid of the second."""
    size = input.shape[dim]
    if size % 2:
        raise RuntimeError(f"Halving dimension must be even, but dimension {dim} is size {size}")
    value, gate = input.chunk(2, dim)
    return value * gate.sigmoid()


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Computes x where its absolute value is above `lambd`, else 0."""
    return input.masked_fill(input.abs() <= lambd, 0.0)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Moves x towards 0 by `lambd`."""
    return input - _ops.clamp(input, -lambd, lambd)


def tanhshrink(input: Tensor) -> Tensor:
    """Computes x - tanh(x)."""
    return input - input.tanh()


def _implicit_dim(input: Tensor) -> int:
    return 0 if input.ndim in (0, 1, 3) else 1


def _softmax(function: Callable[..., Tensor], input: Tensor, dim: int | None, dtype: dtype | None) -> Tensor:
    input = input if dtype is None else input.to(dtype)
    return function(input, _implicit_dim(input) if dim is None else dim)


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: dtype | None = None) -> Tensor:
    """Computes the exponential of each element, divided by the sum of the exponentials along a dimension."""
    return _softmax(_ops.softmax, input, dim, dtype)


def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: dtype | None = None) -> Tensor:
    """Computes the logarithm of `softmax`."""
    return _softmax(_ops.log_softmax, input, dim, dtype)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: dtype | None = None) -> Tensor:
    """Computes `softmax` of -x."""
    return _softmax(_ops.softmax, -input, dim, dtype)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """Draws from the Gumbel-softmax distribution: with `hard`, vectors with a single 1."""
    drawn = _ops.rand_like(logits.detach())
    # 1 - x is above 0, so its logarithm is finite.
    exponential = -(1 - drawn).log()
    soft = _ops.softmax((logits - exponential.clamp_min(1e-38).log()) / tau, dim)
    if not hard:
        return soft
    index = soft.detach().max(dim, keepdim=True)[1]
    ones = _ops.zeros_like(soft.detach()).scatter(dim, index, 1.0)
    return ones - soft.detach() + soft
