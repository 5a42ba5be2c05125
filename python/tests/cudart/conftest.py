"""Runs each test here in a process of its own: a fork of this one, which has imported PyTorch and not started CUDA.

The tests run where `just test-torch` starts them, on the simulated CUDA of `tests/cudart`, and are skipped elsewhere.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from pathlib import Path

import pytest

#: The exit status of a process whose test skips itself.
SKIPPED = 77

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gives each test a cache of its own, so that it does not find what another learned."""
    monkeypatch.setenv("TENURE_CACHE", str(tmp_path / "cache"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "libcudart" not in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("not started on the simulated CUDA (`just test-torch`)")


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run(pyfuncitem, arguments, writer)
    os.close(writer)
    with open(reader) as said:
        report = said.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == SKIPPED:
        pytest.skip(report)
    if status != 0:
        pytest.fail(report or f"the test's process ended with status {status}", pytrace=False)
    return True


def _run(test: pytest.Function, arguments: dict[str, object], report: int) -> None:
    """Runs a test, and ends the process."""
    status = 0
    try:
        test.obj(**arguments)
    except pytest.skip.Exception as skipped:
        status = SKIPPED
        os.write(report, str(skipped).encode())
    except BaseException:
        status = 1
        os.write(report, traceback.format_exc().encode())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Ends here: the exit of CUDA and PyTorch is not tested, and pytest must not end twice.
        os._exit(status)
