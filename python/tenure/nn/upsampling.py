"""Layers that resize images."""

from __future__ import annotations

from tenure._native import Tensor
from tenure.nn import functional as F
from tenure.nn.module import Module

__all__ = ["Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d"]


class Upsample(Module):
    """Resizes images `[batch, channels, ...]`, as `functional.interpolate` does.

    Parameters
    ----------
    size : int or tuple of int, default None
        The spatial sizes of the result.
    scale_factor : float or tuple of float, default None
        The factors of the spatial sizes; either `size` or `scale_factor` is given.
    mode : str, default "nearest"
    align_corners : bool, default None
    recompute_scale_factor : bool, default None
    """

    def __init__(
        self,
        size: int | tuple[int, ...] | None = None,
        scale_factor: float | tuple[float, ...] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.name = type(self).__name__
        self.size, self.mode, self.align_corners = size, mode, align_corners
        self.scale_factor: float | tuple[float, ...] | None
        if isinstance(scale_factor, tuple):
            self.scale_factor = tuple(float(factor) for factor in scale_factor)
        else:
            self.scale_factor = float(scale_factor) if scale_factor else None
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        sizes = f"size={self.size!r}" if self.scale_factor is None else f"scale_factor={self.scale_factor!r}"
        return f"{sizes}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Resizes images to the nearest pixels.

    Parameters
    ----------
    size : int or tuple of int, default None
    scale_factor : float or tuple of float, default None
    """

    def __init__(
        self, size: int | tuple[int, ...] | None = None, scale_factor: float | tuple[float, ...] | None = None
    ) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Resizes images with the centres of their corner pixels in place.

    Parameters
    ----------
    size : int or tuple of int, default None
    scale_factor : float or tuple of float, default None
    """

    def __init__(
        self, size: int | tuple[int, ...] | None = None, scale_factor: float | tuple[float, ...] | None = None
    ) -> None:
        super().__init__(size, scale_factor, "bilinear", True)
