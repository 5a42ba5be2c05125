"""The description at /openapi.json holds for requests that schemathesis makes of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .serving import PROGRAM, needs_program, serving

pytest.importorskip("schemathesis")
pytestmark = needs_program

# The page's events have no end.
ENDLESS = "/events"


def test_answers_are_as_described(tmp_path: Path) -> None:
    models = tmp_path / "models"
    subprocess.run([str(PROGRAM), "models", "init", str(models)], check=True, capture_output=True)
    with serving(models) as address:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://{address}/openapi.json"]
        options = ["--exclude-path", ENDLESS, "--max-examples", "20", "--seed", "1"]
        # The description does not know the models: they refuse most tensors, and may be unavailable.
        checks = ["--exclude-checks", "not_a_server_error,positive_data_acceptance"]
        done = subprocess.run([*command, *options, *checks], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
