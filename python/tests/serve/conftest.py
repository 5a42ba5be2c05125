"""What the tests of `tenure serve` share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from serving import PROGRAM


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The folder of the example models."""
    subprocess.run([PROGRAM, "models", "init", tmp_path / "models"], check=True, capture_output=True)
    return tmp_path / "models"
