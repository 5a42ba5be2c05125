"""The mistakes that `tenure.torch.budget` refuses, and the forms in which amounts can be given to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tenure  # noqa: E402
import tenure.torch  # noqa: E402
from tenure import _native  # noqa: E402
from tenure.torch.budgets.recipes import operations  # noqa: E402

from torch import nn  # noqa: E402  isort: skip

MIB = 1 << 20


def linear() -> Any:
    return nn.Linear(512, 512)


def budgeted(model: Any, folder: Path) -> Any:
    return tenure.torch.budget(model, 48 * MIB, spill=folder, spill_bytes=512 * MIB)


@pytest.mark.parametrize(
    ("memory", "options", "words"),
    [
        (0, {}, "expected a number of bytes above 0"),
        (True, {}, "expected a number of bytes"),
        ("half", {}, 'memory="half": expected a whole number of bytes, .* such as 12GiB or 60%'),
        ("12 gigs", {}, "such as 12GiB or 60%"),
        ("0%", {}, "memory='0%': expected more than none"),
        ("0MiB", {}, "expected more than none"),
        ("101%", {}, "such as 12GiB or 60%"),
        ("99999999TiB", {}, "more than 2.64 bytes"),
        (MIB, {"spill": "/does/not/exist"}, "/does/not/exist"),
        (MIB, {"spill_bytes": 1 << 60}, "free"),
        (MIB, {"spill_bytes": -1}, "spill_bytes=-1: expected a number of bytes above 0"),
        (MIB, {"host_bytes": 0.5}, "host_bytes=0.5: expected a number of bytes above 0"),
        (MIB, {"host_bytes": "50%"}, "host_bytes='50%': a share has no meaning here"),
        (MIB, {"planner": "best"}, "expected 'scheduled'"),
        (MIB, {"codec": "zip"}, 'no codec "zip": none, zeros and planes lose nothing'),
    ],
)
def test_mistakes_are_told(memory: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(tenure.Error, match=words) as told:
        tenure.torch.budget(linear(), memory, **options)
    assert len(str(told.value).splitlines()) == 1


def test_amounts_may_be_text_with_units(tmp_path: Path) -> None:
    with tenure.torch.budget(linear(), "3 GiB", spill=tmp_path, spill_bytes="64MiB", host_bytes="1GB") as budget:
        assert budget.bytes == 3 << 30


def test_mistakes_with_models_and_blocks_are_told(tmp_path: Path) -> None:
    with pytest.raises(tenure.Error, match="a budget is of a torch.nn.Module, not of list"):
        tenure.torch.budget([linear()], MIB)
    with pytest.raises(tenure.Error, match="nowhere, as it has no parameters"):
        tenure.torch.budget(nn.ReLU(), MIB)
    with pytest.raises(tenure.Error, match="the model is on meta"):
        tenure.torch.budget(nn.Linear(1, 1, device="meta"), MIB)
    with pytest.raises(tenure.Error, match="the model is on cpu, meta"):
        tenure.torch.budget(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, device="meta")), MIB)
    model = linear()
    with budgeted(model, tmp_path) as budget, pytest.raises(tenure.Error, match="cpu has a budget already"):
        budgeted(model, tmp_path)
    with pytest.raises(tenure.Error, match="this budget is over"), budget:
        pass


def test_a_native_budget_refuses_what_it_cannot_manage() -> None:
    with pytest.raises(tenure.Error, match="does not manage the memory of cuda:63"):
        _native.Budget(63, ([], None, None), None, "scheduled", operations())
