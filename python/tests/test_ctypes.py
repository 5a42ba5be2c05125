"""The C interface from a Python process that has no package of Tenure's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tenure import _native

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/extensions/matmul_ctypes.py"

#: The libraries that offer the interface: the package's own, and those for C programs that were built.
LIBRARIES = [Path(_native.__file__), *sorted(ROOT.glob("target/*/libtenure_capi.so"))]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: str(library.name))
def test_a_program_computes_by_ctypes_without_the_package(library: Path) -> None:
    # Without site-packages and PYTHONPATH, so that there is no package to import.
    command = [sys.executable, "-I", "-S", str(EXAMPLE), str(library)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    product, failure = result.stdout.splitlines()
    assert product == "x @ x + 0.5 = [7.5, 10.5, 15.5, 22.5]"
    assert failure.startswith("matmul: ") and "[2, 2]" in failure and "[3]" in failure
