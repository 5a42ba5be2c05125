"""Checks of tensors in system shared memory: regions are files in /dev/shm, which this program and the server share."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from checks import SHARED_MEMORY, check
from server import Model, Request, Server, assert_error, good
from tensors import Tensor, of_bytes
from test_infer import assert_same

SHM = Path("/dev/shm")
LOCAL = ("localhost", "127.0.0.1", "::1")
BYTES = 1 << 20


@dataclass
class Region:
    server: Server
    name: str
    path: Path

    def ask(self, what: str, body: Any = b"") -> Any:
        method = "GET" if what == "status" else "POST"
        return self.server.ask(method, f"v2/systemsharedmemory/region/{self.name}/{what}", body)

    def register(self, offset: int = 0, size: int = BYTES) -> Any:
        return self.ask("register", {"key": f"/{self.path.name}", "offset": offset, "byte_size": size})

    def write(self, at: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def place(self, at: int, size: int) -> dict[str, Any]:
        """Returns the parameters of a tensor in the region."""
        return {"shared_memory_region": self.name, "shared_memory_offset": at, "shared_memory_byte_size": size}


@pytest.fixture
def region(server: Server) -> Iterator[Region]:
    if server.address.host not in LOCAL or not SHM.is_dir():
        pytest.skip("the server is on another host, or there is no /dev/shm")
    name = f"oip-{uuid.uuid4().hex}"
    path = SHM / name
    path.write_bytes(bytes(BYTES))
    region = Region(server, name, path)
    yield region
    region.ask("unregister")
    path.unlink()


def with_inputs(model: Model, region: Region, **message: Any) -> Request:
    """Makes a request with inputs in a region."""
    inputs, at = [], 64
    for tensor in model.tensors:
        data = tensor.bytes()
        region.write(at, data)
        inputs.append({**tensor.spec(), "parameters": region.place(at, len(data))})
        at += len(data)
    return Request({"inputs": inputs, **message})


@check("shared-memory.register", SHARED_MEMORY, "A successful register request is indicated by a 200 HTTP status code.")
def test_a_region_is_registered(region: Region) -> None:
    good(region.register())
    (found,) = good(region.ask("status")).json()
    assert (found["name"], found["key"].lstrip("/")) == (region.name, region.path.name)
    assert (found["offset"], found["byte_size"]) == (0, BYTES)
    everything = region.server.get("v2/systemsharedmemory/status")
    assert region.name in {entry["name"] for entry in everything}


@check("shared-memory.input", SHARED_MEMORY, "the corresponding input is being communicated via shared memory")
def test_inputs_from_a_region(region: Region, model: Model) -> None:
    good(region.register())
    outputs = {"parameters": {"binary_data_output": True}}
    assert_same(model.infer(with_inputs(model, region, **outputs)), model.infer(model.binary_request(**outputs)))


@check("shared-memory.output", SHARED_MEMORY, "the returned $response_output must not define the “data” field")
def test_outputs_to_a_region(region: Region, model: Model) -> None:
    good(region.register())
    expected = model.infer(model.binary_request(parameters={"binary_data_output": True}))
    places, at = {}, BYTES // 2
    for name, tensor in expected.items():
        places[name] = (at, len(tensor.bytes()))
        at += len(tensor.bytes())
    wanted = [{"name": name, "parameters": region.place(*place)} for name, place in places.items()]
    message = good(model.send(with_inputs(model, region, outputs=wanted))).json()
    found: dict[str, Tensor] = {}
    for output in message["outputs"]:
        assert "data" not in output
        begin, size = places[output["name"]]
        found[output["name"]] = of_bytes(output, region.path.read_bytes()[begin : begin + size])
    assert_same(found, expected)


@check("shared-memory.offset", SHARED_MEMORY, "The offset, in bytes, within the underlying memory object to the start")
def test_a_region_that_begins_later(region: Region, first: Model) -> None:
    begin = os.sysconf("SC_PAGESIZE")
    good(region.register(begin, BYTES - begin))
    request = with_inputs(first, region)
    content = region.path.read_bytes()
    region.path.write_bytes(bytes(begin) + content[: BYTES - begin])
    good(first.send(request))


@check(
    "shared-memory.unregister",
    SHARED_MEMORY,
    "If REGION_NAME is provided in the URL the single region is unregistered.",
)
def test_a_region_that_is_no_longer_registered(region: Region, first: Model) -> None:
    good(region.register())
    good(region.ask("unregister"))
    assert_error(first.send(with_inputs(first, region)))
    good(first.send(first.request()))


@check("shared-memory.error.key", SHARED_MEMORY, "A failed register request must be indicated by an HTTP error status")
def test_a_region_of_nothing(region: Region) -> None:
    body = {"key": "/no-such-object", "offset": 0, "byte_size": 64}
    assert_error(region.ask("register", body))


@check("shared-memory.error.beyond", SHARED_MEMORY, "The size of the shared memory region, in bytes.")
def test_a_tensor_beyond_its_region(region: Region, first: Model) -> None:
    good(region.register())
    request = with_inputs(first, region)
    request.message["inputs"][0]["parameters"]["shared_memory_offset"] = BYTES - 1
    assert_error(first.send(request))
    good(first.send(first.request()))


@check("shared-memory.error.data", SHARED_MEMORY, "If the “data” field is set Triton will return an error.")
def test_data_in_both_places(region: Region, first: Model) -> None:
    good(region.register())
    request = with_inputs(first, region)
    request.message["inputs"][0]["data"] = first.tensors[0].flat()
    assert_error(first.send(request))


@check("shared-memory.error.half", SHARED_MEMORY, "If only one of the two is given Triton will return an error.")
def test_a_region_without_a_size(region: Region, first: Model) -> None:
    good(region.register())
    request = with_inputs(first, region)
    del request.message["inputs"][0]["parameters"]["shared_memory_byte_size"]
    assert_error(first.send(request))
