# Python before 3.12 does not tell type checkers which objects are buffers, and functions in lists have no types.
# mypy: disable-error-code="arg-type, no-untyped-call"
"""Tests of `uint16`, `uint32` and `uint64` against NumPy, and of their way through files and other libraries."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenure
from tenure.safetensors import load_file, save_file

NAMES = ["uint16", "uint32", "uint64"]

Binary = Callable[[Any, Any], Any]


def numbers(name: str, seed: int) -> np.ndarray[Any, Any]:
    """Returns numbers of all sizes, with those at both ends and in the middle."""
    largest = np.iinfo(name).max
    drawn = np.random.default_rng(seed).integers(0, largest, 40, dtype=name, endpoint=True)
    ends = np.array([0, 1, 2, largest // 2, largest // 2 + 1, largest - 1, largest], dtype=name)
    return np.concatenate([np.roll(ends, seed), drawn, drawn % 7])


def check(found: tenure.Tensor, expected: np.ndarray[Any, Any]) -> None:
    """Compares a tensor with an array, also in dtype."""
    assert found.dtype.name == expected.dtype.name
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "operation",
    [
        *(operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.xor),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    ],
)
def test_operators_are_numpys(name: str, operation: Binary) -> None:
    a, b = numbers(name, 1), numbers(name, 2)
    check(operation(tenure.tensor(a), tenure.tensor(b)), operation(a, b))
    check(operation(tenure.tensor(a), 3), operation(a, np.array(3, dtype=name)))
    check(operation(3, tenure.tensor(a)), operation(np.array(3, dtype=name), a))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operation", [operator.floordiv, operator.mod, operator.lshift, operator.rshift])
def test_divisions_and_shifts_are_numpys(name: str, operation: Binary) -> None:
    a, b = numbers(name, 1), numbers(name, 2)
    b = np.maximum(b % np.array(12, dtype=name), np.array(1, dtype=name))
    check(operation(tenure.tensor(a), tenure.tensor(b)), operation(a, b))


@pytest.mark.parametrize("name", NAMES)
def test_functions_are_numpys(name: str) -> None:
    a, b = numbers(name, 3), numbers(name, 4)
    x, y = tenure.tensor(a), tenure.tensor(b)
    check(~x, ~a)
    check(x.abs(), a)
    check(x.sign(), np.sign(a))
    check(x.square(), np.square(a))
    check(tenure.maximum(x, y), np.maximum(a, b))
    check(tenure.minimum(x, y), np.minimum(a, b))
    check(tenure.where(x > y, x, y), np.where(a > b, a, b))
    check(x.sort().values, np.sort(a))
    check(x.argsort(stable=True), np.argsort(a, stable=True))
    check(x.unique(), np.unique(a))
    check(tenure.searchsorted(x.sort().values, y), np.searchsorted(np.sort(a), b))
    check(tenure.isin(x, y), np.isin(a, b))
    check(tenure.cat([x, y]), np.concatenate([a, b]))
    check(x[y > 2], a[b > 2])
    check(x[tenure.tensor([3, 1])], a[[3, 1]])
    check(x.flip(0), np.flip(a))
    check(x.nonzero().flatten(), np.nonzero(a)[0])
    check(x.sum(dtype=getattr(tenure, name)), a.sum(dtype=name))
    check(x.prod(dtype=getattr(tenure, name)), a.prod(dtype=name))
    check(x.cumsum(0, dtype=getattr(tenure, name)), np.cumsum(a, dtype=name))
    check(x.to(tenure.float64), a.astype("float64"))
    check(x.to(tenure.int8), a.astype("int8"))
    assert (x.max().item(), x.min().item()) == (a.max(), a.min())
    assert (x.argmax().item(), x.argmin().item()) == (a.argmax(), a.argmin())
    assert (x.sum().dtype, x.cumsum(0).dtype) == (tenure.int64, tenure.int64)
    assert (x / y.clamp_min(1)).dtype is tenure.float32
    assert x.sqrt().dtype is tenure.float32


@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_made_of_numbers_that_fit(name: str) -> None:
    dtype, largest = getattr(tenure, name), int(np.iinfo(name).max)
    assert tenure.tensor([0, largest], dtype=dtype).tolist() == [0, largest]
    assert tenure.tensor(largest, dtype=dtype).item() == largest
    assert int(tenure.full((2,), largest, dtype=dtype)[1]) == largest
    assert tenure.arange(largest - 2, largest, dtype=dtype).tolist() == [largest - 2, largest - 1]
    assert tenure.zeros(2, dtype=dtype).tolist() == [0, 0]
    assert tenure.ones(2, dtype=dtype).tolist() == [1, 1]
    assert tenure.empty(2, 3, dtype=dtype).shape == (2, 3)
    assert str(tenure.tensor([largest], dtype=dtype)) == f"tensor([{largest}], dtype=tenure.{name})"
    assert [largest][tenure.tensor(0, dtype=dtype)] == largest
    assert (dtype.is_signed, dtype.is_floating_point, dtype.itemsize) == (False, False, np.dtype(name).itemsize)
    for number in (largest + 1, 2**64, -(2**63) - 1):
        with pytest.raises((OverflowError, RuntimeError), match="fit|large"):
            tenure.tensor(number, dtype=dtype)
        with pytest.raises((OverflowError, RuntimeError), match="fit|large"):
            tenure.full((2,), number, dtype=dtype)
    with pytest.raises(RuntimeError, match="floating"):
        tenure.ones(2, dtype=dtype, requires_grad=True)


def test_integers_from_2_to_the_63_on_are_exact_for_uint64_and_refused_for_others() -> None:
    x = tenure.tensor(2**63, dtype=tenure.uint64)
    assert (x.item(), int(x), operator.index(x), x.tolist()) == (2**63, 2**63, 2**63, 2**63)
    assert (x + (2**63 - 1)).item() == 2**64 - 1
    assert ((2**63) ^ x).item() == 0
    assert (x == 2**63).item()
    assert tenure.tensor(2**63, dtype=tenure.float64).item() == 2.0**63
    assert tenure.tensor([2**63, 1.5]).tolist() == [2.0**63, 1.5]
    for refused in (
        lambda: tenure.tensor(2**63),
        lambda: tenure.tensor(2**63, dtype=tenure.int64),
        lambda: tenure.full((1,), 2**63),
        lambda: tenure.ones(1, dtype=tenure.int64) + 2**63,
        lambda: 2**63 * tenure.ones(1, dtype=tenure.uint8),
        lambda: tenure.ones(1, dtype=tenure.int32).clamp(max=2**63),
        lambda: tenure.tensor(300, dtype=tenure.uint8),
    ):
        with pytest.raises(RuntimeError, match="does not fit"):
            refused()


def test_types_promote_as_in_numpy_and_uint64_to_no_signed_type() -> None:
    integers = ["bool", "uint8", *NAMES, "int8", "int16", "int32", "int64"]
    for left in NAMES:
        for right in integers:
            types = getattr(tenure, left), getattr(tenure, right)
            if left == "uint64" and right.startswith("int"):
                with pytest.raises(RuntimeError, match="uint64 and int.*convert one of them"):
                    tenure.promote_types(*types)
                with pytest.raises(RuntimeError, match="convert one of them"):
                    tenure.ones(1, dtype=types[0]) + tenure.ones(1, dtype=types[1])
            else:
                expected = np.promote_types(left, right).name
                assert tenure.promote_types(*types).name == expected
                assert (tenure.ones(1, dtype=types[0]) + tenure.ones(1, dtype=types[1])).dtype.name == expected
        for right in ("float16", "bfloat16", "float32", "float64"):
            assert tenure.promote_types(getattr(tenure, left), getattr(tenure, right)).name == right


@pytest.mark.parametrize("name", NAMES)
def test_elements_come_through_numpy_dlpack_and_files(name: str, tmp_path: Path) -> None:
    a = numbers(name, 5)
    x = tenure.from_dlpack(a)
    check(x, a)
    for array in (np.from_dlpack(x), np.asarray(x), np.asarray(memoryview(x))):
        assert array.dtype == a.dtype
        assert array.tolist() == a.tolist()
    check(tenure.asarray(memoryview(a)), a)
    check(tenure.frombuffer(a.tobytes(), dtype=getattr(tenure, name)), a)
    save_file({"x": x}, tmp_path / "file")
    check(load_file(tmp_path / "file")["x"], a)
    reference = pytest.importorskip("safetensors.numpy")
    assert reference.load_file(tmp_path / "file")["x"].tolist() == a.tolist()
    reference.save_file({"x": a}, tmp_path / "theirs")
    check(load_file(tmp_path / "theirs")["x"], a)


@pytest.mark.parametrize("name", NAMES)
def test_results_are_pytorchs_where_it_has_the_operation(name: str) -> None:
    torch = pytest.importorskip("torch")
    a, b = numbers(name, 6), numbers(name, 7)
    x, y = tenure.tensor(a), tenure.tensor(b)
    theirs = torch.from_numpy(a), torch.from_numpy(b)
    assert torch.from_dlpack(x).tolist() == a.tolist()
    check(tenure.from_dlpack(theirs[0]), a)
    for operation in (
        lambda x, y: x * y,
        lambda x, y: x == y,
        lambda x, y: x & y,
        lambda x, y: x.sum(),
        lambda x, y: x.prod(),
        lambda x, y: x.cumsum(0),
        lambda x, y: x.sort()[0],
        lambda x, y: x / 3,
        lambda x, y: x + 0.5,
    ):
        found, expected = operation(x, y), operation(*theirs)
        assert found.dtype.name == str(expected.dtype).removeprefix("torch.")
        assert found.tolist() == expected.tolist()
    # PyTorch leaves open what becomes of floats that are larger than the type holds.
    floats = [-1.5, 2.7, 0.75 * np.iinfo(name).max]
    found = tenure.tensor(floats, dtype=tenure.float64).to(getattr(tenure, name))
    expected = torch.tensor(floats, dtype=torch.float64).to(getattr(torch, name))
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["uint8", "int8", "uint16", "int32"])
def test_a_number_on_the_left_of_integers_is_the_number(name: str) -> None:
    torch = pytest.importorskip("torch")
    values = [2, 5, 100]
    ours, theirs = (t.tensor(values, dtype=getattr(t, name)) for t in (tenure, torch))
    for number in (-1, 300, 2**20 + 1):
        assert (number / ours).tolist() == pytest.approx([number / value for value in values])
        if name != "uint16":
            assert (number - ours).tolist() == (number - theirs).tolist()
            assert (number // ours).tolist() == (number // theirs).tolist()


def test_a_bound_or_a_choice_that_does_not_fit_is_refused() -> None:
    x = tenure.tensor([0, 5, 100], dtype=tenure.uint8)
    for call in (
        lambda: x.clamp(max=2**40),
        lambda: x.clamp(min=300),
        lambda: x.clone().clamp_(0, 300),
        lambda: tenure.where(x > 200, 300, x),
    ):
        with pytest.raises(tenure.Error, match="does not fit uint8"):
            call()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operation", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge])
def test_comparisons_with_a_number_that_does_not_fit_are_exact(name: str, operation: Binary) -> None:
    a = numbers(name, 1)
    largest = int(np.iinfo(name).max)
    for number in (-1, -(2**63), largest + 1 if largest < 2**64 - 1 else -300, min(2 * largest, 2**64 - 1)):
        check(operation(tenure.tensor(a), number), operation(a, number))
        check(operation(number, tenure.tensor(a)), operation(number, a))


def test_comparisons_of_uint8_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    numbers = [0, 1, 44, 255]
    for operation in (operator.eq, operator.gt, operator.le):
        for number in (-1, 300, 255):
            found = operation(tenure.tensor(numbers, dtype=tenure.uint8), number)
            assert found.tolist() == operation(torch.tensor(numbers, dtype=torch.uint8), number).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_limits_that_do_not_fit_are_refused(name: str) -> None:
    a = tenure.tensor(numbers(name, 1))
    beyond = 2 * int(np.iinfo(name).max) if name != "uint64" else -7
    programs: list[Callable[[int], object]] = [
        lambda number: tenure.maximum(a, number),
        lambda number: tenure.minimum(a, number),
        lambda number: a.clamp(number, 50),
        lambda number: a.clamp(min=number),
        lambda number: a.clamp_(max=number),
        lambda number: a.clamp_(number, 50),
    ]
    for program in programs:
        for number in (-1, beyond):
            with pytest.raises(tenure.Error, match=f"{number} does not fit {name}, which holds 0 to"):
                program(number)
    check(tenure.maximum(a, 300), np.maximum(numbers(name, 1), np.array(300, dtype=name)))


def test_the_larger_of_an_integer_and_a_number_is_refused_if_the_number_does_not_fit() -> None:
    for dtype, number in ((tenure.uint8, 300), (tenure.uint8, -1), (tenure.int8, 128), (tenure.int32, 2**40)):
        with pytest.raises(tenure.Error, match="does not fit"):
            tenure.maximum(tenure.tensor([1, 2], dtype=dtype), number)
