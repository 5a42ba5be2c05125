"""Linear functions, convolutions, and padding."""

from __future__ import annotations

from collections.abc import Sequence

from tenure import _operations as _ops
from tenure._native import Tensor
from tenure._operations import conv_transpose1d, conv_transpose2d, conv_transpose3d, linear, pad

__all__ = [
    "bilinear",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "linear",
    "pad",
]

_Sizes = int | Sequence[int]


def _each(value: _Sizes, dims: int) -> tuple[int, ...]:
    """Returns a number for each dimension."""
    found = (value,) * dims if isinstance(value, int) else tuple(value)
    return found * dims if len(found) == 1 else found


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Sizes = 1,
    padding: _Sizes | str = 0,
    dilation: _Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolves sequences. `padding` is a number of zeros, ``"valid"`` for none, or ``"same"`` to keep the sizes."""
    return _ops.conv1d(input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Sizes = 1,
    padding: _Sizes | str = 0,
    dilation: _Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolves images, as `conv1d` does sequences."""
    return _ops.conv2d(input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Sizes = 1,
    padding: _Sizes | str = 0,
    dilation: _Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolves volumes, as `conv1d` does sequences."""
    return _ops.conv3d(input, weight, bias, stride, padding, dilation, groups)


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes x₁ᵀ A x₂ + b, for each matrix A of `weight`."""
    result = _ops.einsum("bi,oij,bj->bo", input1.flatten(0, -2), weight, input2.flatten(0, -2))
    result = result.reshape((*input1.shape[:-1], weight.shape[0]))
    return result if bias is None else result + bias
