"""A server of its own for a test: what `cargo build` made of `tenure serve`."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Where `cargo build` and `cargo test` leave it.
TARGET = os.environ.get("CARGO_TARGET_DIR", Path(__file__).resolve().parents[3] / "target")
PROGRAM = Path(TARGET, "debug", "tenure")

needs_program = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built: cargo build")


@contextmanager
def serving(models: Path, *args: str, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """The address of a server, such as `127.0.0.1:8000`, which ends well when it is told to."""
    with serving_both(models, *args, listen=listen) as (_, address):
        yield address


@contextmanager
def serving_both(models: Path, *args: str, listen: str = "127.0.0.1:0") -> Iterator[tuple[str, str]]:
    """The addresses of a server for gRPC, which is empty if it has none, and for HTTP."""
    command = [str(PROGRAM), "serve", str(models), "--listen", listen, *args]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        said, http = server.stdout.readline().strip().rsplit("http://", 1)
        _, _, grpc = said.partition("grpc://")
        yield grpc.removesuffix(" and "), http
        server.send_signal(signal.SIGTERM)
        assert server.wait(300) == 0
    finally:
        server.kill()
        server.wait()
