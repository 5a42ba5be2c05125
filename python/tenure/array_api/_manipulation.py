"""Shapes and orders of elements."""

from __future__ import annotations

from collections.abc import Sequence

import tenure
from tenure._native import Tensor
from tenure.array_api._operands import alike, axes_of

__all__ = [
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "concat",
    "expand_dims",
    "flip",
    "moveaxis",
    "permute_dims",
    "repeat",
    "reshape",
    "roll",
    "squeeze",
    "stack",
    "tile",
    "unstack",
]

_Axes = int | tuple[int, ...]


def broadcast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """Returns arrays broadcast against each other, without copies."""
    shape = broadcast_shapes(*(array.shape for array in arrays))
    return tuple(array.expand(shape) for array in arrays)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape that shapes broadcast to."""
    result: list[int] = [1] * max((len(shape) for shape in shapes), default=0)
    for shape in shapes:
        start = len(result) - len(shape)
        for place, size in enumerate(shape, start):
            if result[place] == 1:
                result[place] = size
            elif size not in (1, result[place]):
                raise ValueError(f"shapes do not broadcast together: {', '.join(map(str, shapes))}")
    return tuple(result)


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """Returns an array broadcast to a shape, without a copy."""
    if broadcast_shapes(x.shape, shape) != tuple(shape):
        raise ValueError(f"the shape {x.shape} does not broadcast to {tuple(shape)}")
    return x.expand(shape)


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Joins arrays along an axis. If `axis` is None, joins all their elements."""
    parts = alike(arrays)
    if axis is None:
        return tenure.cat([part.reshape(-1) for part in parts])
    return tenure.cat(parts, axis)


def expand_dims(x: Tensor, /, axis: _Axes) -> Tensor:
    """Adds axes of size 1 at positions of the result."""
    axes = axes_of(axis, x.ndim)
    ndim = x.ndim + len(axes)
    if outside := [place for place in axes if not -ndim <= place < ndim]:
        raise IndexError(f"axis {outside[0]} is not one of the {ndim} axes of the result")
    places = {place % ndim for place in axes}
    if len(places) < len(axes):
        raise ValueError(f"axes are repeated: {axis}")
    for place in sorted(places):
        x = x.unsqueeze(place)
    return x


def flip(x: Tensor, /, *, axis: _Axes | None = None) -> Tensor:
    """Reverses the order of elements along axes, or along all."""
    return tenure.flip(x, axes_of(axis, x.ndim))


def moveaxis(x: Tensor, source: _Axes, destination: _Axes, /) -> Tensor:
    """Moves axes to other positions. The others keep their order."""
    return tenure.movedim(x, source, destination) if x.ndim else x


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """Returns a view with the axes in another order."""
    return x.permute(axes)


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Repeats each entry of an axis, or each element, next to each other, as often as `repeats` says."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    if isinstance(repeats, Tensor) and repeats.shape in ((), (1,)):
        repeats = int(repeats.item())
    if isinstance(repeats, int):
        return tenure.repeat_interleave(x, repeats, axis)
    ends = repeats.cumsum(0)
    places = tenure.arange(int(ends[-1]) if len(ends) else 0, device=x.device)
    return x.index_select(axis, tenure.searchsorted(ends, places, right=True))


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """Returns the elements in another shape: a view if `copy` is False, a copy if it is True, else either."""
    if copy is False:
        try:
            return x.view(shape)
        except RuntimeError as error:
            raise ValueError(f"the array needs a copy to have the shape {shape}, which copy=False forbids") from error
    return x.clone().reshape(shape) if copy else x.reshape(shape)


def roll(x: Tensor, /, shift: _Axes, *, axis: _Axes | None = None) -> Tensor:
    """Moves elements along axes. Those moved past the end come in at the beginning."""
    if axis is None:
        return tenure.roll(x.reshape(-1), [shift] if isinstance(shift, int) else list(shift), [0]).reshape(x.shape)
    axes = axes_of(axis, x.ndim)
    shifts = [shift] * len(axes) if isinstance(shift, int) else list(shift)
    return tenure.roll(x, shifts, axes)


def squeeze(x: Tensor, /, axis: _Axes) -> Tensor:
    """Removes axes, whose size must be 1."""
    axes = axes_of(axis, x.ndim)
    if larger := [place for place in axes if x.size(place) != 1]:
        raise ValueError(f"axis {larger[0]} of the shape {x.shape} cannot be removed, since its size is not 1")
    return x.squeeze(axes)


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Joins arrays of one shape along a new axis."""
    return tenure.stack(alike(arrays), axis)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """Repeats the whole array along each axis."""
    return tenure.tile(x, repetitions)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Returns the entries along an axis, without that axis."""
    return tuple(x.unbind(axis))
