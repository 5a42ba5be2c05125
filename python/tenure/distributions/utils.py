"""Functions that distributions share, by the names of `torch.distributions.utils`."""

from __future__ import annotations

import tenure
from tenure._native import Tensor

__all__ = ["broadcast_all", "clamp_probs", "logits_to_probs", "probs_to_logits"]

_EPSILONS = {
    tenure.float16: 2.0**-10,
    tenure.bfloat16: 2.0**-7,
    tenure.float32: 2.0**-23,
    tenure.float64: 2.0**-52,
}
_SMALLEST = {
    tenure.float16: 2.0**-14,
    tenure.bfloat16: 2.0**-126,
    tenure.float32: 2.0**-126,
    tenure.float64: 2.0**-1022,
}


def epsilon(tensor: Tensor) -> float:
    """Returns the distance from 1 to the next number of the tensor's dtype."""
    return _EPSILONS[tensor.dtype]


def smallest(tensor: Tensor) -> float:
    """Returns the smallest positive number that the tensor's dtype has with all digits."""
    return _SMALLEST[tensor.dtype]


def broadcast_all(*values: Tensor | float) -> tuple[Tensor, ...]:
    """Returns tensors of the same sizes: numbers become tensors of the first tensor's dtype on its device.

    Parameters
    ----------
    *values : Tensor or float
    """
    for value in values:
        if not isinstance(value, (Tensor, int, float)):
            raise ValueError(f"Input arguments must all be instances of Number or Tensor, got {type(value).__name__}")
    first = next((value for value in values if isinstance(value, Tensor)), None)
    dtype = tenure.get_default_dtype() if first is None else first.dtype
    device = None if first is None else first.device
    tensors = [
        value if isinstance(value, Tensor) else tenure.tensor(value, dtype=dtype, device=device) for value in values
    ]
    rank = max(tensor.ndim for tensor in tensors)
    shapes = [(1,) * (rank - tensor.ndim) + tensor.shape for tensor in tensors]
    # Tensors whose sizes do not match are refused by `expand`.
    shape = [next((size for size in sizes if size != 1), 1) for sizes in zip(*shapes, strict=True)]
    return tuple(tensor.expand(shape) for tensor in tensors)


def clamp_probs(probs: Tensor) -> Tensor:
    """Returns `probs` limited to what is distinct from 0 and 1."""
    return probs.clamp(epsilon(probs), 1 - epsilon(probs))


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Returns the probabilities of logarithms `logits`, or of log odds if `is_binary`."""
    return logits.sigmoid() if is_binary else logits.softmax(-1)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """Returns the logarithms of probabilities `probs`, or the log odds if `is_binary`."""
    clamped = clamp_probs(probs)
    return clamped.log() - (-clamped).log1p() if is_binary else clamped.log()


def xlogy(x: Tensor, y: Tensor) -> Tensor:
    """Returns x · log(y), which is 0 where x is 0."""
    return x * tenure.where((x == 0) & (y <= 0), 1.0, y).log()
