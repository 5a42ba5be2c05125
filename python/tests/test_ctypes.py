"""The C interface from a Python process that has no package of Tenure's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tenure import _native

EXAMPLE = Path(__file__).parents[2] / "examples/extensions/matmul_ctypes.py"


def test_a_program_computes_by_ctypes_without_the_package() -> None:
    # Without site-packages and PYTHONPATH, so that there is no package to import. The package's library has the
    # interface of `libtenure_capi.so`.
    command = [sys.executable, "-I", "-S", str(EXAMPLE), _native.__file__]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    product, failure = result.stdout.splitlines()
    assert product == "x @ x + 0.5 = [7.5, 10.5, 15.5, 22.5]"
    assert failure.startswith("matmul: ") and "[2, 2]" in failure and "[3]" in failure
