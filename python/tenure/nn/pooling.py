"""Pooling layers."""

from __future__ import annotations

from typing import Any

from tenure._native import Tensor
from tenure.nn import functional as F
from tenure.nn.module import Module

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
]


class _Pool(Module):
    """A layer that calls a function with its settings, which `extra_repr` shows by name."""

    _function: Any
    _shown: tuple[str, ...]

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = type(self)._function(input, **self._settings)
        return result

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._settings = settings

    def __getattr__(self, name: str) -> Any:
        settings = self.__dict__.get("_settings", {})
        return settings[name] if name in settings else super().__getattr__(name)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={self._settings[name]}" for name in self._shown)


class _MaxPool(_Pool):
    """Computes the largest element of each window.

    Parameters
    ----------
    kernel_size : int or tuple of int
    stride : int or tuple of int, default None
        By default `kernel_size`.
    padding : int or tuple of int, default 0
    dilation : int or tuple of int, default 1
    return_indices : bool, default False
        Indices are not supported.
    ceil_mode : bool, default False
    """

    _shown = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(
            kernel_size=kernel_size,
            stride=kernel_size if stride is None else stride,
            padding=padding,
            dilation=dilation,
            return_indices=return_indices,
            ceil_mode=ceil_mode,
        )


class _AvgPool(_Pool):
    """Computes the mean of each window.

    Parameters
    ----------
    kernel_size : int or tuple of int
    stride : int or tuple of int, default None
        By default `kernel_size`.
    padding : int or tuple of int, default 0
    ceil_mode : bool, default False
    count_include_pad : bool, default True
        Whether zeros around the input count.
    divisor_override : int, default None
        The divisor in place of the number of elements, in two and three dimensions.
    """

    _shown = ("kernel_size", "stride", "padding")

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(
            kernel_size=kernel_size,
            stride=kernel_size if stride is None else stride,
            padding=padding,
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
            divisor_override=divisor_override,
        )


class _AdaptivePool(_Pool):
    """Pools over windows that are spread evenly, as many as `output_size` says."""

    _shown = ("output_size",)

    def __init__(self, output_size: Any) -> None:
        super().__init__(output_size=output_size)


class MaxPool1d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    _function = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    _function = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    _function = staticmethod(F.max_pool3d)


class AvgPool1d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    _function = staticmethod(F.avg_pool1d)

    def extra_repr(self) -> str:
        # PyTorch shows tuples here.
        sizes = {name: self._settings[name] for name in self._shown}
        return ", ".join(f"{name}={(size,) if isinstance(size, int) else size}" for name, size in sizes.items())


class AvgPool2d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    _function = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    _function = staticmethod(F.avg_pool3d)


class AdaptiveAvgPool1d(_AdaptivePool):
    __doc__ = _AdaptivePool.__doc__
    _function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptivePool):
    __doc__ = _AdaptivePool.__doc__
    _function = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptivePool):
    __doc__ = _AdaptivePool.__doc__
    _function = staticmethod(F.adaptive_avg_pool3d)


class AdaptiveMaxPool1d(_AdaptivePool):
    __doc__ = _AdaptivePool.__doc__
    _function = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptivePool):
    __doc__ = _AdaptivePool.__doc__
    _function = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptivePool):
    __doc__ = _AdaptivePool.__doc__
    _function = staticmethod(F.adaptive_max_pool3d)
