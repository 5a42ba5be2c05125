"""Checks of tensors as binary data, in requests and in answers."""

from __future__ import annotations

import pytest
from checks import BINARY, check
from server import JSON_LENGTH, Model, assert_error, good, split
from tensors import assert_equal
from test_infer import assert_same

ALL = {"parameters": {"binary_data_output": True}}


@check("binary.input", BINARY, "The binary data for a tensor is delivered in the HTTP body after the JSON object")
def test_inputs_as_binary_data(model: Model) -> None:
    model.needs_json()
    assert_same(model.infer(model.binary_request()), model.infer())


@check("binary.output.all", BINARY, "all outputs should be returned from Triton as binary data")
def test_all_outputs_as_binary_data(model: Model) -> None:
    request = model.binary_request(**ALL)
    answer = good(model.send(request))
    message, data = split(answer)
    sizes = [output["parameters"]["binary_data_size"] for output in message["outputs"]]
    assert sum(sizes) == len(data) and "data" not in message["outputs"][0]
    assert model.outputs_of(answer).keys() == {output["name"] for output in model.outputs}


@check("binary.equal", BINARY, "All tensor data types are representable as binary data")
def test_answers_are_equal_in_json_and_in_bytes(model: Model) -> None:
    model.needs_json()
    assert_same(model.infer(model.binary_request(**ALL)), model.infer(model.request()))


@check(
    "binary.output.json-input", BINARY, "bool parameter that is true if the output should be returned as binary data"
)
def test_inputs_in_json_and_outputs_as_binary_data(model: Model) -> None:
    model.needs_json()
    wanted = [{"name": output["name"], "parameters": {"binary_data": True}} for output in model.outputs]
    answer = good(model.send(model.request(outputs=wanted)))
    assert JSON_LENGTH.lower() in answer.headers, f"no {JSON_LENGTH}"
    assert_same(model.outputs_of(answer), model.infer())


@check("binary.output.some", BINARY, 'If "binary_data" is specified on an output it overrides this setting.')
def test_an_output_overrides_what_is_said_of_all(model: Model) -> None:
    model.needs_json()
    name = model.outputs[0]["name"]
    wanted = [{"name": name, "parameters": {"binary_data": False}}, *[{"name": o["name"]} for o in model.outputs[1:]]]
    answer = good(model.send(model.binary_request(outputs=wanted, **ALL)))
    outputs = {output["name"]: output for output in split(answer)[0]["outputs"]}
    assert "data" in outputs.pop(name)
    assert all("data" not in output for output in outputs.values())
    model.outputs_of(answer)


@check("binary.output.not", BINARY, "false (or not given) if the tensor should be returned as JSON")
def test_outputs_are_in_json_unless_they_are_asked_for(model: Model) -> None:
    model.needs_json()
    answer = good(model.send(model.binary_request()))
    assert JSON_LENGTH.lower() not in answer.headers
    assert all("data" in output for output in answer.json()["outputs"])


@check("binary.input.mixed", BINARY, "When one or more tensors are communicated as binary data")
def test_inputs_of_both_kinds(model: Model) -> None:
    model.needs_json()
    if len(model.inputs) < 2:
        pytest.skip("the model has one input")
    for place in range(len(model.inputs)):
        assert_same(model.infer(model.binary_request(as_json=(place,))), model.infer())


@check(
    "binary.order", BINARY, "in the same order as the order of the input or output tensors are specified in the JSON"
)
def test_data_lies_in_the_order_of_the_json(model: Model) -> None:
    if len(model.inputs) < 2:
        pytest.skip("the model has one input")
    request = model.binary_request(**ALL)
    request.message["inputs"].reverse()
    request.binary = b"".join(tensor.bytes() for tensor in reversed(model.tensors))
    assert_same(model.infer(request), model.infer(model.binary_request(**ALL)))


@check("binary.bytes", BINARY, "a 4-byte unsigned integer giving the length followed by the actual bytes")
def test_elements_of_bytes(model: Model) -> None:
    if not any(spec["datatype"] == "BYTES" for spec in [*model.inputs, *model.outputs]):
        pytest.skip("the model has no BYTES")
    assert_same(model.infer(model.binary_request(**ALL)), model.infer())


@check(
    "binary.length-of-all-json",
    BINARY,
    "If any binary data is present in the request or response the header must be provided",
)
def test_a_header_length_where_all_is_json(first: Model) -> None:
    first.needs_json()
    body, headers = first.request().encode()
    answer = first.server.ask("POST", first.infer_path(), body, {**headers, JSON_LENGTH: str(len(body))})
    first.outputs_of(answer)


def refused(model: Model, body: bytes, headers: dict[str, str]) -> None:
    """Checks that a request fails, and that the next one succeeds."""
    assert_error(model.server.ask("POST", model.infer_path(), body, headers))
    good(model.send(model.request()))


@check("binary.error.truncated", BINARY, "indicating the size of the tensor binary data, in bytes")
def test_data_that_is_cut_off(first: Model) -> None:
    body, headers = first.binary_request().encode()
    refused(first, body[:-1], headers)


@check("binary.error.trailing", BINARY, "indicating the size of the tensor binary data, in bytes")
def test_data_that_is_of_no_tensor(first: Model) -> None:
    body, headers = first.binary_request().encode()
    refused(first, body + b"more", headers)


@check("binary.error.size", BINARY, "organized in little-endian byte order, row major, without stride or padding")
def test_a_size_that_is_not_the_shapes(first: Model) -> None:
    request = first.binary_request()
    request.message["inputs"][-1]["parameters"]["binary_data_size"] += 8
    request.binary += bytes(8)
    refused(first, *request.encode())


@check("binary.error.negative", BINARY, "int64 parameter indicating the size of the tensor binary data")
def test_a_size_below_zero(first: Model) -> None:
    request = first.binary_request()
    request.message["inputs"][0]["parameters"]["binary_data_size"] = -1
    refused(first, *request.encode())


@check(
    "binary.error.header",
    BINARY,
    "the Inference-Header-Content-Length header must be provided to give the length of the JSON",
)
@pytest.mark.parametrize("length", ["1000000000", "18446744073709551616", "-1", "many", "3"])
def test_a_header_length_that_cannot_be(first: Model, length: str) -> None:
    body, headers = first.binary_request().encode()
    refused(first, body, {**headers, JSON_LENGTH: length})


@check("binary.error.no-header", BINARY, "the Inference-Header-Content-Length header must be provided")
def test_binary_data_without_the_header(first: Model) -> None:
    body, headers = first.binary_request().encode()
    refused(first, body, {**headers, JSON_LENGTH: ""})


@check("binary.error.bytes", BINARY, "an element is represented by a 4-byte unsigned integer giving the length")
def test_an_element_that_is_longer_than_the_data(model: Model) -> None:
    if all(spec["datatype"] != "BYTES" for spec in model.inputs):
        pytest.skip("the model takes no BYTES")
    request = model.binary_request()
    at = sum(len(tensor.bytes()) for tensor in model.tensors[: [t.datatype for t in model.tensors].index("BYTES")])
    request.binary = request.binary[:at] + b"\xff\xff\xff\xff" + request.binary[at + 4 :]
    refused(model, *request.encode())


@check("binary.again", BINARY, "row major, without stride or padding between elements")
def test_the_same_request_has_the_same_answer(first: Model) -> None:
    one, two = (first.infer(first.binary_request(**ALL)) for _ in range(2))
    for name, tensor in one.items():
        assert_equal(tensor, two[name])
