"""Fixtures that the tests of `tenure serve` share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .serving import PROGRAM


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Writes the example models, and returns their folder."""
    subprocess.run([PROGRAM, "models", "init", tmp_path / "models"], check=True, capture_output=True)
    return tmp_path / "models"
