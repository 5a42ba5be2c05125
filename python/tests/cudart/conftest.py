"""Runs each test here in a process of its own: a fork of this one, which has imported PyTorch and not started CUDA.

The tests run where `just test-torch` starts them, on the simulated CUDA of `tests/cudart`, and are skipped elsewhere.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gives each test a cache of its own, so that it does not find what another learned."""
    monkeypatch.setenv("TENURE_CACHE", str(tmp_path / "cache"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "libcudart" not in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("not started on the simulated CUDA (`just test-torch`)")
    item.add_marker("own_process")
