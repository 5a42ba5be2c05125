"""Checks of the protocol over gRPC, with messages that are coded here: no generated code is involved."""

from __future__ import annotations

import struct

import pytest
from channel import Channel
from checks import GRPC, check
from messages import every, field, integers, sizes, varint
from server import Model, Server
from tensors import of_bytes
from test_infer import assert_same


def request(model: Model, **spoilt: str) -> bytes:
    inputs = b""
    for tensor in model.tensors:
        datatype = spoilt.get("datatype", tensor.datatype)
        inputs += field(5, field(1, tensor.name) + field(2, datatype) + sizes(3, tensor.shape))
    raw = b"".join(field(7, tensor.bytes()) for tensor in model.tensors)
    return field(1, spoilt.get("name", model.name)) + field(3, "42") + inputs + raw


@check("grpc.live", GRPC, "True if the inference server is live, false if not live.")
def test_live(channel: Channel) -> None:
    assert every(channel.call("ServerLive"), 1) == [1]


@check("grpc.ready", GRPC, "True if the inference server is ready, false if not ready.")
def test_ready(channel: Channel) -> None:
    assert every(channel.call("ServerReady"), 1) == [1]


@check("grpc.model.ready", GRPC, "True if the model is ready, false if not ready.")
def test_model_ready(channel: Channel, model: Model) -> None:
    assert every(channel.call("ModelReady", field(1, model.name)), 1) == [1]


@check("grpc.metadata.server", GRPC, "The ServerMetadata API provides information about the server.")
def test_server_metadata(channel: Channel, server: Server) -> None:
    found = channel.call("ServerMetadata")
    assert every(found, 1) == [server.metadata["name"].encode()]


@check("grpc.metadata.model", GRPC, "The per-model metadata API provides information about a model.")
def test_model_metadata(channel: Channel, model: Model) -> None:
    found = channel.call("ModelMetadata", field(1, model.name))
    assert every(found, 1) == [model.name.encode()]
    for number, specs in ((4, model.inputs), (5, model.outputs)):
        tensors = every(found, number)
        assert [every(tensor, 1)[0].decode() for tensor in tensors] == [spec["name"] for spec in specs]
        assert [every(tensor, 2)[0].decode() for tensor in tensors] == [spec["datatype"] for spec in specs]
        shapes = [[size % (1 << 64) for size in spec["shape"]] for spec in specs]
        assert [integers(tensor, 3) for tensor in tensors] == shapes


@check("grpc.infer", GRPC, "The ModelInfer API performs inference using the specified model.")
def test_answers_are_those_of_http(channel: Channel, model: Model) -> None:
    answer = channel.call("ModelInfer", request(model))
    assert every(answer, 1) == [model.name.encode()] and every(answer, 3) == [b"42"]
    outputs, raw = every(answer, 5), every(answer, 6)
    if len(raw) != len(outputs):
        pytest.skip("the answer is not in raw_output_contents")
    found = {}
    for output, data in zip(outputs, raw, strict=True):
        spec = {"name": every(output, 1)[0].decode(), "datatype": every(output, 2)[0].decode()}
        found[spec["name"]] = of_bytes({**spec, "shape": integers(output, 3)}, data)
    assert_same(found, model.infer(model.request()))


@check("grpc.infer.typed", GRPC, "the repeated type that matches the tensor's data type")
def test_contents_of_their_type(channel: Channel, model: Model) -> None:
    kinds = {"FP32": (6, "f"), "FP64": (7, "d"), "INT64": (3, ""), "INT32": (2, ""), "BOOL": (1, "")}
    if any(tensor.datatype not in kinds for tensor in model.tensors):
        pytest.skip("inputs of a datatype that this test does not write")
    message = field(1, model.name)
    for tensor in model.tensors:
        number, code = kinds[tensor.datatype]
        packed = struct.pack(f"<{len(tensor.values)}{code}", *tensor.values) if code else b""
        packed = packed or b"".join(varint(value) for value in tensor.values)
        spec = field(1, tensor.name) + field(2, tensor.datatype) + sizes(3, tensor.shape)
        message += field(5, spec + field(5, field(number, packed)))
    assert every(channel.call("ModelInfer", message), 1) == [model.name.encode()]


@check("grpc.error.model", GRPC, "Errors are indicated by the google.rpc.Status returned for the request.")
def test_an_unknown_model(channel: Channel, first: Model) -> None:
    assert channel.refuses("ModelMetadata", field(1, "no-such-model")) != "UNIMPLEMENTED"
    assert channel.refuses("ModelInfer", request(first, name="no-such-model")) != "UNIMPLEMENTED"


@check("grpc.error.input", GRPC, "The OK code indicates success and other codes indicate failure.")
def test_an_input_of_no_datatype(channel: Channel, first: Model) -> None:
    channel.refuses("ModelInfer", request(first, datatype="FP31"))
    channel.call("ModelInfer", request(first))
