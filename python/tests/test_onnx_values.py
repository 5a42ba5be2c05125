"""Tests of `tenure.onnx`: masked rows, small numbers, dtypes, names and files."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tenure
import tenure.nn.functional as F
from tenure import Tensor
from tenure.onnx import export

from .onnx_comparison import check, compare, numbers, session

onnxruntime = pytest.importorskip("onnxruntime")
np = pytest.importorskip("numpy")

NAN = float("nan")


def dynamic(function: Callable[[Tensor], Any], size: int, path: Path) -> Any:
    return check(function, [numbers(size, 3, 4)], path, input_names=["x"], dynamic_axes={"x": {0: "rows"}})


@pytest.mark.parametrize("is_added", [False, True])
def test_a_query_whose_keys_are_all_hidden_has_a_result_of_zeros(is_added: bool, tmp_path: Path) -> None:
    mask = tenure.ones(5, 5).tril(-1) > 0
    if is_added:
        mask = tenure.zeros(5, 5).masked_fill(~mask, float("-inf"))
    x = numbers(2, 4, 5, 8)
    check(lambda x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m), [x, mask], tmp_path)


@pytest.mark.parametrize("size", [3, 20])
def test_ranges_that_fall_are_computed_for_any_size(size: int, tmp_path: Path) -> None:
    def function(x: Tensor) -> Tensor:
        return tenure.arange(x.shape[0] - 1, -1, -1) + tenure.arange(0, 2 * x.shape[0], 2)

    found = dynamic(function, size, tmp_path)
    compare(found, function, [numbers(1, 3, 4)])
    compare(found, function, [numbers(9, 3, 4)])


@pytest.mark.parametrize("shift", [1, -1, 5, -7, 0])
def test_a_roll_may_be_by_more_than_the_size(shift: int, tmp_path: Path) -> None:
    def function(x: Tensor) -> Tensor:
        return x.roll(shift, 0)

    found = dynamic(function, 4, tmp_path)
    for size in (1, 2, 3, 5, 8):
        compare(found, function, [numbers(size, 3, 4)])


@pytest.mark.parametrize("function", [lambda x: x.squeeze(0) * 2, lambda x: x[:, :1].squeeze() * 2])
def test_leaving_out_a_dynamic_axis_is_refused(function: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    with pytest.raises(tenure.Error, match="operation squeeze .*the size of dimension 0 is dynamic, and may be 1"):
        dynamic(function, 2, tmp_path)


def test_a_fixed_axis_beside_a_dynamic_one_is_left_out(tmp_path: Path) -> None:
    found = dynamic(lambda x: x[:, :1].squeeze(1) * 2, 2, tmp_path)
    compare(found, lambda x: x[:, :1].squeeze(1) * 2, [numbers(1, 3, 4)])


def test_an_input_and_an_output_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(tenure.Error, match='an input and an output have the name "x"'):
        export(lambda x: x + 1, numbers(2), tmp_path / "m.onnx", input_names=["x"], output_names=["x"])


@pytest.mark.parametrize("names", [{"input_names": [""]}, {"output_names": [""]}])
def test_an_empty_name_is_refused(names: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(tenure.Error, match="the name of (in|out)put 0 is empty"):
        export(lambda x: x + 1, numbers(2), tmp_path / "m.onnx", **names)


#: Functions that are computed in 32 bits where operators lack bfloat16.
NARROW: dict[str, Callable[[Tensor], Any]] = {
    "linear": lambda x: F.linear(x, x, x[:, 0]),
    "gelu": lambda x: F.gelu(x),
    "celu": lambda x: F.celu(x),
    "softmax": lambda x: x.softmax(-1),
    "comparison": lambda x: tenure.where(x > 0, x, -x),
    "sort": lambda x: x.sort(-1)[0],
    "sum": lambda x: x.sum(-1),
    "isinf": lambda x: (x / 0).isinf(),
    "scatter_add": lambda x: x.scatter_add(0, tenure.zeros(4, 4, dtype=tenure.int64), x),
    "convolution": lambda x: F.conv1d(x[None], x[:, :, None]),
    "pool": lambda x: F.max_pool1d(x[None], 2),
    "constants": lambda x: x + tenure.ones_like(x) + 2,
    "moves": lambda x: tenure.cat([x.t(), x[1:]])[:, 1:],
}


@pytest.mark.parametrize("dtype", [tenure.bfloat16, tenure.float16])
@pytest.mark.parametrize("name", NARROW)
def test_operators_without_a_narrow_dtype_compute_in_32_bits(name: str, dtype: tenure.dtype, tmp_path: Path) -> None:
    def function(x: Tensor) -> Tensor:
        result: Tensor = NARROW[name](x.to(dtype))
        return result.float()

    export(function, numbers(4, 4), tmp_path / "m.onnx")
    compare(session(tmp_path / "m.onnx"), function, [numbers(4, 4)], 0.03)


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x: F.conv1d(x[None], x[:, :, None]), "Conv"),
        (lambda x: x.atan(), "Atan"),
        (lambda x: F.avg_pool1d(x[None], 2), "AveragePool"),
        (lambda x: F.gelu(x), "Erf"),
    ],
)
def test_an_operator_that_lacks_64_bits_is_refused(
    function: Callable[[Tensor], Tensor], operator: str, tmp_path: Path
) -> None:
    with pytest.raises(tenure.Error, match=f"ONNX Runtime has no {operator} of float64"):
        export(function, numbers(4, 4).double(), tmp_path / "m.onnx")


@pytest.mark.parametrize("dtype", [tenure.int32, tenure.int16, tenure.uint16])
def test_indices_may_have_few_bits(dtype: tenure.dtype, tmp_path: Path) -> None:
    index = tenure.tensor([2, 0, 1]).to(dtype)
    check(lambda x, i: (x.index_select(0, i), F.embedding(i, x), x[i]), [numbers(3, 4), index], tmp_path)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x,
        lambda x: tenure.bmm(x[None], x[None]),
        lambda x: F.linear(x, x),
        lambda x: tenure.addmm(x, x, x),
        lambda x: F.conv1d(x[None], x[:, :, None]),
    ],
)
def test_products_under_autocast_compute_in_its_dtype_or_are_refused(
    function: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    def cast(x: Tensor) -> Tensor:
        with tenure.amp.autocast("cpu", dtype=tenure.bfloat16):
            return function(x).float()

    try:
        export(cast, numbers(4, 4), tmp_path / "m.onnx")
    except tenure.Error as error:
        assert "export without autocast" in str(error)
    else:
        compare(session(tmp_path / "m.onnx"), cast, [numbers(4, 4)], 0.03)


@pytest.mark.parametrize("size", [4, 5, 6, 7, 8])
@pytest.mark.parametrize("window", [(2, 2, 1), (3, 2, 1), (2, 3, 0), (2, 3, 1), (3, 2, 0)])
def test_ceil_mode_gives_the_same_windows_or_is_refused(size: int, window: tuple[int, ...], tmp_path: Path) -> None:
    kernel, stride, padding = window

    def function(x: Tensor) -> Tensor:
        return F.max_pool2d(x, kernel, stride, padding, ceil_mode=True)

    try:
        check(function, [numbers(1, 2, size, size)], tmp_path)
    except tenure.Error as error:
        assert "ceil_mode may add a window that is in the padding only" in str(error)
        assert stride + padding > kernel


@pytest.mark.parametrize("name", ["expm1", "log1p", "erfc"])
@pytest.mark.parametrize("dtype", [tenure.float32, tenure.float64])
def test_results_keep_their_digits(name: str, dtype: tenure.dtype, tmp_path: Path) -> None:
    if name == "erfc" and dtype == tenure.float64:
        pytest.skip("ONNX Runtime has no Erf of 64 bits")
    values = [1e-12, -1e-7, 1e-4, -0.01, 0.3, -0.49, 0.51, 0.0]
    values += [1.0, 2.5, 5.0, 9.0] if name == "erfc" else [3.0, 80.0, float("inf"), -0.9]
    x = tenure.tensor(values, dtype=dtype)
    function = getattr(tenure, name)
    export(function, x, tmp_path / "m.onnx")
    result = session(tmp_path / "m.onnx").run(None, {"input_0": np.asarray(x)})[0]
    np.testing.assert_allclose(result, np.asarray(function(x)), rtol=2e-6 if dtype == tenure.float32 else 1e-14)


def test_a_threshold_keeps_what_is_not_a_number(tmp_path: Path) -> None:
    check(lambda x: F.threshold(x, 0.5, 7.0), [tenure.tensor([NAN, 0.2, 0.5, 0.9])], tmp_path)


def test_a_list_is_an_index(tmp_path: Path) -> None:
    check(lambda x: (x[:, [2, 1, 0]], x[[0, -1]], x[[1, 0], [2, 2]]), [numbers(2, 3)], tmp_path)


def test_a_list_that_depends_on_a_dynamic_axis_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tenure.Error, match="has other arguments"):
        dynamic(lambda x: x[[0, x.shape[0] - 1]], 3, tmp_path)


@pytest.mark.parametrize(
    ("function", "axes", "reason"),
    [
        (lambda x: x + 1, {2: "rows"}, "y has 2 dimensions, but the dynamic axis 2"),
        (lambda x: x.sum(0), {0: "rows"}, "the axis 0 of y has the size 3 for all sizes of the inputs"),
        (lambda x: tenure.cat([x, x]), {0: "rows"}, "the axis 0 of y has another size than the axis rows"),
    ],
)
def test_dynamic_axes_of_outputs_are_checked(
    function: Callable[[Tensor], Tensor], axes: dict[int, str], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(tenure.Error, match=reason):
        export(
            function,
            numbers(2, 3),
            tmp_path / "m.onnx",
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "rows"}, "y": axes},
        )


def test_a_model_is_written_to_a_stream(tmp_path: Path) -> None:
    stream = io.BytesIO()
    export(lambda x: x + 1, numbers(2, 3), stream, input_names=["x"])
    found = onnxruntime.InferenceSession(stream.getvalue(), providers=["CPUExecutionProvider"])
    compare(found, lambda x: x + 1, [numbers(2, 3)])
    with pytest.raises(ValueError, match="the parameters need a second file"):
        export(tenure.nn.Linear(3, 4), numbers(2, 3), io.BytesIO(), external_data=True)
