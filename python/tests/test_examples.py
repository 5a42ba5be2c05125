"""The errors of examples where something is missing or does not hold: one line, even if Python ignores assertions.

PyTorch and Tenure are made up: only what they say about themselves matters.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

TORCH = """
import os, sys
from collections import defaultdict
from types import SimpleNamespace
from unittest.mock import MagicMock

class OutOfMemoryError(RuntimeError): ...

class Gpt2:
    nbytes = 2 << 30
    to = argmax = sum = clone = __getitem__ = lambda self, *arguments: self
    item = lambda self: 1.0
    __call__ = lambda self, prompts: (self, self)

sys.modules["models.gpt2"] = SimpleNamespace(Gpt2=Gpt2, VOCABULARY=1)
expandable = "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
cuda = MagicMock()
cuda.get_allocator_backend = lambda: "tenure" if "tenure" in sys.modules else "native"
cuda.memory_snapshot = lambda: [{"is_expandable": expandable}]
cuda.memory_stats = lambda: defaultdict(lambda: 6 << 30)
cuda.get_device_properties = lambda device: SimpleNamespace(total_memory=8 << 30)
__getattr__ = lambda name: MagicMock()
"""

TENURE = """
class Error(Exception): ...
"""

TENURE_TORCH = """
import warnings
from types import SimpleNamespace
from unittest.mock import MagicMock
from tenure import Error

def install():
    {warning}
    return SimpleNamespace(mode={mode!r})

def allocate_shared_cache():
    raise Error("8 GiB,\\n and no more")

__getattr__ = lambda name: MagicMock()
"""

TORCHVISION = """
from types import SimpleNamespace
models = SimpleNamespace(list_models=lambda module: ["resnet50"], get_model=print)
"""

MISSING = "raise ImportError(f'No module named {__name__!r}')"


class Machine:
    """A machine with a made-up PyTorch and Tenure. By default, nothing is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.torch()
        self.tenure()
        self.has("torchvision", TORCHVISION)

    def torch(self, but: str = "") -> None:
        self.has("torch", TORCH + but)

    def tenure(self, mode: str = "prebuilt shim", warning: str = "pass") -> None:
        self.has("tenure/__init__", TENURE)
        self.has("tenure/torch", TENURE_TORCH.format(mode=mode, warning=warning))

    def has(self, module: str, source: str) -> None:
        file = self.folder / f"{module}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)

    def run(self, example: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-O", str(EXAMPLES / example), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)

    def fails(self, example: str, *arguments: str) -> str:
        """Runs an example that fails, and returns the one line of its error."""
        result = self.run(example, *arguments)
        assert (result.returncode, result.stdout) == (1, "")
        lines = result.stderr.splitlines()
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith(f"{example}: ")
        return lines[0]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


both = pytest.mark.parametrize("example", ["prefix_cache.py", "shared_weights.py"])
all_of_them = pytest.mark.parametrize("example", ["prefix_cache.py", "shared_weights.py", "switch.py"])


@both
def test_help_needs_nothing(machine: Machine, example: str) -> None:
    for module in ("torch", "tenure/__init__", "torchvision"):
        machine.has(module, MISSING)
    result = machine.run(example, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "--json" in result.stdout


@all_of_them
@pytest.mark.parametrize(("module", "name"), [("torch", "torch"), ("tenure/__init__", "tenure")])
def test_a_missing_package_is_named(machine: Machine, example: str, module: str, name: str) -> None:
    machine.has(module, MISSING)
    said = machine.fails(example)
    assert f"No module named '{name}'" in said
    assert "install it" in said


def test_shared_weights_names_a_model_that_needs_no_torchvision(machine: Machine) -> None:
    machine.has("torchvision", MISSING)
    assert "pip install torchvision), or choose --model small" in machine.fails("shared_weights.py")


def test_a_model_that_is_none_is_told(machine: Machine) -> None:
    assert "--model nonsense: no model" in machine.fails("shared_weights.py", "--model", "nonsense")


@all_of_them
def test_no_gpu_is_told(machine: Machine, example: str) -> None:
    machine.torch("cuda.is_available = lambda: False")
    assert "PyTorch finds no GPU" in machine.fails(example)


@both
def test_why_tenure_stands_aside_is_told(machine: Machine, example: str) -> None:
    machine.tenure(mode="not installed", warning="warnings.warn('another is asked for')")
    assert "another is asked for" in machine.fails(example)


@both
def test_why_tenure_refuses_is_told(machine: Machine, example: str) -> None:
    machine.tenure(warning="raise Error('too late')")
    assert "too late" in machine.fails(example)


def test_switch_names_the_library_of_its_models(machine: Machine) -> None:
    machine.has("transformers", MISSING)
    said = machine.fails("switch.py")
    assert "No module named 'transformers'" in said and "install it" in said


def test_weights_that_a_device_has_no_room_for_are_told(machine: Machine) -> None:
    assert "8 GiB, and no more" in machine.fails("shared_weights.py")


def test_the_rows_are_those_of_the_allocators_that_served(machine: Machine) -> None:
    result = machine.run("prefix_cache.py")
    assert (result.returncode, result.stderr) == (0, "")
    rows = [line.split()[:2] for line in result.stdout.splitlines()[2:]]
    assert rows == [[allocator, "completed"] for allocator in ("native", "expandable", "tenure")]


def test_an_example_finds_its_models_where_python_does_not_look_beside_a_program(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    machine.torch("del sys.modules['models.gpt2']")
    assert "No module named 'models'" not in machine.run("prefix_cache.py").stderr


@pytest.mark.parametrize(
    ("but", "served", "row"),
    [
        ("cuda.get_allocator_backend = lambda: 'native'", "native", "tenure"),
        ("cuda.get_allocator_backend = lambda: 'pluggable'", "pluggable", "tenure"),
        ("cuda.get_allocator_backend = lambda: 'tenure'", "tenure", "native"),
        ("expandable = False", "native", "expandable"),
    ],
)
def test_no_row_is_another_allocator_s(machine: Machine, but: str, served: str, row: str) -> None:
    machine.torch(but)
    assert f"the allocator {served}, where {row} was to be measured" in machine.fails("prefix_cache.py")


def test_a_device_that_is_too_small_even_without_a_limit_is_told(machine: Machine) -> None:
    machine.torch("def manual_seed(seed): raise OutOfMemoryError('tried to allocate')")
    assert "too small, even without a limit: tried to allocate" in machine.fails("prefix_cache.py")


def test_a_process_that_is_killed_is_told(machine: Machine) -> None:
    machine.torch("def manual_seed(seed): os.kill(os.getpid(), 9)")
    assert "allocator tenure was killed, by signal 9" in machine.fails("prefix_cache.py")
    machine.has("tenure/torch", "import os; os.kill(os.getpid(), 9)")
    assert "the owner ended before it could share" in machine.fails("shared_weights.py")


def test_headroom_is_what_the_device_has(machine: Machine) -> None:
    assert "the device has 8192 MiB, and 9216 MiB are 50% more" in machine.fails("prefix_cache.py", "--headroom", "0.5")
    for headroom in ("-1", "nan", "inf", "much"):
        result = machine.run("prefix_cache.py", "--headroom", headroom)
        assert result.returncode == 2
        assert "argument --headroom" in result.stderr
