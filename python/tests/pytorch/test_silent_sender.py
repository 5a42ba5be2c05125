"""A process that has sent a tensor, and does not answer when a receiver opens it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

if os.environ.get("TENURE_TEST_ALLOCATOR", "tenure") != "tenure":
    pytest.skip("Tenure's alone", allow_module_level=True)

import torch

SENDER = """
import pickle, sys
import tenure.torch

tenure.torch.install()
import torch

sent = torch.empty(1 << 20, device="cuda")
print(pickle.dumps(sent.untyped_storage()._share_cuda_()).hex(), flush=True)
sys.stdin.readline()
"""


class Opening(threading.Thread):
    """A thread that opens a tensor whose sender is stopped."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", SENDER]
        self.sender = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.sender.stdout is not None
        self.handle = pickle.loads(bytes.fromhex(self.sender.stdout.readline()))
        self.sender.send_signal(signal.SIGSTOP)
        # Sending the signal does not ensure that the sender has stopped.
        os.waitid(os.P_PID, self.sender.pid, os.WSTOPPED)
        self.result: object = None
        super().__init__()

    def run(self) -> None:
        try:
            self.result = torch.UntypedStorage._new_shared_cuda(*self.handle).nbytes()
        except RuntimeError as error:
            self.result = str(error)


def sockets() -> set[str]:
    """Returns the sockets that this process has open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(os.readlink(descriptor))
    return {name for name in found if name.startswith("socket:")}


@pytest.fixture
def opening() -> Iterator[Opening]:
    # Starts CUDA, so that the sockets below are not its own.
    torch.empty(1, device="cuda")
    opening = Opening()
    before = sockets()
    opening.start()
    while sockets() <= before:
        assert opening.is_alive(), "other Python threads had to wait too"
        time.sleep(0.01)  # noqa: TID251 (polls)
    # This thread has a connection to the sender, which does not answer.
    assert opening.result is None
    yield opening
    opening.sender.kill()
    opening.sender.wait()
    opening.join()


def test_other_threads_run_until_it_answers(opening: Opening) -> None:
    opening.sender.send_signal(signal.SIGCONT)
    opening.join(300)
    assert opening.result == 4 << 20


def test_other_threads_run_until_it_dies(opening: Opening) -> None:
    opening.sender.kill()
    opening.join(300)
    assert f"process {opening.sender.pid}, which shares the block, is gone" in str(opening.result)
