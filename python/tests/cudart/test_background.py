"""A program that yields its device to a server, on the simulated CUDA."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure.torch

TRAINING = """
import os, sys
import tenure.torch
tenure.torch.install(background=sys.argv[1])
import torch
print("ready", flush=True)
for line in sys.stdin:
    blocks = [torch.empty(1 << 10, device="cuda") for _ in range(int(line))]
    print(os.path.exists(sys.argv[2]), flush=True)
"""


class Server:
    """One end of the socket to which programs yield their device."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "background.sock"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.fspath(self.path))
        self.listener.listen()

    def accept(self) -> socket.socket:
        return self.listener.accept()[0]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.listener.close()


def started(*args: str | os.PathLike[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TRAINING, *map(os.fspath, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def step(program: subprocess.Popen[str], allocations: int) -> None:
    """Has the program allocate, and does not wait for it."""
    assert program.stdin is not None
    program.stdin.write(f"{allocations}\n")
    program.stdin.flush()


def line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


def test_a_program_stops_where_it_allocates_until_it_may_run(server: Server, tmp_path: Path) -> None:
    may_run = tmp_path / "may run"
    with started(server.path, may_run) as program:
        connection = server.accept()
        answers = connection.makefile()
        assert line(program) == "ready"
        step(program, 1000)
        assert line(program) == "False"
        for _ in range(3):
            connection.sendall(b"yield\n")
            assert answers.readline() == "yielded\n"
            step(program, 100)
            may_run.touch()
            connection.sendall(b"run\n")
            assert line(program) == "True"
            may_run.unlink()
        connection.sendall(b"yield\n")
        assert answers.readline() == "yielded\n"
        step(program, 100)
        may_run.touch()
        connection.shutdown(socket.SHUT_RDWR)  # the program goes on without a server
        assert line(program) == "True"
        program.communicate()
        assert program.returncode == 0


def test_it_says_that_there_is_no_server(tmp_path: Path) -> None:
    with started(tmp_path / "nowhere", tmp_path) as program:
        _, said = program.communicate()
    assert "InstallError: no server to yield to: " in said and "tenure serve --background" in said


def test_it_is_for_gpus() -> None:
    with pytest.raises(tenure.torch.InstallError, match="tenure background SOCKET"):
        tenure.torch.install(device="cpu", background="/nowhere", mapping="m", tiers={})  # type: ignore[call-overload]
