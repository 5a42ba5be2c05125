"""Fixtures that all tests share. The tests run from any folder, on the package that `import tenure` finds."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Restores Ctrl-C, which a script's background jobs ignore: tests of interruptions would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The folder that has tests/data: the project's, or the one that `just gpu` copied it to.
ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "tests/data").is_dir())


@pytest.fixture(autouse=True)
def in_the_projects_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begins the paths in tests and examples at the project's folder."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def sample() -> Path:
    """Returns the path of a recorded training step of ResNet-50."""
    return ROOT / "tests/data/resnet50_step.pickle.xz"


@pytest.fixture
def no_forced_thread_switches() -> Iterator[None]:
    """Makes Python's lock change hands only where the thread that holds it gives it up."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Runs PyTorch on one CPU thread, so that two runs add the same numbers in the same order."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def deterministic(one_thread: None) -> Iterator[None]:
    """Makes two runs of PyTorch compute the same bits."""
    torch = pytest.importorskip("torch")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
