"""The Python array API standard: its names and signatures, and where its functions differ from PyTorch's."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tenure
import tenure.array_api as xp

#: The functions of version 2025.12 by their signatures.
FUNCTIONS = {
    "(*arrays)": "broadcast_arrays",
    "(*arrays, indexing='xy')": "meshgrid",
    "(*arrays_and_dtypes)": "result_type",
    "(*shapes)": "broadcast_shapes",
    "(arrays, /, *, axis=0)": "concat stack",
    "(condition, x1, x2, /)": "where",
    "(dtype, kind)": "isdtype",
    "(from_, to, /)": "can_cast",
    "(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)": "eye",
    "(obj, /, *, dtype=None, device=None, copy=None)": "asarray",
    "(shape, *, dtype=None, device=None)": "empty ones zeros",
    "(shape, fill_value, *, dtype=None, device=None)": "full",
    "(start, /, stop=None, step=1, *, dtype=None, device=None)": "arange",
    "(start, stop, /, num, *, dtype=None, device=None, endpoint=True)": "linspace",
    "(type, /)": "finfo iinfo",
    "(x, /)": (
        "abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag isfinite "
        "isinf isnan log log10 log1p log2 logical_not matrix_transpose negative nonzero positive real reciprocal "
        "round sign signbit sin sinh sqrt square tan tanh trunc unique_all unique_counts unique_inverse "
        "unique_values"
    ),
    "(x, /, *, axis=-1, descending=False, stable=True)": "argsort sort",
    "(x, /, *, axis=-1, n=1, prepend=None, append=None)": "diff",
    "(x, /, *, axis=0)": "unstack",
    "(x, /, *, axis=None)": "flip",
    "(x, /, *, axis=None, correction=0.0, keepdims=False)": "std var",
    "(x, /, *, axis=None, dtype=None, include_initial=False)": "cumulative_prod cumulative_sum",
    "(x, /, *, axis=None, dtype=None, keepdims=False)": "prod sum",
    "(x, /, *, axis=None, keepdims=False)": "all any argmax argmin count_nonzero max mean min",
    "(x, /, *, device=None, copy=None)": "from_dlpack",
    "(x, /, *, dtype=None, device=None)": "empty_like ones_like zeros_like",
    "(x, /, *, k=0)": "tril triu",
    "(x, /, axes)": "permute_dims",
    "(x, /, axis)": "expand_dims squeeze",
    "(x, /, fill_value, *, dtype=None, device=None)": "full_like",
    "(x, /, min=None, max=None)": "clip",
    "(x, /, shape)": "broadcast_to",
    "(x, /, shape, *, copy=None)": "reshape",
    "(x, /, shift, *, axis=None)": "roll",
    "(x, dtype, /, *, copy=True, device=None)": "astype",
    "(x, indices, /, *, axis=-1)": "take_along_axis",
    "(x, indices, /, *, axis=None)": "take",
    "(x, repeats, /, *, axis=None)": "repeat",
    "(x, repetitions, /)": "tile",
    "(x, source, destination, /)": "moveaxis",
    "(x1, x2, /)": (
        "add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide equal "
        "floor_divide greater greater_equal hypot less less_equal logaddexp logical_and logical_or logical_xor "
        "matmul maximum minimum multiply nextafter not_equal pow remainder subtract"
    ),
    "(x1, x2, /, *, axes=2)": "tensordot",
    "(x1, x2, /, *, axis=-1)": "vecdot",
    "(x1, x2, /, *, invert=False)": "isin",
    "(x1, x2, /, *, side='left', sorter=None)": "searchsorted",
}
#: The functions of the extension `linalg`.
LINALG = {
    "(x, /)": "det eigh eigvalsh inv matrix_transpose slogdet svdvals",
    "(x, /, *, axis=None, keepdims=False, ord=2)": "vector_norm",
    "(x, /, *, full_matrices=True)": "svd",
    "(x, /, *, keepdims=False, ord='fro')": "matrix_norm",
    "(x, /, *, mode='reduced')": "qr",
    "(x, /, *, offset=0)": "diagonal",
    "(x, /, *, offset=0, dtype=None)": "trace",
    "(x, /, *, rtol=None)": "matrix_rank pinv",
    "(x, /, *, upper=False)": "cholesky",
    "(x, n, /)": "matrix_power",
    "(x1, x2, /)": "matmul outer solve",
    "(x1, x2, /, *, axes=2)": "tensordot",
    "(x1, x2, /, *, axis=-1)": "cross vecdot",
}
SIGNATURES = {name: signature for signature, names in FUNCTIONS.items() for name in names.split()}


def equals(array: tenure.Tensor, values: Any, dtype: tenure.dtype | None = None) -> bool:
    """Whether an array has these values, with NaN equal to NaN and -0.0 unequal to 0.0."""
    return repr(array.tolist()) == repr(values) and dtype in (None, array.dtype)


def signature_of(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parameters = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_function_has_the_signature_of_the_standard(name: str) -> None:
    assert signature_of(getattr(xp, name)) == SIGNATURES[name]


def test_linalg_has_exactly_the_functions_of_the_standard_for_real_numbers() -> None:
    expected = {name: signature for signature, names in LINALG.items() for name in names.split()}
    assert {name: signature_of(getattr(xp.linalg, name)) for name in xp.linalg.__all__} == expected


def test_vectors_to_solve_for_are_told_from_matrices_by_their_axes_alone() -> None:
    a = 2 * xp.broadcast_to(xp.eye(2), (2, 2, 2))
    assert xp.linalg.solve(a, xp.ones((2, 2))).shape == (2, 2, 2)
    assert xp.linalg.solve(a, xp.ones(2)).shape == (2, 2)


def test_the_namespace_has_exactly_the_names_of_the_standard() -> None:
    dtypes = xp.__array_namespace_info__().dtypes()
    constants = {"e", "inf", "nan", "newaxis", "pi"}
    others = {"__array_api_version__", "__array_namespace_info__"}
    assert set(xp.__all__) == {*SIGNATURES, *dtypes, *constants, *others, "linalg"}
    assert {name for name in vars(xp) if not name.startswith("_")} == {*SIGNATURES, *dtypes, *constants, "linalg"}
    assert {"bool", "int8", "int16", "int32", "int64", "uint8", "float32", "float64"} <= set(dtypes)


def test_a_tensor_tells_its_namespace() -> None:
    x = tenure.ones(2)
    assert x.__array_namespace__() is xp
    assert x.__array_namespace__(api_version="2025.12") is x.__array_namespace__(api_version="2021.12") is xp
    with pytest.raises(ValueError, match=r"unknown version '1999.12' of the array API: Tenure has 2021.12, "):
        x.__array_namespace__(api_version="1999.12")


def test_a_tensor_moves_to_a_device_by_the_name_of_the_standard() -> None:
    x = tenure.ones(2)
    assert x.to_device(x.device) is x
    with pytest.raises(ValueError, match="current stream"):
        x.to_device("cpu", stream=1)
    assert complex(xp.asarray(2.5)) == 2.5 + 0j


def test_arrays_without_dimensions_promote_as_others_do() -> None:
    double, single = xp.asarray(1.0, dtype=xp.float64), xp.ones(2)
    assert (single + double).dtype == xp.float32
    assert xp.add(single, double).dtype == xp.where(single > 0, single, double).dtype == xp.float64
    assert xp.result_type(xp.int8, xp.uint8) == xp.int16
    assert xp.result_type(xp.float32, 1, xp.asarray(1.0, dtype=xp.float64)) == xp.float64
    assert xp.greater_equal(xp.asarray(-1, dtype=xp.int16), xp.asarray([0], dtype=xp.uint8)).tolist() == [False]


def test_numbers_adapt_to_the_array_on_either_side() -> None:
    x = xp.asarray([1, 2], dtype=xp.int8)
    assert equals(xp.subtract(5, x), [4, 3], xp.int8)
    assert equals(xp.atan2(xp.asarray([0.0]), 1), [0.0], xp.float32)
    assert equals(xp.pow(2, xp.asarray([3.0], dtype=xp.float64)), [8.0], xp.float64)
    with pytest.raises(TypeError, match="one of two operands must be an array, not int and int"):
        xp.add(1, 2)


def test_sums_have_the_dtype_that_is_asked_or_the_default_one() -> None:
    x = xp.asarray([200, 100], dtype=xp.uint8)
    assert equals(xp.sum(x, dtype=xp.uint8), 44, xp.uint8)
    assert equals(xp.cumulative_sum(x, dtype=xp.uint8, include_initial=True), [0, 200, 44], xp.uint8)
    assert xp.sum(xp.ones(2, dtype=xp.int8)).dtype == xp.prod(xp.ones(2, dtype=xp.int32)).dtype == xp.int64
    assert xp.sum(xp.ones(2, dtype=xp.float32)).dtype == xp.float32


def test_a_reduction_over_no_axes_keeps_the_elements() -> None:
    x = xp.asarray([[1.0, 2.0]])
    assert equals(xp.sum(x, axis=()), [[1.0, 2.0]])
    assert equals(xp.max(x, axis=(), keepdims=True), [[1.0, 2.0]])
    assert equals(xp.all(x, axis=()), [[True, True]])
    assert equals(xp.sum(x), 3.0)


def test_deviations_are_of_the_whole_population_by_default() -> None:
    x = xp.asarray([1.0, 3.0])
    assert (float(xp.var(x)), float(xp.std(x)), float(x.var())) == (1.0, 1.0, 2.0)
    assert float(xp.var(x, correction=0.5)) == pytest.approx(4 / 3)


def test_an_interval_against_its_step_has_no_numbers() -> None:
    assert equals(xp.arange(3, 0), [], xp.int64)
    assert equals(xp.arange(0, 3, -1), [])
    assert equals(xp.arange(3, 0, -1.5), [3.0, 1.5], xp.float32)
    assert equals(xp.linspace(0, 1, 4, endpoint=False), [0.0, 0.25, 0.5, 0.75])
    assert equals(xp.linspace(0, 1, 0, endpoint=False), [])


def test_a_matrix_has_ones_on_the_diagonal_that_is_asked() -> None:
    assert equals(xp.eye(2, 3, k=1, dtype=xp.int8), [[0, 1, 0], [0, 0, 1]], xp.int8)
    assert equals(xp.eye(2, k=-1), [[0.0, 0.0], [1.0, 0.0]])
    assert equals(xp.eye(2, k=2), [[0.0, 0.0], [0.0, 0.0]])


def test_the_value_decides_the_dtype_of_full_arrays() -> None:
    assert [xp.full(1, value).dtype for value in (True, 1, 1.0)] == [xp.bool, xp.int64, xp.float32]
    with pytest.raises(TypeError, match="no complex numbers"):
        xp.full(1, 1j)


def test_grids_have_the_first_coordinate_along_columns_by_default() -> None:
    assert [grid.shape for grid in xp.meshgrid(xp.ones(2), xp.ones(3))] == [(3, 2), (3, 2)]
    assert xp.meshgrid(xp.ones(2), xp.ones(3), indexing="ij")[0].shape == (2, 3)


def test_axes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="its size is not 1"):
        xp.squeeze(xp.ones((2, 1)), 0)
    with pytest.raises(ValueError, match="do not broadcast"):
        xp.broadcast_shapes((2, 3), (2,))
    with pytest.raises(ValueError, match=r"does not broadcast to \(1,\)"):
        xp.broadcast_to(xp.ones(3), (1,))
    with pytest.raises(IndexError, match="is not one of the 2 axes"):
        xp.expand_dims(xp.ones(3), 2)
    with pytest.raises(ValueError, match="nonzero needs an array with axes"):
        xp.nonzero(xp.asarray(1))


def test_reshape_copies_only_as_it_is_told() -> None:
    x = xp.ones((2, 3))
    assert xp.reshape(x, (6,), copy=False).shares_storage_with(x)
    assert not xp.reshape(x, (6,), copy=True).shares_storage_with(x)
    with pytest.raises(ValueError, match="copy=False forbids"):
        xp.reshape(x.mT, (6,), copy=False)


def test_entries_are_repeated_as_often_as_an_array_says() -> None:
    x = xp.asarray([[1, 2], [3, 4]])
    assert equals(xp.repeat(x, xp.asarray([0, 2]), axis=0), [[3, 4], [3, 4]])
    assert equals(xp.repeat(x, 2), [1, 1, 2, 2, 3, 3, 4, 4])
    assert equals(xp.repeat(xp.asarray([5, 6]), xp.asarray([2])), [5, 5, 6, 6])


def test_indices_may_count_from_the_end() -> None:
    x = xp.asarray([[1, 2, 3], [4, 5, 6]])
    assert equals(xp.take(x, xp.asarray([[-1, 0]]), axis=1), [[[3, 1]], [[6, 4]]])
    assert equals(xp.take_along_axis(x, xp.asarray([[-1], [0]])), [[3], [4]])
    with pytest.raises(ValueError, match="take needs an axis"):
        xp.take(x, xp.asarray([0]))


def test_the_first_place_of_each_distinct_element_is_known() -> None:
    distinct = xp.unique_all(xp.asarray([[3, 1], [1, 3]]))
    assert equals(distinct.values, [1, 3])
    assert equals(distinct.indices, [1, 0])
    assert equals(distinct.inverse_indices, [[1, 0], [0, 1]])
    assert equals(distinct.counts, [2, 2])
    assert equals(xp.unique_counts(xp.asarray([math.nan, math.nan])).counts, [1, 1])


def test_a_sequence_is_searched_in_the_order_that_is_given() -> None:
    x = xp.asarray([3.0, 1.0, 2.0])
    order = xp.argsort(x)
    assert equals(xp.searchsorted(x, xp.asarray([2.0, 9.0]), sorter=order), [1, 3])
    assert equals(xp.searchsorted(xp.sort(x), 2, side="right"), 2)
    assert equals(xp.isin(xp.asarray([1, 2]), 2, invert=True), [True, False])


def test_bounds_are_in_the_dtype_of_the_array() -> None:
    x = xp.asarray([-100, 100], dtype=xp.int8)
    assert equals(xp.clip(x, 0, 1000), [0, 100], xp.int8)
    assert equals(xp.clip(x, max=xp.asarray([-120.0, 3.0])), [-120, 3], xp.int8)
    assert not xp.clip(x).shares_storage_with(x)


def test_differences_reach_to_what_is_put_in_front_and_behind() -> None:
    x = xp.asarray([1, 4, 9])
    assert equals(xp.diff(x, n=2), [2])
    assert equals(xp.diff(x, prepend=xp.asarray([0]), append=xp.asarray([16])), [1, 3, 5, 7])
    assert equals(xp.diff(x, n=5), [])


def test_special_values_follow_the_standard() -> None:
    x = xp.asarray([math.inf, 1.0, -1.0, 7.0])
    assert equals(xp.floor_divide(x, xp.asarray([2.0, -math.inf, math.inf, 2.0])), [math.inf, -0.0, -0.0, 3.0])
    assert equals(xp.remainder(xp.asarray([-0.0, 0.0, 5.0]), xp.asarray([2.0, -2.0, -3.0])), [0.0, -0.0, -1.0])
    assert equals(xp.sign(xp.asarray([math.nan, -2.0])), [math.nan, -1.0])


def test_the_next_number_is_found_in_both_directions_and_at_zero() -> None:
    x = xp.asarray([0.0, 0.0, 1.0, 1.0, -1.0, math.inf, 3.0], dtype=xp.float64)
    to = xp.asarray([1.0, -1.0, 2.0, 0.0, 0.0, 0.0, math.nan], dtype=xp.float64)
    expected = [math.nextafter(a, b) for a, b in zip(x.tolist(), to.tolist(), strict=True)]
    assert equals(xp.nextafter(x, to), expected, xp.float64)
    assert equals(xp.nextafter(xp.asarray(0.0), -1), -(2.0**-149), xp.float32)


def test_limits_of_dtypes_are_known() -> None:
    single, byte = xp.finfo(xp.float32), xp.iinfo(xp.ones(1, dtype=xp.uint8))
    assert (single.bits, single.eps, single.max) == (32, 2.0**-23, (2 - 2.0**-23) * 2.0**127)
    assert (single.min, single.smallest_normal, single.dtype) == (-single.max, 2.0**-126, xp.float32)
    assert (byte.bits, byte.min, byte.max, byte.dtype) == (8, 0, 255, xp.uint8)
    with pytest.raises(ValueError, match="finfo needs a floating-point dtype"):
        xp.finfo(xp.int8)


@pytest.mark.parametrize("name", ["uint8", "int8", "uint64"])
def test_numbers_that_an_integer_dtype_does_not_hold_are_divided(name: str) -> None:
    x = xp.asarray([1, 2], dtype=getattr(xp, name))
    assert xp.divide(-1, x).tolist() == [-1.0, -0.5]
    assert xp.divide(300, x).tolist() == [300.0, 150.0]


def test_kinds_of_dtypes_are_told_apart() -> None:
    assert xp.isdtype(xp.uint8, ("bool", "unsigned integer"))
    assert xp.isdtype(xp.float32, xp.float32)
    assert not xp.isdtype(xp.bool, "numeric")
    assert xp.can_cast(xp.int8, xp.int16)
    assert not xp.can_cast(xp.int16, xp.uint8)
    assert xp.can_cast(xp.uint32, xp.uint64)
    assert not xp.can_cast(xp.uint64, xp.int64)
    assert not xp.can_cast(xp.int8, xp.uint64)
    with pytest.raises(ValueError, match="unknown kind of dtypes 'real'"):
        xp.isdtype(xp.int8, "real")


def test_the_list_of_failures_gives_a_reason_for_each() -> None:
    has_reason = False
    for line in (Path(__file__).parent / "array_api_failures.txt").read_text().splitlines():
        assert has_reason or not line.startswith("array_api_tests/"), f"{line} has no reason above it"
        has_reason = line.startswith("#") or (has_reason and line != "")
