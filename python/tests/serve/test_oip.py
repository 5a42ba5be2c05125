"""The conformance suite of the Open Inference Protocol in tests/oip, run against `tenure serve` and its own example."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .serving import needs_program, serving_both

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "tests" / "oip" / "example.py"
HAS_GRPC = importlib.util.find_spec("grpc") is not None
FAULTS = runpy.run_path(str(EXAMPLE))["FAULTS"]
if HAS_GRPC:
    sys.path.insert(0, str(EXAMPLE.parent))
    FAULTS |= runpy.run_path(str(EXAMPLE.with_name("example_grpc.py")))["FAULTS"]
    sys.path.remove(str(EXAMPLE.parent))


@contextmanager
def example(*faults: str) -> Iterator[list[str]]:
    """Runs the suite's own server; yields its addresses: HTTP, and gRPC if grpcio is installed."""
    server = subprocess.Popen([sys.executable, str(EXAMPLE), *faults], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield [server.stdout.readline().strip().partition("://")[2] for _ in range(2 if HAS_GRPC else 1)]
    finally:
        server.kill()
        server.wait()


def checked(report: Path, address: str, grpc: str | None = None) -> list[dict[str, Any]]:
    """Runs the suite against a server, and returns its checks."""
    command = [sys.executable, "-m", "pytest", "tests/oip", "--url", f"http://{address}", "--json", str(report), "-q"]
    command += ["--grpc", grpc] if grpc and HAS_GRPC else []
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert report.exists(), ran.stdout + ran.stderr
    checks: list[dict[str, Any]] = json.loads(report.read_text())["checks"]
    return checks


def failures(checks: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the checks that make a run of the suite fail, each with the reason."""
    return {check["id"]: check["why"] for check in checks if check["outcome"] == "fail" and check["part"] != "beyond"}


@needs_program
def test_everything_that_the_protocol_requires_and_the_server_lists_is_there(models: Path, tmp_path: Path) -> None:
    with serving_both(models, "--grpc-port", "0") as (grpc, address):
        checks = checked(tmp_path / "report.json", address, grpc)
    assert len(checks) > 100
    failed = failures(checks)
    assert not failed, failed
    passed = {check["id"] for check in checks if check["outcome"] == "pass"}
    assert {"infer.json", "binary.equal", "repository.load", "error.next", "connection.pipelined"} <= passed


def test_the_example_passes(tmp_path: Path) -> None:
    with example() as addresses:
        checks = checked(tmp_path / "report.json", *addresses)
    assert {check["outcome"] for check in checks} == {"pass", "not offered"}
    not_offered = {check["part"] for check in checks if check["outcome"] == "not offered"}
    assert not_offered == {"extension:parameters"} | (set() if HAS_GRPC else {"grpc"})


@pytest.mark.parametrize("fault", FAULTS.items(), ids=lambda fault: fault[0])
def test_a_fault_is_found(fault: tuple[str, str], tmp_path: Path) -> None:
    name, check = fault
    with example(name) as addresses:
        assert check in failures(checked(tmp_path / "report.json", *addresses))
