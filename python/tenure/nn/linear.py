"""Fully connected layers."""

from __future__ import annotations

import math
from typing import Any

from tenure import _operations as _ops
from tenure._native import Tensor, device, dtype
from tenure.nn import functional as F
from tenure.nn import init
from tenure.nn.module import Module
from tenure.nn.parameter import Parameter

__all__ = ["Bilinear", "Identity", "Linear"]


class Identity(Module):
    """Returns its input. Arguments are ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Linear(Module):
    """Computes x Wᵀ + b.

    Parameters
    ----------
    in_features : int
    out_features : int
    bias : bool, default True
    device : device or str, default None
    dtype : dtype, default None

    Attributes
    ----------
    weight : Parameter
        `[out_features, in_features]`.
    bias : Parameter or None
        `[out_features]`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(_ops.empty((out_features, in_features), dtype=dtype, device=device))
        empty = _ops.empty((out_features,), dtype=dtype, device=device) if bias else None
        self.register_parameter("bias", None if empty is None else Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weight, then the bias."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """Computes x₁ᵀ A x₂ + b.

    Parameters
    ----------
    in1_features : int
    in2_features : int
    out_features : int
    bias : bool, default True
    device : device or str, default None
    dtype : dtype, default None
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got {in1_features}")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        sizes = (out_features, in1_features, in2_features)
        self.weight = Parameter(_ops.empty(sizes, dtype=dtype, device=device))
        empty = _ops.empty((out_features,), dtype=dtype, device=device) if bias else None
        self.register_parameter("bias", None if empty is None else Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weight, then the bias."""
        bound = 1 / math.sqrt(self.weight.size(1))
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
