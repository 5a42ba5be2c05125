"""Images of other sizes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from tenure import _operations as _ops
from tenure._native import Tensor, float32, int64
from tenure.nn.functional.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d

__all__ = ["interpolate", "upsample", "upsample_bilinear", "upsample_nearest"]

_Size = int | Sequence[int] | None
_Factor = float | Sequence[float] | None

_POOLS = {1: adaptive_avg_pool1d, 2: adaptive_avg_pool2d, 3: adaptive_avg_pool3d}
_SMOOTH = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}
_ANY_DIMENSIONS = ("nearest", "area", "nearest-exact")


def interpolate(
    input: Tensor,
    size: _Size = None,
    scale_factor: _Factor = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resizes images `[batch, channels, ...]` with one to three spatial dimensions.

    Parameters
    ----------
    input : Tensor
    size : int or sequence of int, default None
        The spatial sizes of the result.
    scale_factor : float or sequence of float, default None
        The factors of the spatial sizes; either `size` or `scale_factor` is given.
    mode : str, default "nearest"
        ``"nearest"``, ``"nearest-exact"`` or ``"area"``; or, for one, two or three spatial dimensions, ``"linear"``,
        ``"bilinear"`` or ``"trilinear"``; or ``"bicubic"``, for two.
    align_corners : bool, default None
        Whether the centres of the corner pixels stay in place, rather than the image's edges.
    recompute_scale_factor : bool, default None
        Whether distances between pixels follow from the sizes, rather than from `scale_factor`.
    antialias : bool, default False
        Must be False: filters against aliasing are not there.

    Examples
    --------
    >>> import tenure
    >>> tenure.nn.functional.interpolate(tenure.tensor([[[1.0, 2.0]]]), scale_factor=2)
    tensor([[[1., 1., 2., 2.]]])
    """
    if mode in _ANY_DIMENSIONS and align_corners is not None:
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear"
        )
    sizes, factors = _sizes_and_factors(input, size, scale_factor)
    if recompute_scale_factor and size is not None:
        raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
    if antialias:
        if mode not in ("bilinear", "bicubic") or input.dim() != 4:
            raise ValueError(
                "Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor as input"
            )
        raise NotImplementedError("interpolate filters nothing against aliasing: leave antialias out")
    _check_mode(input, mode)
    if 0 in sizes or 0 in input.shape[2:]:
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got input {list(input.shape[2:])} output {sizes}"
        )
    if mode == "area":
        return _POOLS[len(sizes)](input, sizes)
    if recompute_scale_factor or align_corners:
        factors = None
    if mode == "nearest-exact":
        return _nearest_exact(input, sizes, factors)
    if factors is not None and len(set(factors)) == 1:
        return _ops.interpolate(input, scale_factor=factors[0], mode=mode)
    # A size says the same as factors that lead to it exactly.
    if factors is None or [of * factor for of, factor in zip(input.shape[2:], factors, strict=True)] == sizes:
        return _ops.interpolate(input, sizes, mode=mode, align_corners=bool(align_corners))
    if mode == "bicubic":
        raise NotImplementedError("bicubic interpolation takes one factor for all dimensions: give size instead")
    for dim, factor in enumerate(factors, 2):
        moved = input.movedim(dim, -1)
        size, of = sizes[dim - 2], moved.shape[-1]
        if mode != "nearest":
            resized = _ops.interpolate(moved.flatten(1, -2), scale_factor=factor, mode="linear")
        elif len(sizes) == 2 and size in (of, 2 * of):
            # In two dimensions, as in PyTorch, only the size matters then.
            resized = _ops.interpolate(moved.flatten(1, -2), size)
        else:
            resized = _ops.interpolate(moved.flatten(1, -2), scale_factor=factor)
        input = resized.unflatten(1, moved.shape[1:-1]).movedim(-1, dim)
    return input


def _sizes_and_factors(input: Tensor, size: _Size, scale_factor: _Factor) -> tuple[list[int], list[float] | None]:
    """Returns the spatial sizes of the result, and the factors if they are given."""
    spatial = list(input.shape[2:])
    if size is not None and scale_factor is not None:
        raise ValueError("only one of size or scale_factor should be defined")
    if size is not None:
        if isinstance(size, int):
            return [size] * len(spatial), None
        if len(size) != len(spatial):
            raise ValueError(
                "Input and output must have the same number of spatial dimensions, but got input with spatial "
                f"dimensions of {spatial} and output size of {size}. Please provide input tensor in (N, C, d1, d2, "
                "...,dK) format and output size in (o1, o2, ...,oK) format."
            )
        if not all(isinstance(each, int) for each in size):
            raise TypeError(
                "expected size to be one of int or Tuple[int] or Tuple[int, int] or Tuple[int, int, int], "
                f"but got size with types {[type(each) for each in size]}"
            )
        return list(size), None
    if scale_factor is None:
        raise ValueError("either size or scale_factor should be defined")
    if not isinstance(scale_factor, Sequence):
        factors = [float(scale_factor)] * len(spatial)
    elif len(scale_factor) == len(spatial):
        factors = [float(factor) for factor in scale_factor]
    else:
        raise ValueError(
            "Input and scale_factor must have the same number of spatial dimensions, but got input with spatial "
            f"dimensions of {spatial} and scale_factor of shape {scale_factor}. Please provide input tensor in "
            "(N, C, d1, d2, ...,dK) format and scale_factor in (s1, s2, ...,sK) format."
        )
    return [int(of * factor) for of, factor in zip(spatial, factors, strict=True)], factors


def _check_mode(input: Tensor, mode: str) -> None:
    dims = input.dim()
    if dims in (3, 4, 5) and (mode in _ANY_DIMENSIONS or _SMOOTH.get(mode) == dims - 2):
        return
    if dims in (3, 4, 5) and mode in _SMOOTH and mode != "bicubic":
        raise NotImplementedError(f"Got {dims}D input, but {mode} mode needs {_SMOOTH[mode] + 2}D input")
    raise NotImplementedError(
        f"Input Error: Only 3D, 4D and 5D input Tensors supported (got {dims}D) for the modes: "
        f"nearest | linear | bilinear | bicubic | trilinear | area | nearest-exact (got {mode})"
    )


def _nearest_exact(input: Tensor, sizes: list[int], factors: list[float] | None) -> Tensor:
    """Takes the pixel whose centre is nearest."""
    for dim, size in enumerate(sizes, 2):
        of = input.size(dim)
        distance = of / size if factors is None else 1 / factors[dim - 2]
        centres = (_ops.arange(size, dtype=float32, device=input.device) + 0.5) * distance
        input = input.index_select(dim, centres.floor().clamp_max(of - 1).to(int64))
    return input


def _deprecated(name: str) -> None:
    warnings.warn(f"`nn.functional.{name}` is deprecated. Use `nn.functional.interpolate` instead.", stacklevel=3)


def upsample(
    input: Tensor,
    size: _Size = None,
    scale_factor: _Factor = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """Resizes images as `interpolate` does, which takes its place."""
    _deprecated("upsample")
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: _Size = None, scale_factor: _Factor = None) -> Tensor:
    """Resizes images as `interpolate` does, which takes its place."""
    _deprecated("upsample_nearest")
    return interpolate(input, size, scale_factor)


def upsample_bilinear(input: Tensor, size: _Size = None, scale_factor: _Factor = None) -> Tensor:
    """Resizes images as `interpolate` does with `align_corners`, which takes its place."""
    _deprecated("upsample_bilinear")
    return interpolate(input, size, scale_factor, "bilinear", True)
