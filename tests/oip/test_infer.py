"""Checks of inference with tensors in JSON."""

from __future__ import annotations

import gzip
import zlib

import pytest
from checks import BEYOND, PARAMETERS, REQUIRED, check
from server import Model, assert_error, good, split
from tensors import Tensor, assert_equal


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert_equal(tensor, other[name])


@check("infer.json", REQUIRED, "Optional, if not specified all outputs produced by the model will be returned")
def test_all_outputs_are_answered(model: Model) -> None:
    model.needs_json()
    assert model.infer().keys() == {output["name"] for output in model.outputs}


@check("infer.nested", REQUIRED, "Tensor elements may be presented in their nature multi-dimensional representation")
def test_data_may_be_nested(model: Model) -> None:
    model.needs_json()
    assert_same(model.infer(model.request(nested=True)), model.infer())


@check("infer.id", REQUIRED, "Optional, but if specified this identifier must be returned in the response.")
@pytest.mark.parametrize("given", ["42", "eine Frage: ä", "x" * 300], ids=["short", "not ascii", "long"])
def test_the_id_is_returned(model: Model, given: str) -> None:
    message, _ = split(good(model.send(model.request(id=given))))
    assert message.get("id") == given


@check("infer.id.absent", BEYOND, 'The "id" identifier given in the request, if any.')
def test_there_is_no_id_where_none_was_given(first: Model) -> None:
    message, _ = split(good(first.send(first.request())))
    assert not message.get("id")


@check("infer.outputs", REQUIRED, "The output tensors requested for this inference.")
def test_requested_outputs_are_answered(model: Model) -> None:
    model.needs_json()
    names = [output["name"] for output in model.outputs]
    for name in names:
        assert list(model.infer(model.request(outputs=[{"name": name}]))) == [name]
    wanted = [{"name": name} for name in reversed(names)]
    assert model.infer(model.request(outputs=wanted)).keys() == set(names)


@check("infer.outputs.order", BEYOND, "in the same order as the order of the input or output tensors are specified")
def test_outputs_are_in_the_order_that_was_asked_for(model: Model) -> None:
    if len(model.outputs) < 2:
        pytest.skip("the model has one output")
    names = [output["name"] for output in reversed(model.outputs)]
    assert list(model.infer(model.request(outputs=[{"name": name} for name in names]))) == names


@check("infer.outputs.unknown", REQUIRED, "The name of the output tensor.")
def test_an_output_that_the_model_does_not_have(first: Model) -> None:
    assert_error(first.send(first.request(outputs=[{"name": "no-such-output"}])))


@check("infer.parameters", REQUIRED, "An object containing zero or more parameters for this inference request")
def test_parameters_may_be_none(first: Model) -> None:
    request = first.request()
    request.message.setdefault("parameters", {})
    for tensor in request.message["inputs"]:
        tensor.setdefault("parameters", {})
    first.infer(request)


@check("infer.parameters.own", PARAMETERS, "custom parameters of a request: a $string, $number, or $boolean")
def test_parameters_of_ones_own(first: Model) -> None:
    request = first.request()
    request.message.setdefault("parameters", {}).update({"own_text": "text", "own_number": 2, "own_bool": True})
    first.infer(request)


@check("infer.parameters.unknown", BEYOND, "A server can implement server-specific parameters")
def test_parameters_of_another_server_are_passed_over(first: Model) -> None:
    request = first.request()
    request.message.setdefault("parameters", {}).update({"own_text": "text", "own_number": 2, "own_bool": True})
    first.infer(request)


@check("infer.fields.unknown", BEYOND, 'the binary extension\'s example has "model_name" in a request')
def test_fields_that_are_not_known_are_passed_over(first: Model) -> None:
    first.infer(first.request(model_name=first.name, something={"else": [1, None]}))


@check("infer.version", REQUIRED, "The specific model version used for inference.")
def test_a_version_may_be_named(model: Model) -> None:
    versions = model.metadata.get("versions") or []
    if not versions:
        pytest.skip("the model has no versions")
    for version in versions:
        answer = model.send(model.request(), version=version)
        model.outputs_of(answer)
        assert split(answer)[0].get("model_version") == version


@check("infer.batch", BEYOND, "If the input is batched, the shape and data must represent the full shape")
def test_rows_are_answered_as_alone(model: Model) -> None:
    """If all first dimensions are free, a request with two equal rows must give two equal answers."""
    model.needs_json()
    specs = [*model.inputs, *model.outputs]
    if not all(spec["shape"][:1] == [-1] for spec in specs):
        pytest.skip("the first dimension is not free")
    alone = [
        Tensor(t.name, t.datatype, [1, *t.shape[1:]], t.values[: len(t.values) // t.shape[0]]) for t in model.tensors
    ]
    twice = [Tensor(t.name, t.datatype, [2, *t.shape[1:]], t.values * 2) for t in alone]
    one, two = model.infer(model.request(tensors=alone)), model.infer(model.request(tensors=twice))
    for name, tensor in one.items():
        assert_equal(Tensor(name, tensor.datatype, [2, *tensor.shape[1:]], tensor.values * 2), two[name])


@check("infer.whitespace", REQUIRED, "The HTTP/REST API uses JSON")
def test_json_may_be_written_in_any_way(first: Model) -> None:
    first.needs_json()
    body, headers = first.request(id="ä").encode()
    spaced = body.replace(b", ", b" ,\r\n\t").replace(b'"inputs"', b'"\\u0069nputs"')
    answer = first.server.ask("POST", first.infer_path(), spaced, headers)
    first.outputs_of(answer)
    assert split(answer)[0]["id"] == "ä"


@check("infer.content-type", BEYOND, "Content-Type: application/json")
def test_an_answer_in_json_is_said_to_be_json(first: Model) -> None:
    first.needs_json()
    assert good(first.send(first.request())).headers.get("content-type", "").startswith("application/json")


@check("infer.content-type.absent", BEYOND, "a request that does not say its Content-Type")
def test_a_request_need_not_say_that_it_is_json(first: Model) -> None:
    first.needs_json()
    body, _ = first.request().encode()
    first.outputs_of(first.server.ask("POST", first.infer_path(), body, {"Content-Type": ""}))


@check("compressed.request.gzip", BEYOND, "Content-Encoding: gzip")
def test_a_body_may_be_compressed_with_gzip(first: Model) -> None:
    body, headers = first.request().encode()
    answer = first.server.ask("POST", first.infer_path(), gzip.compress(body), {**headers, "Content-Encoding": "gzip"})
    first.outputs_of(answer)


@check("compressed.request.deflate", BEYOND, "Content-Encoding: deflate")
def test_a_body_may_be_compressed_with_deflate(first: Model) -> None:
    body, headers = first.request().encode()
    headers = {**headers, "Content-Encoding": "deflate"}
    first.outputs_of(first.server.ask("POST", first.infer_path(), zlib.compress(body), headers))


@check("compressed.answer", BEYOND, "Accept-Encoding: gzip")
def test_an_answer_may_be_compressed(first: Model) -> None:
    answer = good(first.send(first.request(), headers={"Accept-Encoding": "gzip"}))
    assert answer.headers.get("content-encoding") == "gzip", "the answer is not compressed"
    answer.body = gzip.decompress(answer.body)
    first.outputs_of(answer)


@check("compressed.unknown", BEYOND, "Content-Encoding that the server does not have: 415, or another error")
def test_an_unknown_compression_is_refused(first: Model) -> None:
    body, headers = first.request().encode()
    assert_error(first.server.ask("POST", first.infer_path(), body, {**headers, "Content-Encoding": "no-such"}))


@check("compressed.wrong", BEYOND, "Content-Encoding: gzip, and the body is not")
def test_a_body_that_is_not_compressed_as_it_says_is_refused(first: Model) -> None:
    body, headers = first.request().encode()
    assert_error(first.server.ask("POST", first.infer_path(), body, {**headers, "Content-Encoding": "gzip"}))
