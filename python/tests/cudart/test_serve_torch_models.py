"""PyTorch modules as models of `tenure serve --device cuda`: their bytes, and sharing the device with networks.

Modules compute on the host with the bytes that their weights have on the device.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..serve.serving import PROGRAM, Server, needs_program, tensor, until
from .switching import CHUNK

pytestmark = needs_program

CONFIG = """
python = "model.py:load"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 4] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 3] }]
[batching]
max_rows = 8
"""

#: A module with three chunks of weights.
CODE = """
    import sys
    sys.path.append({tests!r})

    import torch
    from tests.cudart.switching import OnHost
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 1_400_000), nn.Linear(1_400_000, 3)

        def forward(self, x):
            if x[0, 0].item() == {fault}:
                raise ValueError("no such row")
            with OnHost():
                return self.second(self.first(x))

    def load(folder):
        torch.manual_seed({seed})
        return Model()
"""

#: The first number of an input for which `forward` fails.
FAULT = -77.0

ROW = [0.5, -1.25, 3.0, 0.1]


def write(models: Path, name: str, seed: int) -> Path:
    folder = models / name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG)
    code = CODE.format(tests=str(Path(__file__).parents[2]), seed=seed, fault=FAULT)
    (folder / "model.py").write_text(textwrap.dedent(code))
    return folder


def expected(seed: int) -> list[float]:
    torch.manual_seed(seed)
    first, second = torch.nn.Linear(4, 1_400_000), torch.nn.Linear(1_400_000, 3)
    with torch.inference_mode():
        values: list[float] = second(first(torch.tensor([ROW]))).flatten().tolist()
    return values


class OnDevice(Server):
    """A server on the simulated device, with room for some chunks."""

    def __init__(self, models: Path, chunks: int, *args: str) -> None:
        self.chunks = chunks
        budget = ("--device-bytes", str(chunks * CHUNK), "--host-bytes", str(1 << 30))
        super().__init__(models, "--device", "cuda", "--python", sys.executable, *budget, *args)

    def ask(self, name: str, row: list[float] = ROW) -> tuple[int, Any]:
        status, said = self.infer(name, tensor("x", "FP32", [1, 4], row))
        self.check()
        # JSON writes 32-bit floats in the shortest way that is read as the same.
        return status, torch.tensor(said).tolist() if status == 200 else said

    def taken(self, pid: int | None = None) -> int:
        """Returns how many chunks of the device's memory a process has, or all have. A lent chunk counts once."""
        chunks = set()
        for process in [self.process.pid, *self.workers()] if pid is None else [pid]:
            for file in Path(f"/proc/{process}/fd").iterdir():
                try:
                    if "simulated-cuda-memory" in os.readlink(file) and file.stat().st_size == CHUNK:
                        chunks.add(file.stat().st_ino)
                except FileNotFoundError:
                    continue
        return len(chunks)

    def check(self) -> None:
        assert self.taken() <= self.chunks, "more of the device than there is"
        assert self.tier("cuda:0")["used_bytes"] <= self.chunks * CHUNK

    def python(self) -> int:
        """Returns the id of the Python worker."""
        arguments = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.workers()}
        (found,) = (pid for pid, line in arguments.items() if b"tenure.serving.worker" in line)
        return found

    def tier(self, name: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self.address}/events") as events:
            line = next(line for line in events if line.startswith(b"data:"))
        tiers: list[dict[str, Any]] = json.loads(line.removeprefix(b"data:"))["tiers"]
        (found,) = (tier for tier in tiers if tier["name"] == name)
        return found

    def metric(self, name: str) -> float:
        _, said, _ = self.request("GET", "/metrics")
        return sum(float(line.rsplit(" ", 1)[1]) for line in said.splitlines() if line.startswith(name))


@contextmanager
def serving(models: Path, chunks: int, *args: str) -> Iterator[OnDevice]:
    with OnDevice(models, chunks, *args) as server:
        yield server
        assert server.end() == 0


def test_modules_that_do_not_all_fit_take_turns_and_answer_as_they_do_elsewhere(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path, f"m{seed}", seed)
    answers = [(200, expected(seed)) for seed in range(3)]
    # The third module takes a chunk from another one, which then needs only this chunk copied again.
    with serving(tmp_path, 8) as server:
        images = server.tier("pinned")
        assert images["used_bytes"] > 8 * CHUNK and images["capacity_bytes"] == 1 << 30
        assert server.taken() == 0, "nothing is brought to be opened"
        for _ in range(4):
            for seed in range(3):
                assert server.ask(f"m{seed}") == answers[seed]
        assert server.metric("tenure_switches_total") >= 6
        assert server.taken() == server.taken(server.python()) == 8
        assert server.tier("pinned")["used_bytes"] == images["used_bytes"]


def test_modules_and_networks_of_ours_never_take_more_than_there_is(tmp_path: Path) -> None:
    models = tmp_path / "models"
    subprocess.run([PROGRAM, "models", "init", models], check=True, capture_output=True)
    for seed in range(2):
        write(models, f"m{seed}", seed)
    image = tensor("image", "FP32", [1, 1, 28, 28], [0.5] * 784)
    # The device has room for one of the modules, or for the network and a part of a module.
    with serving(models, 3) as server:
        for turn in range(3):
            assert server.ask("m0") == (200, expected(0))
            # The network has no kernels on a simulated device without CUDA's compiler.
            assert server.infer("digits", image)[0] in (200, 500)
            server.check()
            assert server.taken() > server.taken(server.python()), turn
            assert server.ask("m1") == (200, expected(1))


def test_a_killed_process_leaves_nothing_on_the_device_and_its_models_are_opened_again(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path, f"m{seed}", seed)
    with serving(tmp_path, 6) as server:
        for seed in range(2):
            assert server.ask(f"m{seed}") == (200, expected(seed))
        first, images = server.python(), server.tier("pinned")["used_bytes"]
        os.kill(first, signal.SIGKILL)
        until("the process is gone", lambda: first not in server.workers())
        assert server.taken() == 0
        assert server.ask("m1") == (200, expected(1))
        assert server.python() != first
        assert (server.taken(), server.tier("pinned")["used_bytes"]) == (3, images // 2), "the other one is not opened"
        assert server.ask("m0") == (200, expected(0))
        assert server.tier("pinned")["used_bytes"] == images


def test_a_module_that_raises_fails_its_request_and_no_other(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path, f"m{seed}", seed)
    with serving(tmp_path, 3) as server:
        before = None
        for _ in range(2):
            assert server.ask("m0", [FAULT, *ROW[1:]]) == (500, "ValueError: no such row")
            assert server.ask("m1") == (200, expected(1))
            assert before in (None, server.python())
            before = server.python()


def test_a_model_that_is_unloaded_and_loaded_leaves_nothing_behind(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path, f"m{seed}", seed)
    with serving(tmp_path, 6) as server:
        images, files = server.tier("pinned")["used_bytes"], []
        for _ in range(4):
            assert server.ask("m0") == (200, expected(0))
            assert server.ask("m1") == (200, expected(1))
            assert server.request("POST", "/v2/repository/models/m0/unload")[0] == 200
            assert server.tier("pinned")["used_bytes"] == images // 2
            assert server.taken() == 3
            assert server.request("POST", "/v2/repository/models/m0/load")[0] == 200
            assert server.tier("pinned")["used_bytes"] == images
            files.append(len(list(Path(f"/proc/{server.python()}/fd").iterdir())))
        assert files[1] == files[-1]
