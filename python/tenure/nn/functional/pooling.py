"""Pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tenure import _operations as _ops
from tenure._native import Tensor
from tenure.nn.functional.linear import _each

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
]

_Sizes = int | Sequence[int]
_Adaptive = int | None | Sequence[int | None]
_MAX = {1: _ops.max_pool1d, 2: _ops.max_pool2d, 3: _ops.max_pool3d}
_AVG = {1: _ops.avg_pool1d, 2: _ops.avg_pool2d, 3: _ops.avg_pool3d}
_ADAPTIVE_MAX = {1: _ops.adaptive_max_pool1d, 2: _ops.adaptive_max_pool2d, 3: _ops.adaptive_max_pool3d}
_ADAPTIVE = {1: _ops.adaptive_avg_pool1d, 2: _ops.adaptive_avg_pool2d, 3: _ops.adaptive_avg_pool3d}


def _max_pool(dims: int) -> Callable[..., Tensor]:
    def pool(
        input: Tensor,
        kernel_size: _Sizes,
        stride: _Sizes | None = None,
        padding: _Sizes = 0,
        dilation: _Sizes = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Tensor:
        """Computes the largest element of each window; windows are `kernel_size` apart unless `stride` is given."""
        if return_indices:
            raise NotImplementedError(f"max_pool{dims}d returns no indices: leave return_indices out")
        step = kernel_size if stride is None or stride == () else stride
        return _MAX[dims](input, kernel_size, step, padding, dilation, ceil_mode)

    return pool


def _avg_pool(dims: int) -> Callable[..., Tensor]:
    def pool(
        input: Tensor,
        kernel_size: _Sizes,
        stride: _Sizes | None = None,
        padding: _Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        """Computes the mean of each window, or its sum divided by `divisor_override`."""
        step = kernel_size if stride is None or stride == () else stride
        if divisor_override is None:
            return _AVG[dims](input, kernel_size, step, padding, ceil_mode, count_include_pad)
        if ceil_mode:
            raise NotImplementedError(f"avg_pool{dims}d takes either ceil_mode or divisor_override")
        count = 1
        for size in _each(kernel_size, dims):
            count *= size
        return _AVG[dims](input, kernel_size, step, padding) * (count / divisor_override)

    return pool


def _lp_pool(dims: int) -> Callable[..., Tensor]:
    def pool(
        input: Tensor,
        norm_type: float,
        kernel_size: _Sizes,
        stride: _Sizes | None = None,
        ceil_mode: bool = False,
    ) -> Tensor:
        """Computes the `norm_type`-th root of the sum of powers of each window."""
        count = 1
        for size in _each(kernel_size, dims):
            count *= size
        step = kernel_size if stride is None else stride
        means = _AVG[dims](input.pow(norm_type), kernel_size, step, 0, ceil_mode)
        return (_ops.sign(means) * _ops.relu(means.abs()) * count).pow(1.0 / norm_type)

    return pool


def _output_sizes(input: Tensor, output_size: _Adaptive, dims: int) -> list[int]:
    """Returns the sizes of the result; `None` stands for the input's."""
    wanted = (output_size,) * dims if output_size is None or isinstance(output_size, int) else tuple(output_size)
    wanted = wanted * dims if len(wanted) == 1 else wanted
    sizes = input.shape[-dims:]
    return [size if of is None else of for of, size in zip(wanted, sizes, strict=True)]


def _adaptive_avg_pool(dims: int) -> Callable[..., Tensor]:
    def pool(input: Tensor, output_size: _Adaptive) -> Tensor:
        """Computes means over windows that are spread evenly, as many as `output_size` says."""
        return _ADAPTIVE[dims](input, _output_sizes(input, output_size, dims))

    return pool


def _adaptive_max_pool(dims: int) -> Callable[..., Any]:
    def pool(input: Tensor, output_size: _Adaptive, return_indices: bool = False) -> Any:
        """Computes the largest elements of windows that are spread evenly, as many as `output_size` says.

        Their positions come as a second result if `return_indices`.
        """
        values, indices = _ADAPTIVE_MAX[dims](input, _output_sizes(input, output_size, dims))
        return (values, indices) if return_indices else values

    return pool


max_pool1d, max_pool2d, max_pool3d = _max_pool(1), _max_pool(2), _max_pool(3)
avg_pool1d, avg_pool2d, avg_pool3d = _avg_pool(1), _avg_pool(2), _avg_pool(3)
lp_pool1d, lp_pool2d, lp_pool3d = _lp_pool(1), _lp_pool(2), _lp_pool(3)
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (_adaptive_avg_pool(dims) for dims in (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (_adaptive_max_pool(dims) for dims in (1, 2, 3))
