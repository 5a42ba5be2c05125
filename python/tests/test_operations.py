"""The declarations of the table's operations for type checkers."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path

import pytest

import tenure

ROOT = Path(__file__).parents[2]

PROGRAM = """
from typing import assert_type

import tenure

x = tenure.zeros(2, 3, requires_grad=True)
assert_type(x.max(), tenure.Tensor)
assert_type(tenure.max(x, 1).indices, tenure.Tensor)
assert_type(x.view(3, 2).relu_(), tenure.Tensor)
assert_type(x.split(1), tuple[tenure.Tensor, ...])
assert_type(tenure.var_mean(x, dim=(0, 1)), tuple[tenure.Tensor, tenure.Tensor])
assert_type(tenure.equal(x, x), bool)
assert_type(x.sum(0, dtype=tenure.float64) @ x.T, tenure.Tensor)
assert_type(x.shape, tuple[int, ...])
x.permute(dims="01")
"""


def test_the_declarations_of_operations_are_those_of_the_table() -> None:
    generator = runpy.run_path(str(ROOT / "scripts/operation-stubs"))
    assert generator["PATH"].read_text() == generator["text"](), "run `just operations`"


def test_every_operation_is_a_function_of_the_package() -> None:
    from tenure._native import operation_table

    for name, *_ in operation_table():
        assert callable(getattr(tenure._operations, name)), name
        # `tenure.linalg` has the others.
        assert name in tenure.__all__ or name.removeprefix("linalg_") in tenure.linalg.__all__, name
    # A module of the package has the name of one operation. It can be called.
    assert inspect.ismodule(tenure.trace)


def test_the_module_trace_sums_a_diagonal() -> None:
    from tenure.trace import Trace

    x = tenure.arange(6).reshape(2, 3)
    assert tenure.trace(x).item() == x.trace().item() == 4  # type: ignore[operator]
    assert tenure.trace.Trace is Trace
    torch = pytest.importorskip("torch")
    assert torch.trace(torch.arange(6).reshape(2, 3)).item() == 4


def test_each_row_of_the_table_has_a_name_of_its_own() -> None:
    from tenure._native import operation_table

    names = [row[6] for row in operation_table()]
    assert len(set(names)) == len(names) > len({row[0] for row in operation_table()})
    assert tenure.eye(3, 3).trace().item() == 3


def test_type_checkers_know_the_results_of_operations(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    text, _, _ = api.run(["--strict", "--config-file=", "--cache-dir", str(tmp_path / "cache"), str(program)])
    errors = [line for line in text.splitlines() if ": error:" in line]
    assert len(errors) == 1 and '"permute"' in errors[0], text
