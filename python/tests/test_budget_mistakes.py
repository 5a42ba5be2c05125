"""The mistakes that `tenure.torch.budget` refuses, and the forms in which amounts can be given to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import tenure  # noqa: E402
import tenure.torch  # noqa: E402
from tenure import _native  # noqa: E402
from tenure._budget_steps import Limits  # noqa: E402
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
        ("1001%", {}, "a share from 0% to 1000%, such as 12GiB or 60%"),
        ("99999999TiB", {}, "more than 2.64 bytes"),
        (MIB, {"spill": "/does/not/exist"}, "/does/not/exist"),
        (MIB, {"spill_bytes": 1 << 60}, "free"),
        (MIB, {"spill_bytes": -1}, "spill_bytes=-1: expected a number of bytes above 0"),
        (MIB, {"host_bytes": 0.5}, "host_bytes=0.5: expected a number of bytes above 0"),
        (MIB, {"host_bytes": "50%"}, "host_bytes='50%': a share has no meaning here"),
        (MIB, {"host_bytes": 1}, "host_bytes=1: it has no meaning for a budget of the CPU's memory"),
        (MIB, {"spill_bytes": 1}, "1 bytes"),
        (MIB, {"spill_daily_bytes": 1}, "1 bytes may be written in a day, and measuring the disk takes more"),
        (MIB, {"planner": "best"}, "expected 'scheduled'"),
        (MIB, {"codec": "zip"}, 'no codec "zip": none, zeros and planes lose nothing'),
    ],
)
def test_mistakes_are_told(memory: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(tenure.Error, match=words) as told:
        tenure.torch.budget(linear(), memory, **options)
    assert len(str(told.value).splitlines()) == 1


def test_amounts_may_be_text_with_units(tmp_path: Path) -> None:
    with tenure.torch.budget(linear(), "3 GiB", spill=tmp_path, spill_bytes="64MiB", spill_daily_bytes="1TB") as budget:
        assert budget.bytes == 3 << 30


@pytest.mark.parametrize("options", [{"spill_bytes": "1GiB"}, {"spill_daily_bytes": "1TiB"}, {"codec": "fp16"}])
def test_options_of_disks_without_a_disk_are_refused(options: dict[str, Any]) -> None:
    of_gpu = mock.Mock(type="cuda", index=0)
    limits = Limits.of(
        MIB, None, options.get("spill_bytes"), options.get("spill_daily_bytes"), options.get("host_bytes")
    )
    with pytest.raises(tenure.Error, match="it is about disks, and this budget has none: give a folder"):
        limits.open(of_gpu, options.get("codec", "auto"), pytest.fail)


@pytest.mark.parametrize("memory", [1, 4096, MIB])
def test_a_budget_below_what_is_held_says_how_to_find_one(memory: int, tmp_path: Path) -> None:
    model = linear()
    with pytest.raises(
        tenure.Error, match=f"a budget of {memory} bytes is too small.*None is known to work yet"
    ) as told:
        with tenure.torch.budget(model, memory, spill=tmp_path, spill_bytes=64 * MIB):
            model(torch.ones(2048, 512)).square().mean().backward()
    assert isinstance(told.value.__cause__, torch.OutOfMemoryError) and "100%" in str(told.value)


def test_an_error_after_an_allocation_outside_of_a_step_that_found_no_room_is_the_program_s(tmp_path: Path) -> None:
    with pytest.raises(KeyError), tenure.torch.budget(linear(), 8 * MIB, spill=tmp_path, spill_bytes=64 * MIB):
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(64 * MIB)
        raise KeyError


def test_a_budget_that_lacks_room_to_spill_to_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.Dropout(0.5))))
    with pytest.raises(tenure.Error, match="room to spill [0-9]+ bytes more to"):
        with tenure.torch.budget(model, "10%", spill=tmp_path, spill_bytes=8 * MIB) as budget:
            for _ in range(4):
                model(torch.ones(8192, 512)).square().mean().backward()
                model.zero_grad()
                budget.report()


def test_a_model_that_is_compiled_as_a_whole_is_told_to_compile_layers(tmp_path: Path) -> None:
    model = torch.compile(nn.Sequential(linear(), nn.Tanh(), linear(), nn.Tanh()), backend="aot_eager")
    with pytest.raises(tenure.Error, match="compiled as a whole, .*: compile its layers"):
        with tenure.torch.budget(model, 16 * MIB, spill=tmp_path, spill_bytes=64 * MIB):
            model(torch.ones(8192, 512)).square().mean().backward()


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
