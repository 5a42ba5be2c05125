"""Normalisation."""

from __future__ import annotations

from collections.abc import Sequence

from tenure import _operations as _ops
from tenure._native import Tensor, float64
from tenure._operations import batch_norm, group_norm, layer_norm
from tenure.autograd import no_grad

__all__ = [
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "local_response_norm",
    "normalize",
    "rms_norm",
]

_EPSILONS = {True: 2.0**-52, False: 2.0**-23}


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Divides by the root mean square over the last dimensions. `eps` is by default the dtype's in computations."""
    if eps is None:
        eps = _EPSILONS[input.dtype == float64]
    return _ops.rms_norm(input, normalized_shape, weight, eps)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises each channel of each example of `[batch, channels, ...]`."""
    batch, channels, *rest = input.shape
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)

    def repeated(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.repeat((batch,))

    mean, var = repeated(running_mean), repeated(running_var)
    together = input.reshape((1, batch * channels, *rest))
    result = batch_norm(together, mean, var, repeated(weight), repeated(bias), True, momentum, eps)
    with no_grad():
        for running, new in ((running_mean, mean), (running_var, var)):
            if running is not None and new is not None:
                running.copy_(new.reshape((batch, channels)).mean(0))
    return result.reshape((batch, channels, *rest))


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Divides by a power of the mean square over `size` neighbouring channels."""
    batch, channels, *rest = input.shape
    squares = input.square().reshape((batch, 1, channels, -1))
    squares = _ops.pad(squares, (0, 0, size // 2, (size - 1) // 2))
    means = _ops.avg_pool2d(squares, (size, 1), (1, 1)).reshape((batch, channels, *rest))
    return input / (means * alpha + k).pow(beta)


def normalize(
    input: Tensor, p: float = 2.0, dim: int | Sequence[int] = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """Divides by the `p`-norm along a dimension, or by `eps` if the norm is smaller."""
    result = input / _ops.vector_norm(input, p, dim, True).clamp_min(eps)
    return result if out is None else out.copy_(result)
