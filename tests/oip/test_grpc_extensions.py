"""Checks of Triton's extensions over gRPC: a server that lists one has its calls, which answer as over HTTP."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from channel import Channel
from checks import GRPC, check
from messages import every, field, integer, integers, number, sizes, text
from server import Model, Server
from tensors import of_bytes
from test_infer import assert_same

SHM = Path("/dev/shm")
BYTES = 1 << 20

# For each extension, a call that needs no model; for one of them, the calls about a model.
CALLS = {
    "statistics": "ModelStatistics",
    "model_repository": "RepositoryIndex",
    "system_shared_memory": "SystemSharedMemoryStatus",
    "cuda_shared_memory": "CudaSharedMemoryStatus",
    "trace": "TraceSetting",
    "logging": "LogSettings",
}
DATA_TYPES = (
    "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16".split()
)  # fmt: skip


def needs(channel: Channel, extension: str) -> None:
    listed = {name.decode().removesuffix("_extension") for name in every(channel.call("ServerMetadata"), 3)}
    if extension not in listed:
        pytest.skip(f"the server does not list {extension} over gRPC")


@check("grpc.extensions", GRPC, "The extensions supported by the server.")
def test_a_listed_extension_is_there(channel: Channel, first: Model) -> None:
    for name in every(channel.call("ServerMetadata"), 3):
        extension = name.decode().removesuffix("_extension")
        if extension in CALLS:
            channel.call(CALLS[extension])
        if extension == "model_configuration":
            channel.call("ModelConfig", field(1, first.name))


@check("grpc.configuration", GRPC, "The ModelConfig API returns the configuration of a model")
def test_a_configuration_is_that_of_http(channel: Channel, model: Model) -> None:
    needs(channel, "model_configuration")
    (found,) = every(channel.call("ModelConfig", field(1, model.name)), 1)
    assert text(found, 1) == model.name
    for key, numbers in (("input", (5, 4)), ("output", (6, 3))):
        at, dims = numbers
        tensors = [
            {
                "name": text(tensor, 1),
                "data_type": f"TYPE_{DATA_TYPES[number(tensor, 2)]}",
                "dims": [size - (1 << 64) if size >= 1 << 63 else size for size in integers(tensor, dims)],
            }
            for tensor in every(found, at)
        ]
        expected = model.server.get(f"{model.path}/config")
        assert tensors == [{name: spec[name] for name in ("name", "data_type", "dims")} for spec in expected[key]]
        assert number(found, 4) == expected.get("max_batch_size", 0)


def counted(channel: Channel, model: Model) -> tuple[int, int]:
    """Returns the numbers of computed rows and of answered requests."""
    (found,) = every(channel.call("ModelStatistics", field(1, model.name)), 1)
    assert text(found, 1) == model.name
    (times,) = every(found, 6)
    return number(found, 4), sum(number(success, 1) for success in every(times, 1))


@check("grpc.statistics", GRPC, "The count and cumulative duration for successful inference requests")
def test_a_request_is_counted(channel: Channel, model: Model) -> None:
    needs(channel, "statistics")
    model.infer()
    (inferences, answered) = counted(channel, model)
    model.infer()
    after = counted(channel, model)
    assert after[0] > inferences and after[1] == answered + 1
    said = [text(found, 1) for found in every(channel.call("ModelStatistics"), 1)]
    assert model.name in said


class Memory:
    """A file in /dev/shm, and the region of it that is registered."""

    def __init__(self, channel: Channel) -> None:
        self.channel, self.name = channel, f"oip-{uuid.uuid4().hex}"
        self.path = SHM / self.name
        self.path.write_bytes(bytes(BYTES))

    def register(self, size: int = BYTES) -> None:
        message = field(1, self.name) + field(2, f"/{self.name}") + integer(4, size)
        self.channel.call("SystemSharedMemoryRegister", message)

    def place(self, tag: int, at: int, size: int) -> bytes:
        """Returns the parameters of a tensor in the region, in the field `tag` of its message."""
        integers = {"shared_memory_offset": at, "shared_memory_byte_size": size}
        values = {name: integer(2, value) for name, value in integers.items()}
        values["shared_memory_region"] = field(3, self.name)
        return b"".join(field(tag, field(1, name) + field(2, value)) for name, value in values.items())

    def inputs(self, model: Model) -> bytes:
        """Returns a request with inputs in the region."""
        message, at, content = field(1, model.name), 64, bytearray(self.path.read_bytes())
        for tensor in model.tensors:
            data = tensor.bytes()
            content[at : at + len(data)] = data
            spec = field(1, tensor.name) + field(2, tensor.datatype) + sizes(3, tensor.shape)
            message += field(5, spec + self.place(4, at, len(data)))
            at += len(data)
        self.path.write_bytes(content)
        return message


@pytest.fixture
def memory(server: Server, channel: Channel) -> Iterator[Memory]:
    if server.address.host not in ("localhost", "127.0.0.1", "::1") or not os.access(SHM, os.W_OK):
        pytest.skip("the server is on another host, or there is no /dev/shm")
    needs(channel, "system_shared_memory")
    memory = Memory(channel)
    yield memory
    channel.call("SystemSharedMemoryUnregister", field(1, memory.name))
    memory.path.unlink()


@check("grpc.shared-memory.register", GRPC, "The SystemSharedMemoryRegister API registers a new shared-memory region")
def test_a_region_is_registered(channel: Channel, memory: Memory) -> None:
    memory.register(4096)
    (entry,) = every(channel.call("SystemSharedMemoryStatus", field(1, memory.name)), 1)
    (region,) = every(entry, 2)
    assert text(entry, 1) == text(region, 1) == text(region, 2).lstrip("/") == memory.name
    assert (number(region, 3), number(region, 4)) == (0, 4096)
    everything = every(channel.call("SystemSharedMemoryStatus"), 1)
    assert memory.name in {text(entry, 1) for entry in everything}


@check("grpc.shared-memory.input", GRPC, "the corresponding input is being communicated via shared memory")
def test_inputs_from_a_region(channel: Channel, model: Model, memory: Memory) -> None:
    memory.register()
    answer = channel.call("ModelInfer", memory.inputs(model))
    found = {}
    for output, data in zip(every(answer, 5), every(answer, 6), strict=True):
        spec = {"name": text(output, 1), "datatype": text(output, 2), "shape": integers(output, 3)}
        found[spec["name"]] = of_bytes(spec, data)
    assert_same(found, model.infer(model.binary_request(parameters={"binary_data_output": True})))


@check("grpc.shared-memory.output", GRPC, "the output tensor should be written into shared memory")
def test_outputs_to_a_region(channel: Channel, model: Model, memory: Memory) -> None:
    memory.register()
    expected = model.infer(model.binary_request(parameters={"binary_data_output": True}))
    message, places, at = memory.inputs(model), {}, BYTES // 2
    for name, tensor in expected.items():
        places[name] = (at, len(tensor.bytes()))
        message += field(6, field(1, name) + memory.place(2, *places[name]))
        at += len(tensor.bytes())
    answer = channel.call("ModelInfer", message)
    assert not any(every(answer, 6)), "the outputs were sent too"
    found = {}
    for output in every(answer, 5):
        begin, size = places[text(output, 1)]
        spec = {"name": text(output, 1), "datatype": text(output, 2), "shape": integers(output, 3)}
        found[spec["name"]] = of_bytes(spec, memory.path.read_bytes()[begin : begin + size])
    assert_same(found, expected)


@check("grpc.shared-memory.unregister", GRPC, "unregisters a shared-memory region")
def test_a_region_that_is_no_longer_registered(channel: Channel, first: Model, memory: Memory) -> None:
    memory.register()
    message = memory.inputs(first)
    channel.call("ModelInfer", message)
    channel.call("SystemSharedMemoryUnregister", field(1, memory.name))
    channel.refuses("ModelInfer", message)
    first.infer()


@check("grpc.shared-memory.error.beyond", GRPC, "The size of the shared memory region, in bytes.")
def test_a_tensor_beyond_its_region(channel: Channel, first: Model, memory: Memory) -> None:
    memory.register(64)
    assert channel.refuses("ModelInfer", memory.inputs(first)) != "UNIMPLEMENTED"
