"""`tenure serve` under load and random faults: answers are right or ask to try again, and no resource leaks.

By default a fixed number of faults happens; with `TENURE_FAULTS_MINUTES`, as many as fit that time.
`TENURE_FAULTS_SEED` chooses other faults, and `TENURE_FAULTS_DEVICE=cuda` computes on a GPU.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .serving import Server, needs_program, tensor, until, with_bias

pytestmark = needs_program

DEVICE = os.environ.get("TENURE_FAULTS_DEVICE", "cpu")
# The bytes of a chunk of GPU memory. Each of the models here takes one.
CHUNK = 16 << 20
FAULTS = 30
MODELS = [f"model-{number}" for number in range(4)]
CLIENTS = 3
# The growth that is allowed between the middle of the run and its end.
MORE_BYTES = 64 << 20
MORE_FILES = 16


class Load:
    """Models whose answers are known, their server, its clients, and counts of outcomes."""

    def __init__(self, models: Path, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.whole = models / "digits" / "model.safetensors"
        self.root, self.statuses, self.lock = root, Counter[str](), threading.Lock()
        # The last answer of each model, and all it ever gave: the server looks at files only now and then.
        self.last: dict[str, list[float]] = {}
        self.known: dict[str, set[tuple[float, ...]]] = {name: set() for name in MODELS}
        for name in MODELS:
            shutil.copytree(models / "digits", root / name)
            self.replace(name)
        # Room for two of the four models.
        room = self.whole.stat().st_size * 5 // 2 if DEVICE == "cpu" else 2 * CHUNK
        self.server = Server(root, "--device", DEVICE, "--device-bytes", str(room))

    def weights(self, name: str) -> bytes:
        """Returns new weights of a model, and notes their answer."""
        bias = np.array([self.random.randrange(1 << 20) for _ in range(10)], np.float32)
        with self.lock:
            self.last[name] = bias.tolist()
            self.known[name].add(tuple(self.last[name]))
        return with_bias(self.whole, bias)

    def replace(self, name: str) -> None:
        """Replaces a model's weights atomically."""
        new = self.root / name / "new"
        new.write_bytes(self.weights(name))
        new.rename(self.root / name / "model.safetensors")

    def overwrite(self, name: str) -> None:
        """Overwrites a model's file in place, first one half and then the rest."""
        weights = self.weights(name)
        with open(self.root / name / "model.safetensors", "wb") as file:
            file.write(weights[: len(weights) // 2])
            file.flush()
            self.progress(1)
            file.write(weights[len(weights) // 2 :])

    def kill(self, _: str) -> None:
        """Kills a worker."""
        if workers := self.server.workers():
            try:
                os.kill(self.random.choice(workers), signal.SIGKILL)
            except ProcessLookupError:
                pass

    def disconnect(self, name: str) -> None:
        """Sends a request, or its beginning, and disconnects before the answer."""
        host, port = self.server.address.split(":")
        body = json.dumps({"inputs": [images(16)]}).encode()
        head = f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port))) as client:
            client.sendall(head.encode() + body[: self.random.choice([10, len(body)])])

    def ask(self, name: str, rows: int) -> str:
        """Asks a model, checks the answer, and returns the status."""
        status, said = self.server.infer(name, images(rows))
        if status == 200:
            with self.lock:
                assert said == said[:10] * rows and tuple(said[:10]) in self.known[name], (name, said)
        else:
            assert status == 503, (status, said)
            if "correct it, and load it" in said:
                # Workers were killed with batches of this model, and with no other's.
                self.server.request("POST", f"/v2/repository/models/{name}/load")
        return str(status)

    def progress(self, answers: int) -> None:
        """Waits until `answers` more requests were answered."""
        end = self.statuses["200"] + answers
        until("answers go on", lambda: self.statuses["200"] >= end or self.is_over.is_set())

    def run(self, goes_on: Callable[[int], bool]) -> None:
        """Runs clients and causes faults while `goes_on` returns true, and then waits until all requests are done."""
        self.is_over = threading.Event()

        def client(seed: int) -> None:
            generator = random.Random(seed)
            try:
                while not self.is_over.is_set():
                    status = self.ask(generator.choice(MODELS), generator.choice([1, 1, 2, 4]))
                    with self.lock:
                        self.statuses[status] += 1
            finally:
                self.is_over.set()

        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(client, self.random.randrange(1 << 30)) for _ in range(CLIENTS)]
            faults = 0
            while goes_on(faults) and not self.is_over.is_set():
                fault = self.random.choice([self.kill, self.replace, self.overwrite, self.disconnect])
                fault(self.random.choice(MODELS))
                self.statuses[fault.__name__] += 1
                self.progress(2)
                faults += 1
            self.is_over.set()
            failed = [error for each in clients if (error := each.exception())]
            # A server that has exited closes connections, whose errors do not tell the reason.
            assert self.server.process.poll() is None, (self.server.process.returncode, failed)
            for each in clients:
                each.result()
        for name in MODELS:
            until(f"{name} answers with its last weights", lambda name=name: self.is_last(name))  # type: ignore[misc]
        # One for each model that has room on the CPU, and one more.
        until("the workers", lambda: len(self.server.workers()) >= (3 if DEVICE == "cpu" else 2))

    def is_last(self, name: str) -> bool:
        try:
            self.ask(name, 1)
            return self.server.infer(name, images(1)) == (200, self.last[name])
        except HTTPException:
            return False

    def held(self) -> tuple[int, int, set[str]]:
        """Returns the bytes in use (a GPU's too), the descriptors of the server and workers, and the shared memory's
        names."""
        processes = [Path(f"/proc/{pid}") for pid in [self.server.process.pid, *self.server.workers()]]
        pages = sum(int((process / "statm").read_text().split()[1]) for process in processes)
        files = sum(len(os.listdir(process / "fd")) for process in processes)
        return pages * os.sysconf("SC_PAGE_SIZE") + device_bytes(), files, set(os.listdir("/dev/shm"))


def device_bytes() -> int:
    """Returns the bytes of the GPU that are in use, or 0 if the server computes on the CPU."""
    if DEVICE == "cpu":
        return 0
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.check_output(query, text=True)) << 20


def images(rows: int) -> dict[str, Any]:
    return tensor("image", "FP32", [rows, 1, 28, 28], [0.5] * (rows * 784))


def half() -> Callable[[int], bool]:
    """Returns a function of the number of faults that tells whether half of the run goes on."""
    minutes = float(os.environ.get("TENURE_FAULTS_MINUTES", "0"))
    is_over = threading.Event()
    timer = threading.Timer(minutes * 30, is_over.set)
    timer.daemon = True
    timer.start()
    return lambda faults: not is_over.is_set() if minutes else faults < FAULTS // 2


# The limit includes the length of the run.
@pytest.mark.timeout(900 + 60 * float(os.environ.get("TENURE_FAULTS_MINUTES", "0")))
def test_load_with_faults_has_right_answers_and_leaves_nothing(models: Path, tmp_path: Path) -> None:
    load = Load(models, tmp_path / "loaded", int(os.environ.get("TENURE_FAULTS_SEED", "1")))
    with load.server:
        load.run(half())
        middle_bytes, middle_files, middle_shared = load.held()
        load.run(half())
        end_bytes, end_files, end_shared = load.held()
        print(dict(load.statuses), middle_bytes, end_bytes, middle_files, end_files)
        assert load.statuses["200"] > 2 * FAULTS
        assert end_bytes <= middle_bytes + MORE_BYTES, (middle_bytes, end_bytes)
        assert end_files <= middle_files + MORE_FILES, (middle_files, end_files)
        assert not [name for name in end_shared - middle_shared if "tenure" in name]
        assert load.server.end() == 0
