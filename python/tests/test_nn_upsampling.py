"""Layers and functions that resize images, against `torch.nn`."""

from __future__ import annotations

import math
from typing import Any

import pytest

import tenure
from tenure import nn

torch = pytest.importorskip("torch")

from .module_comparison import as_ours, close, compare, given, same_error  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

# No factor of `TARGETS` is rounded to the same size or twice the size: there, PyTorch's result of `nearest` and its
# gradient take different pixels.
SIZES = {1: (2, 3, 7), 2: (2, 3, 5, 4), 3: (1, 2, 4, 4, 5)}
MODES: list[tuple[str, int, bool | None]] = [
    *((mode, dims, None) for mode in ("nearest", "nearest-exact", "area") for dims in (1, 2, 3)),
    *(
        (mode, dims, align_corners)
        for mode, dims in (("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3))
        for align_corners in (None, False, True)
    ),
]
TARGETS: list[dict[str, Any]] = [
    dict(size=6),
    dict(size=2),
    dict(size=(3, 9, 4)),
    dict(scale_factor=2),
    dict(scale_factor=0.7),
    dict(scale_factor=1.6, recompute_scale_factor=True),
    dict(scale_factor=(2.0, 3.0, 1.0)),
    dict(scale_factor=(1.3, 1.3, 1.3)),
]


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(("mode", "dims", "align_corners"), MODES, ids=str)
def test_images_are_resized_as_pytorchs(
    mode: str, dims: int, align_corners: bool | None, target: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {name: each[:dims] if isinstance(each, tuple) else each for name, each in target.items()}
    settings |= dict(mode=mode, align_corners=align_corners)
    compare(nn.Upsample(**settings), torch.nn.Upsample(**settings), given(*SIZES[dims]))


@pytest.mark.parametrize(("mode", "dims", "align_corners"), MODES, ids=str)
def test_factors_may_differ_between_dimensions(mode: str, dims: int, align_corners: bool | None) -> None:
    settings = dict(scale_factor=(1.3, 2.6, 0.8)[:dims], mode=mode, align_corners=align_corners)
    ours, theirs = nn.Upsample(**settings), torch.nn.Upsample(**settings)  # type: ignore[arg-type]
    if mode == "bicubic" and not align_corners:
        with pytest.raises(NotImplementedError, match="give size instead"):
            ours(as_ours(given(*SIZES[dims])))
    else:
        compare(ours, theirs, given(*SIZES[dims]))


@pytest.mark.parametrize("arguments", [dict(size=(6, 7)), dict(scale_factor=2), dict(scale_factor=(2, 3))], ids=str)
@pytest.mark.parametrize("name", ["UpsamplingNearest2d", "UpsamplingBilinear2d"])
def test_layers_of_one_mode_compute_as_pytorchs(name: str, arguments: Any) -> None:
    compare(getattr(nn, name)(**arguments), getattr(torch.nn, name)(**arguments), given(*SIZES[2]))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("upsample", dict(size=8, mode="bilinear", align_corners=True)),
        ("upsample_nearest", dict(scale_factor=2)),
        ("upsample_bilinear", dict(size=(3, 8))),
    ],
)
def test_the_older_functions_warn_and_compute_as_pytorchs(name: str, arguments: Any) -> None:
    x = given(*SIZES[2])
    with pytest.warns(UserWarning, match=rf"`nn\.functional\.{name}` is deprecated") as seen:
        found = getattr(nn.functional, name)(as_ours(x), **arguments)
    assert len(seen) == 1 and seen[0].filename == __file__
    with pytest.warns(UserWarning):
        assert close(found, getattr(torch.nn.functional, name)(x, **arguments))


@pytest.mark.parametrize(
    ("sizes", "arguments"),
    [
        ((2, 3, 4, 4), {}),
        ((2, 3, 4, 4), dict(size=3, scale_factor=2.0)),
        ((2, 3, 4, 4), dict(size=(3,))),
        ((2, 3, 4, 4), dict(size=(3.0, 2))),
        ((2, 3, 4, 4), dict(scale_factor=(2.0, 3.0, 1.0))),
        ((2, 3, 4, 4), dict(size=3, align_corners=True)),
        ((2, 3, 4, 4), dict(size=3, recompute_scale_factor=True)),
        ((2, 3, 4), dict(size=3, mode="bilinear", antialias=True)),
        ((2, 3, 4, 4), dict(size=3, mode="linear")),
        ((2, 3, 4, 4), dict(size=3, mode="trilinear")),
        ((2, 3, 4), dict(size=3, mode="bilinear")),
        ((2, 3, 4), dict(size=3, mode="bicubic")),
        ((2, 3), dict(size=3)),
        ((2, 3, 4, 4), dict(size=3, mode="cubic")),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_as_pytorchs(sizes: tuple[int, ...], arguments: dict[str, Any]) -> None:
    x = given(*sizes)
    same_error(
        lambda: nn.functional.interpolate(as_ours(x), **arguments),
        lambda: torch.nn.functional.interpolate(x, **arguments),
    )


def test_images_without_pixels_and_filters_against_aliasing_are_refused() -> None:
    x = tenure.ones(1, 1, 3, 3)
    for arguments in (dict(size=(0, 2)), dict(scale_factor=0.1)):
        with pytest.raises(RuntimeError, match="Input and output sizes should be greater than 0"):
            nn.functional.interpolate(x, **arguments)
    with pytest.raises(NotImplementedError, match="leave antialias out"):
        nn.functional.interpolate(x, size=2, mode="bilinear", antialias=True)


@pytest.mark.parametrize("sizes", [(8, 4, 6), (2, 8, 4, 6), (2, 1, 8, 4, 6)], ids=str)
def test_pixels_are_shuffled_as_pytorchs(sizes: tuple[int, ...]) -> None:
    compare(nn.PixelShuffle(2), torch.nn.PixelShuffle(2), given(*sizes))
    compare(nn.PixelUnshuffle(2), torch.nn.PixelUnshuffle(2), given(*sizes))


@pytest.mark.parametrize("factor", [0, -1, 3])
@pytest.mark.parametrize("sizes", [(4, 4), (8, 4, 6), (8, 6, 4)], ids=str)
@pytest.mark.parametrize("name", ["PixelShuffle", "PixelUnshuffle"])
def test_pixels_that_do_not_fit_are_refused_as_pytorchs(name: str, sizes: tuple[int, ...], factor: int) -> None:
    ours, theirs, x = getattr(nn, name)(factor), getattr(torch.nn, name)(factor), given(*sizes)
    same_error(lambda: ours(as_ours(x)), lambda: theirs(x))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("sizes", [(1, 2, 5), (2, 3, 4, 6), (1, 2, 3, 2, 4)])
@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1, 1.2, 1.3, 2.0, 2.1, 2.3, 2.49])
def test_factors_that_lead_to_the_same_or_twice_the_size_are_pytorchs(
    mode: str, sizes: tuple[int, ...], factor: float
) -> None:
    pixels = torch.arange(float(math.prod(sizes))).reshape(sizes)
    found = nn.functional.interpolate(tenure.tensor(pixels.tolist()), scale_factor=factor, mode=mode)
    assert found.tolist() == torch.nn.functional.interpolate(pixels, scale_factor=factor, mode=mode).tolist()
    factors = (factor, *[1.5] * (len(sizes) - 3))
    found = nn.functional.interpolate(tenure.tensor(pixels.tolist()), scale_factor=factors, mode=mode)
    assert found.tolist() == torch.nn.functional.interpolate(pixels, scale_factor=factors, mode=mode).tolist()
