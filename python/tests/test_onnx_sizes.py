"""Tests of `tenure.onnx` with dynamic axes: a size is computed by a formula that holds for all sizes, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tenure
import tenure.nn.functional as F
from tenure import Tensor, nn
from tenure.onnx import export

from .onnx_comparison import check, compare, numbers

#: Functions with sizes that depend on the first axis.
FORMULAS: dict[str, Callable[[Tensor], Any]] = {
    "half": lambda x: x[: x.shape[0] // 2] * 2,
    "half rounded up": lambda x: x[: (x.shape[0] + 1) // 2] * 2,
    "three quarters": lambda x: x[: x.shape[0] * 3 // 4] * 2,
    "windows": lambda x: tenure.zeros((x.shape[0] - 1) // 2 + 1) + 1,
    "minimum": lambda x: x[: min(x.shape[0], 9)] * 2,
    "maximum": lambda x: tenure.zeros(max(x.shape[0], 8)) + 1,
    "both halves": lambda x: x.chunk(2),
    "difference": lambda x: x[: x.shape[0] - 1] - x[1:],
    "whole tensors and their parts": lambda x: (x[:9].sum(0), x * 2, x[-9:].sum(0), x + 1),
    "sixteenth": lambda x: tenure.zeros(x.shape[0] // 16) + 1,
    "rounded up to eight": lambda x: tenure.zeros((x.shape[0] + 7) // 8 * 8) + 1,
    "last four": lambda x: x[-4:] * 2,
    "quotient of products": lambda x: x.reshape(x.shape[0] * 12 // 6, 6),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("size", [2, 6, 17])
def test_a_formula_of_a_size_holds_for_any_size(name: str, size: int, tmp_path: Path) -> None:
    function = FORMULAS[name]
    found = check(function, [numbers(size, 3, 4)], tmp_path, input_names=["x"], dynamic_axes={"x": {0: "rows"}})
    for other in (2, 3, 7, 8, 16, 33, 100):
        compare(found, function, [numbers(other, 3, 4)])


#: Functions with sizes that no formula gives, and the operation that takes them.
REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "root": (lambda x: x[: int(x.shape[0] ** 0.5)] * 2, "slice"),
    "remainder": (lambda x: x[: x.shape[0] % 3] * 2, "slice"),
    "logarithm": (lambda x: tenure.zeros(x.shape[0].bit_length()) + 1, "zeros"),
    "power of two": (lambda x: tenure.zeros(1 << (x.shape[0] - 1).bit_length()) + 1, "zeros"),
    "step": (lambda x: tenure.zeros(x.shape[0] + int(x.shape[0] > 10)) + 1, "zeros"),
    "two bounds": (lambda x: x[: max(3, min(x.shape[0], 9))] * 2, "slice"),
    "almost all": (lambda x: tenure.zeros(x.shape[0] * 63 // 64) + 1, "zeros"),
    "square divided": (lambda x: tenure.zeros(x.shape[0] ** 2 // 7) + 1, "zeros"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("size", [2, 4, 9, 16])
def test_a_size_without_a_formula_is_refused(name: str, size: int, tmp_path: Path) -> None:
    function, operation = REFUSED[name]
    with pytest.raises(tenure.Error, match=rf"operation {operation} at .* depends on the dynamic axes \(rows\)"):
        export(function, numbers(size, 3), tmp_path / "m.onnx", input_names=["x"], dynamic_axes={"x": {0: "rows"}})
    assert not (tmp_path / "m.onnx").exists()


RESIZED: dict[str, Callable[[Tensor], Any]] = {
    "1.3 times": lambda x: F.interpolate(x, scale_factor=1.3),
    "about the same": lambda x: F.interpolate(x, scale_factor=1.04),
    "three times": lambda x: F.interpolate(x, scale_factor=3.0),
    "half": lambda x: F.interpolate(x, scale_factor=0.5),
    "turned": lambda x: F.interpolate(x, size=(x.shape[3], x.shape[2])),
    "height alone": lambda x: F.interpolate(x, size=(x.shape[2], 30)),
    "linear": lambda x: F.interpolate(x, scale_factor=1.25, mode="bilinear"),
}


@pytest.mark.parametrize("name", RESIZED)
def test_an_image_of_dynamic_sizes_is_resized(name: str, tmp_path: Path) -> None:
    function = RESIZED[name]
    axes = {"x": {2: "height", 3: "width"}}
    found = check(function, [numbers(1, 2, 12, 20)], tmp_path, input_names=["x"], dynamic_axes=axes)
    for height, width in ((2, 3), (20, 12), (7, 14), (21, 90), (48, 5)):
        compare(found, function, [numbers(1, 2, height, width)])


def test_a_factor_that_is_rounded_is_refused(tmp_path: Path) -> None:
    def resized(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=1.3, mode="bilinear")

    with pytest.raises(tenure.Error, match=r"ONNX rounds scale_factor=1\.3 .* give size"):
        export(resized, numbers(1, 2, 8, 9), tmp_path / "m.onnx", input_names=["x"], dynamic_axes={"x": {2: "height"}})
    check(resized, [numbers(1, 2, 8, 9)], tmp_path)


class UNet(nn.Module):
    """Halves images twice and doubles them again, so that both sizes must be multiples of four."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(4, 4, 2, stride=2), nn.ConvTranspose2d(8, 4, 2, stride=2)])

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.down[0](x))
        second = F.relu(self.down[1](F.max_pool2d(first, 2)))
        y = tenure.cat([self.up[0](F.max_pool2d(second, 2)), second], 1)
        y = tenure.cat([self.up[1](y), first], 1)
        batch, channels, height, width = y.shape
        return y.view(batch, channels, height * width).transpose(1, 2)


def test_a_unet_of_square_images_is_exported_for_any_multiple_of_both_sizes(tmp_path: Path) -> None:
    model = UNet().eval()
    axes = {0: "batch", 2: "height", 3: "width"}
    found = check(model, [numbers(2, 3, 16, 16)], tmp_path, input_names=["x"], dynamic_axes={"x": axes})
    compare(found, model, [numbers(1, 3, 8, 24)])
    compare(found, model, [numbers(3, 3, 20, 4)])


def test_sizes_of_two_axes_are_not_confused(tmp_path: Path) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rows, columns = x.shape[0], y.shape[0]
        return (
            x[: columns // 2],
            tenure.zeros(rows + columns),
            tenure.zeros(rows * (columns // 2)),
            x.sum(0).expand(columns, 4),
        )

    axes = {"x": {0: "rows"}, "y": {0: "columns"}}
    found = check(function, [numbers(8, 4), numbers(8, 4)], tmp_path, input_names=["x", "y"], dynamic_axes=axes)
    compare(found, function, [numbers(9, 4), numbers(4, 4)])
    compare(found, function, [numbers(3, 4), numbers(6, 4)])


def test_texts_are_run_no_longer_than_the_table_of_positions(tmp_path: Path) -> None:
    table = numbers(8, 4)

    def function(x: Tensor) -> Tensor:
        return x + table[tenure.arange(x.shape[1])]

    axes = {"x": {0: "batch", 1: "length"}}
    found = check(function, [numbers(1, 5, 4)], tmp_path, input_names=["x"], dynamic_axes=axes)
    compare(found, function, [numbers(3, 8, 4)])
    compare(found, function, [numbers(3, 1, 4)])


def test_an_axis_whose_size_is_fixed_is_refused_by_its_name(tmp_path: Path) -> None:
    axes = {"x": {0: "rows", 1: "width"}}
    with pytest.raises(tenure.Error, match=r"fails with other sizes of the axis width \(3\)"):
        export(
            lambda x: x @ tenure.ones(3, 2), numbers(4, 3), tmp_path / "m.onnx", input_names=["x"], dynamic_axes=axes
        )


def test_a_function_that_was_interrupted_is_not_run_again(tmp_path: Path) -> None:
    runs = []

    def function(x: Tensor) -> Tensor:
        runs.append(x.shape)
        if len(runs) == 2:
            raise KeyboardInterrupt
        return x + 1

    with pytest.raises(KeyboardInterrupt):
        export(function, numbers(2, 3), tmp_path / "m.onnx", input_names=["x"], dynamic_axes={"x": [0]})
    assert len(runs) == 2
