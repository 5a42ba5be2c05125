"""A server of its own for each test: the `tenure serve` that `cargo build` made."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from numpy.typing import NDArray

# The folder in which `cargo build` and `cargo test` leave it.
TARGET = os.environ.get("CARGO_TARGET_DIR", Path(__file__).resolve().parents[3] / "target")
PROGRAM = Path(TARGET, "debug", "tenure")

needs_program = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built: cargo build")


@contextmanager
def serving(models: Path, *args: str, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """Runs a server that exits with success when asked to; yields its address, such as `127.0.0.1:8000`."""
    with serving_both(models, *args, listen=listen) as (_, address):
        yield address


@contextmanager
def serving_both(models: Path, *args: str, listen: str = "127.0.0.1:0") -> Iterator[tuple[str, str]]:
    """Runs a server; yields its addresses for gRPC, empty if it has none, and for HTTP."""
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


class Server:
    """A server, also for gRPC, in which tests cause faults. `end` stops it; the block's end kills it."""

    def __init__(self, models: Path, *args: str, stderr: IO[Any] | None = None) -> None:
        command = [str(PROGRAM), "serve", str(models), "--listen", "127.0.0.1:0", "--grpc-port", "0", "--json", *args]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.address, self.grpc_address = ready["url"].removeprefix("http://"), ready["grpc"]

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Asks the server to stop, waits, and returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any, dict[str, str]]:
        """Sends a request. Returns the status, the answer's content (parsed if it is JSON) and its headers."""
        connection = http.client.HTTPConnection(self.address)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            text = answer.read().decode()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            is_json = headers.get("content-type") == "application/json"
            return answer.status, json.loads(text) if is_json else text, headers
        finally:
            connection.close()

    def infer(self, model: str, *inputs: dict[str, Any]) -> tuple[int, Any]:
        """Returns the status, and the first output's numbers or the error."""
        status, said, _ = self.request("POST", f"/v2/models/{model}/infer", {"inputs": list(inputs)})
        return status, said["outputs"][0]["data"] if status == 200 else said["error"]

    def index(self) -> dict[str, tuple[str, str]]:
        """Returns the state and the reason of each model."""
        _, said, _ = self.request("POST", "/v2/repository/index")
        return {model["name"]: (model["state"], model.get("reason", "")) for model in said}

    def queued(self) -> dict[str, int]:
        """Returns the number of requests that wait for each model that was ever asked."""
        _, said, _ = self.request("GET", "/metrics")
        counts = re.findall(r'^tenure_queued_requests{model="(.*)"} (\d+)$', said, re.MULTILINE)
        return {model: int(count) for model, count in counts}

    def workers(self) -> list[int]:
        """Returns the ids of the server's child processes, dead ones included until they are reaped."""
        children = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                # In this file, state and parent follow the name.
                parent = stat.read_text().rpartition(") ")[2].split()[1]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(parent) == self.process.pid:
                children.append(int(stat.parent.name))
        return children


def until(what: str, is_so: Callable[[], bool]) -> None:
    """Polls until a state is reached for which there is no event. On a timeout, pytest's traceback shows `what`."""
    pause = threading.Event()
    while not is_so():
        pause.wait(0.01)


def tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    """Returns a tensor of a request in JSON."""
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def with_bias(weights: Path, bias: NDArray[np.float32]) -> bytes:
    """Returns the weights of a ResNet whose last layer returns its bias, whatever its input."""
    content = bytearray(weights.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    for name, values in ("fc.weight", None), ("fc.bias", bias):
        begin, end = (8 + length + at for at in header[name]["data_offsets"])
        content[begin:end] = bytes(end - begin) if values is None else values.tobytes()
    return bytes(content)
