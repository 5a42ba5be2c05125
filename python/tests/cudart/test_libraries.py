"""Programs of libraries (`examples/pytorch`) on Tenure's allocator and a simulated device.

Kernels compute nothing there, but allocations, copies and frees are those of a real GPU.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/pytorch"

if not EXAMPLES.is_dir():
    pytest.skip("the examples are not here", allow_module_level=True)

MIB = 1 << 20


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_all", EXAMPLES / "run_all.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


examples = load()

#: The programs for one device, without `compiled`, whose compiler needs a real device.
SINGLE = [program for program in examples.PROGRAMS if program not in ("compiled", "distributed")]


@pytest.mark.parametrize("program", SINGLE)
def test_a_library_s_program_holds_little_more_than_it_asks_for_and_keeps_nothing(program: str, tmp_path: Path) -> None:
    if libraries := examples.missing(program):
        pytest.skip(f"{libraries[0]} is not installed")
    said, figures = examples.run(program, "--small", "--simulated", folder=tmp_path)
    assert "allocator: paged" in said and "does not work" not in said, said
    assert figures["requested"] > 0 and figures["retries"] == 0
    assert figures["reserved"] <= max(1.01 * figures["requested"], figures["requested"] + 64 * MIB)
    assert figures["left"] <= MIB


def test_ddp_and_fsdp_train_in_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_CUDART_DEVICES", "2")
    said, _ = examples.run("distributed", "--small", "--backend", "gloo", folder=tmp_path)
    assert said.count("DDP: loss") == said.count("FSDP2: loss") == said.count("allocator: paged") == 2, said


def test_every_program_of_the_folder_is_listed() -> None:
    files = {path.stem for path in EXAMPLES.glob("*.py")} - {"run_all"}
    assert files == set(examples.PROGRAMS)
