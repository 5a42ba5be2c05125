"""The benchmark under stock PyTorch: its arguments, and its reports of losses. No benchmark runs here."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bench/pytorch/workloads.py"

if not SCRIPT.is_file():
    pytest.skip("the benchmark is not here", allow_module_level=True)


@pytest.fixture(scope="module")
def script() -> Any:
    spec = spec_from_file_location("workloads", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--repeats", "1"], "--repeats 1: expected 2 or more"),
        (["--rounds", "0"], "--rounds 0: expected 1 or more"),
        (["--json", "missing/a.json"], "--json missing/a.json: there is no such folder"),
        (["--program", "nonsense"], "invalid choice: 'nonsense'"),
    ],
)
def test_a_wrong_argument_is_told_before_anything_runs(tmp_path: Path, arguments: list[str], text: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and text in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_process_that_takes_too_long_is_one_line(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def runs_on(command: list[str], timeout: int, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(script.subprocess, "run", runs_on)
    with pytest.raises(SystemExit, match="gpt2_varlen on native took more than 7 s: allow it more with --seconds"):
        script.child("gpt2_varlen", "native", 2, False, script.argparse.Namespace(seconds=7))


def test_a_spread_takes_five_native_runs(script: Any) -> None:
    native = [[9.0, last] for last in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert script.spread(native, [[9.0, 2.0], [9.0, 4.0]])["within"] is True
    assert script.spread(native, [[9.0, 6.0]])["within"] is False
    assert script.spread(native[:4], [[9.0, 6.0]])["within"] is None
