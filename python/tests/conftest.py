"""What the tests share. They run from any folder, on the package that `import tenure` finds.

A test marked `simulated_cuda` runs stock PyTorch on the simulated CUDA of `tests/cudart`, in a process of its own, with
the variables that the mark names: `@pytest.mark.simulated_cuda(TENURE_CUDART_DEVICES="2")`. It is skipped where there
is no PyTorch built for CUDA.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Where tests/data is: the project, or what `just gpu` made of it.
ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "tests/data").is_dir())


@pytest.fixture(autouse=True)
def in_the_projects_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in tests and examples begin there."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def sample() -> Path:
    """A recorded training step of ResNet-50."""
    return ROOT / "tests/data/resnet50_step.pickle.xz"


# Tells a process that it runs one marked test.
INSIDE = "TENURE_TESTS_SIMULATED"

_MARK = "simulated_cuda(**variables): runs on the simulated CUDA, in a process with these environment variables"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)


@pytest.fixture(scope="session")
def simulated_cuda(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a program that finds the simulated CUDA."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None or not (Path(torch.origin).parent / "lib/libtorch_cuda.so").is_file():
        pytest.skip("there is no PyTorch that is built for CUDA")
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("there is no C++ compiler to build the simulated CUDA with")
    folder = tmp_path_factory.mktemp("cudart")
    subprocess.run([ROOT / "tests/cudart/build", folder, sys.executable], check=True)
    return {"LD_PRELOAD": f"{folder}/libcudart.so.13", "LD_LIBRARY_PATH": str(folder)}


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and item.get_closest_marker("simulated_cuda") and INSIDE not in os.environ:
        item.fixturenames.append("simulated_cuda")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    mark = pyfuncitem.get_closest_marker("simulated_cuda")
    if mark is None or INSIDE in os.environ:
        return None
    simulated: dict[str, str] = pyfuncitem.funcargs["simulated_cuda"]  # type: ignore[assignment]
    environment: dict[str, str] = {**os.environ, **simulated, **mark.kwargs, INSIDE: "1"}
    node = f"{pyfuncitem.path}::{pyfuncitem.nodeid.split('::', 1)[1]}"
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-rs", node]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        pytest.fail(run.stdout + run.stderr, pytrace=False)
    if "SKIPPED" in run.stdout:
        pytest.skip(run.stdout)
    return True
