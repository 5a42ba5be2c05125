"""Convolution layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tenure import _operations as _ops
from tenure._native import Tensor, device, dtype
from tenure.nn import functional as F
from tenure.nn import init
from tenure.nn.functional.linear import _each
from tenure.nn.module import Module
from tenure.nn.parameter import Parameter

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

_Sizes = int | Sequence[int]
_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(Module):
    """Settings and parameters of convolutions. Classes of `_dims` spatial dimensions inherit them."""

    _dims: int
    _is_transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Sizes,
        stride: _Sizes,
        padding: _Sizes | str,
        dilation: _Sizes,
        output_padding: _Sizes,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: device | str | None,
        dtype: dtype | None,
    ) -> None:
        super().__init__()
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups:
            raise ValueError("out_channels must be divisible by groups")
        if padding_mode not in _MODES:
            raise ValueError(f"padding_mode must be one of {_MODES}, but got padding_mode='{padding_mode}'")
        dims = self._dims
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride = _each(kernel_size, dims), _each(stride, dims)
        self.padding = padding if isinstance(padding, str) else _each(padding, dims)
        self.dilation, self.output_padding = _each(dilation, dims), _each(output_padding, dims)
        self.groups, self.padding_mode = groups, padding_mode
        if padding not in ("valid", "same") and isinstance(padding, str):
            raise ValueError(f"Invalid padding string '{padding}', should be one of valid, same")
        if padding == "same" and any(step != 1 for step in self.stride):
            raise ValueError("padding='same' is not supported for strided convolutions")
        first, second = (in_channels, out_channels) if self._is_transposed else (out_channels, in_channels)
        sizes = (first, second // groups, *self.kernel_size)
        self.weight = Parameter(_ops.empty(sizes, dtype=dtype, device=device))
        empty = _ops.empty((out_channels,), dtype=dtype, device=device) if bias else None
        self.register_parameter("bias", None if empty is None else Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weight, then the bias."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = self.weight.shape[1] * math.prod(self.kernel_size)
            bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
            init.uniform_(self.bias, -bound, bound)

    def _around(self) -> list[int]:
        """Returns the padding before and after each dimension, the last dimension's first."""
        around: list[int] = []
        for index in reversed(range(self._dims)):
            if isinstance(self.padding, tuple):
                around += [self.padding[index]] * 2
            else:
                total = self.dilation[index] * (self.kernel_size[index] - 1) if self.padding == "same" else 0
                around += [total // 2, total - total // 2]
        return around

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0,) * self._dims:
            text += f", padding={self.padding}"
        if self.dilation != (1,) * self._dims:
            text += f", dilation={self.dilation}"
        if self.output_padding != (0,) * self._dims:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


class _Conv(_ConvNd):
    """A convolution.

    Parameters
    ----------
    in_channels : int
    out_channels : int
    kernel_size : int or tuple of int
    stride : int or tuple of int, default 1
    padding : int or tuple of int or {"valid", "same"}, default 0
    dilation : int or tuple of int, default 1
    groups : int, default 1
    bias : bool, default True
    padding_mode : {"zeros", "reflect", "replicate", "circular"}, default "zeros"
    device : device or str, default None
    dtype : dtype, default None
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Sizes,
        stride: _Sizes = 1,
        padding: _Sizes | str = 0,
        dilation: _Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            0,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        convolve = _CONVOLUTIONS[self._dims]
        if self.padding_mode == "zeros":
            return convolve(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        padded = F.pad(input, self._around(), self.padding_mode)
        return convolve(padded, weight, bias, self.stride, 0, self.dilation, self.groups)

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight, self.bias)


class Conv1d(_Conv):
    __doc__ = _Conv.__doc__
    _dims = 1


class Conv2d(_Conv):
    __doc__ = _Conv.__doc__
    _dims = 2


class Conv3d(_Conv):
    __doc__ = _Conv.__doc__
    _dims = 3


class _ConvTranspose(_ConvNd):
    """The transpose of a convolution.

    Parameters
    ----------
    in_channels : int
    out_channels : int
    kernel_size : int or tuple of int
    stride : int or tuple of int, default 1
    padding : int or tuple of int, default 0
    output_padding : int or tuple of int, default 0
    groups : int, default 1
    bias : bool, default True
    dilation : int or tuple of int, default 1
    padding_mode : {"zeros"}, default "zeros"
    device : device or str, default None
    dtype : dtype, default None
    """

    _is_transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Sizes,
        stride: _Sizes = 1,
        padding: _Sizes = 0,
        output_padding: _Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: _Sizes = 1,
        padding_mode: str = "zeros",
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            output_padding,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _output_padding(self, input: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        """Returns the padding that gives the result its sizes."""
        wanted = list(output_size)[-self._dims :]
        assert isinstance(self.padding, tuple)
        found = []
        for index, size in enumerate(input.shape[-self._dims :]):
            least = (size - 1) * self.stride[index] - 2 * self.padding[index]
            least += self.dilation[index] * (self.kernel_size[index] - 1) + 1
            if not least <= wanted[index] < least + self.stride[index]:
                raise ValueError(
                    f"requested an output size of {wanted}, but valid sizes of dimension {index} range from {least} to "
                    f"{least + self.stride[index] - 1} (for an input of {list(input.shape[-self._dims :])})"
                )
            found.append(wanted[index] - least)
        return tuple(found)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        extra = self.output_padding if output_size is None else self._output_padding(input, output_size)
        convolve = _TRANSPOSED[self._dims]
        assert not isinstance(self.padding, str)
        return convolve(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)


class ConvTranspose1d(_ConvTranspose):
    __doc__ = _ConvTranspose.__doc__
    _dims = 1


class ConvTranspose2d(_ConvTranspose):
    __doc__ = _ConvTranspose.__doc__
    _dims = 2


class ConvTranspose3d(_ConvTranspose):
    __doc__ = _ConvTranspose.__doc__
    _dims = 3


_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
