"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence

from tenure import _operations as _ops
from tenure._native import Tensor, device, dtype, int64
from tenure.autograd import no_grad
from tenure.nn import functional as F
from tenure.nn import init
from tenure.nn.module import Module
from tenure.nn.parameter import Parameter

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LocalResponseNorm",
    "RMSNorm",
]


class _Norm(Module):
    """A layer with a weight, which begins as ones, and a bias, which begins as zeros."""

    def _add_parameters(
        self,
        sizes: Sequence[int],
        affine: bool,
        bias: bool,
        device: device | str | None,
        dtype: dtype | None,
    ) -> None:
        for name, is_there in (("weight", affine), ("bias", affine and bias)):
            empty = _ops.empty(tuple(sizes), dtype=dtype, device=device) if is_there else None
            self.register_parameter(name, None if empty is None else Parameter(empty))

    def reset_parameters(self) -> None:
        """Sets the weight to ones and the bias to zeros."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self._parameters.get("bias") is not None:
            init.zeros_(self.bias)


class _RunningNorm(_Norm):
    """A layer that may keep averages of the mean and variance of each channel."""

    _ranks: tuple[int, ...]

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: device | str | None,
        dtype: dtype | None,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._add_parameters((num_features,), affine, True, device, dtype)
        if track_running_stats:
            self.register_buffer("running_mean", _ops.zeros((num_features,), dtype=dtype, device=device))
            self.register_buffer("running_var", _ops.ones((num_features,), dtype=dtype, device=device))
            self.register_buffer("num_batches_tracked", _ops.zeros((), dtype=int64, device=device))
        else:
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                self.register_buffer(name, None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Sets the averages to their initial values."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Sets the averages, the weight and the bias to their initial values."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim not in self._ranks:
            expected = " or ".join(f"{rank}D" for rank in self._ranks)
            raise ValueError(f"expected {expected} input (got {input.ndim}D input)")

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_RunningNorm):
    """Normalises each channel of `[batch, channels, ...]` over all other dimensions.

    Parameters
    ----------
    num_features : int
        The number of channels.
    eps : float, default 1e-5
    momentum : float or None, default 0.1
        The weight of a batch in the running averages. With `None`, all batches weigh the same.
    affine : bool, default True
        Whether a weight and a bias for each channel are learned.
    track_running_stats : bool, default True
        Whether evaluation uses running averages, rather than those of the batch.
    device : device or str, default None
    dtype : dtype, default None
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
        has_averages = mean is not None
        weight, bias, training = self.weight, self.bias, self.training
        if not training or not has_averages:
            return F.batch_norm(input, mean, var, weight, bias, training or not has_averages, 0.0, self.eps)
        with no_grad():
            count.add_(1)
        if self.momentum is not None:
            return F.batch_norm(input, mean, var, weight, bias, True, self.momentum, self.eps)
        # The device alone knows the number of batches. So the operation writes this batch's own statistics, and the
        # averages take them in afterwards.
        own = _ops.zeros_like(mean), _ops.zeros_like(var)
        result = F.batch_norm(input, *own, weight, bias, True, 1.0, self.eps)
        with no_grad():
            for running, last in zip((mean, var), own, strict=True):
                running.add_((last - running) / count)
        return result


class BatchNorm1d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    _ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    _ranks = (4,)


class BatchNorm3d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    _ranks = (5,)


class _InstanceNorm(_RunningNorm):
    """Normalises each channel of each example of `[batch, channels, ...]`, or of a single example without `batch`.

    Parameters
    ----------
    num_features : int
        The number of channels.
    eps : float, default 1e-5
    momentum : float, default 0.1
    affine : bool, default False
    track_running_stats : bool, default False
    device : device or str, default None
    dtype : dtype, default None
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        batch = input.unsqueeze(0) if input.ndim == self._ranks[0] else input
        uses_input = self.training or not self.track_running_stats
        momentum = 0.0 if self.momentum is None else self.momentum
        result = F.instance_norm(
            batch, self.running_mean, self.running_var, self.weight, self.bias, uses_input, momentum, self.eps
        )
        return result.squeeze(0) if input.ndim == self._ranks[0] else result


class InstanceNorm1d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__
    _ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__
    _ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__
    _ranks = (4, 5)


class LayerNorm(_Norm):
    """Normalises over the last dimensions.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        The sizes of these dimensions.
    eps : float, default 1e-5
    elementwise_affine : bool, default True
    bias : bool, default True
    device : device or str, default None
    dtype : dtype, default None
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._add_parameters(self.normalized_shape, elementwise_affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class RMSNorm(_Norm):
    """Divides by the root mean square over the last dimensions.

    Parameters
    ----------
    normalized_shape : int or sequence of int
    eps : float, default None
        By default the machine epsilon of the dtype that is computed in.
    elementwise_affine : bool, default True
    device : device or str, default None
    dtype : dtype, default None
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        empty = _ops.empty(self.normalized_shape, dtype=dtype, device=device) if elementwise_affine else None
        self.register_parameter("weight", None if empty is None else Parameter(empty))
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Norm):
    """Normalises each group of channels of `[batch, channels, ...]`.

    Parameters
    ----------
    num_groups : int
    num_channels : int
    eps : float, default 1e-5
    affine : bool, default True
    device : device or str, default None
    dtype : dtype, default None
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: device | str | None = None,
        dtype: dtype | None = None,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._add_parameters((num_channels,), affine, True, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class LocalResponseNorm(Module):
    """Divides by a power of the mean square over `size` neighbouring channels."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
