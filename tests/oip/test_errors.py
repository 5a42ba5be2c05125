"""Checks of requests that no server can answer: each gets an error, and the next request an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from checks import BEYOND, REQUIRED, check
from server import Model, assert_error, good
from wire import Answer, Connection

ERROR = "A failed inference request must be indicated by an HTTP error status (typically 400)."


@dataclass
class Case:
    """A mistake, and the function that puts it into a good request."""

    name: str
    words: str
    spoil: Callable[[dict[str, Any], Model], Any]
    part: str = REQUIRED

    def __str__(self) -> str:
        return self.name

    def body(self, model: Model) -> bytes:
        message = json.loads(json.dumps(model.request().message))
        spoilt = self.spoil(message, model)
        return spoilt if isinstance(spoilt, bytes) else json.dumps(message if spoilt is None else spoilt).encode()


def first_input(**changes: Any) -> Callable[[dict[str, Any], Model], None]:
    """Makes a mistake that changes the first input; keys with the value None are removed."""

    def spoil(message: dict[str, Any], _: Model) -> None:
        tensor = message["inputs"][0]
        tensor.update(changes)
        for key in [key for key, value in tensor.items() if value is None]:
            del tensor[key]

    return spoil


def more(key: str) -> Callable[[dict[str, Any], Model], None]:
    def spoil(message: dict[str, Any], _: Model) -> None:
        tensor = message["inputs"][0]
        tensor[key] = [*tensor[key], 1]

    return spoil


def fewer(message: dict[str, Any], _: Model) -> None:
    del message["inputs"][0]["data"][-1]


def ragged(message: dict[str, Any], model: Model) -> None:
    """Makes nested arrays of which one is too short, and the next too long."""
    data = message["inputs"][0]["data"]
    message["inputs"][0]["data"] = [data[:1], data[1:]] if len(data) > 3 else [[data]]


def wrong_datatype(message: dict[str, Any], _: Model) -> None:
    tensor = message["inputs"][0]
    tensor["datatype"] = "FP64" if tensor["datatype"] != "FP64" else "INT8"


def missing(message: dict[str, Any], _: Model) -> None:
    del message["inputs"][0]


def extra(message: dict[str, Any], _: Model) -> None:
    message["inputs"].append({**message["inputs"][0], "name": "no-such-input"})


def twice(message: dict[str, Any], _: Model) -> None:
    message["inputs"].append(message["inputs"][0])


def wrong_elements(message: dict[str, Any], _: Model) -> None:
    tensor = message["inputs"][0]
    tensor["data"] = [{"no": "element"}] * len(tensor["data"])


def cut(message: dict[str, Any], _: Model) -> bytes:
    return json.dumps(message).encode()[:-2]


def deep(message: dict[str, Any], _: Model) -> bytes:
    """Nests arrays so deep that a recursive parser would overflow its stack."""
    return b'{"inputs": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


FULL = "the shape and data must represent the full shape and contents of the entire batch"
UNSIGNED = "Each dimension must be an integer representable as an unsigned 64-bit integer value."
BODY = "The inference request object is required in the HTTP body of the POST request."
CASES = [
    Case("input.missing", "“inputs” : The inputs required by the model.", missing),
    Case("input.extra", "an input that the model does not have", extra, BEYOND),
    Case("input.duplicate", "an input twice", twice, BEYOND),
    Case("input.no-name", '"name" : $string', first_input(name=None)),
    Case("input.no-datatype", '"datatype" : $string', first_input(datatype=None)),
    Case("input.no-shape", '"shape" : [ $number, ... ]', first_input(shape=None)),
    Case("input.no-data", '"data" : $tensor_data', first_input(data=None)),
    Case("datatype.unknown", "The data-type of the input tensor elements as defined", first_input(datatype="FP31")),
    Case("datatype.wrong", "The server can decide to coerce each element", wrong_datatype, BEYOND),
    Case("shape.wrong", "The shape of the input tensor.", more("shape")),
    Case("shape.negative", UNSIGNED, first_input(shape=[-1, 2])),
    Case("shape.huge", UNSIGNED, first_input(shape=[4294967296, 4294967296, 4294967296])),
    Case("shape.no-array", '"shape" : [ $number, ... ]', first_input(shape="2")),
    Case("data.fewer", FULL, fewer),
    Case("data.more", FULL, more("data")),
    Case("data.ragged", FULL, ragged),
    Case("data.no-elements", "may be an integer, floating-point number, string or boolean value", wrong_elements),
    Case("json.malformed", "The HTTP/REST API uses JSON", cut),
    Case("json.deep", "The HTTP/REST API uses JSON", deep),
    Case("json.not-utf8", "The HTTP/REST API uses JSON", lambda *_: b'{"id": "\xff\xfe", "inputs": []}'),
    Case("body.empty", BODY, lambda *_: b""),
    Case("body.array", BODY, lambda *_: []),
    Case("body.null", BODY, lambda *_: b"null"),
    Case("body.no-inputs", '"inputs" : [ $request_input, ... ]', lambda *_: {"id": "1"}),
    Case("body.inputs-no-array", '"inputs" : [ $request_input, ... ]', lambda *_: {"inputs": 5}),
    Case("body.outputs-no-array", '"outputs" : [ $request_output, ... ]', lambda m, _: {**m, "outputs": "all"}),
    Case("body.id-no-string", '"id" : $string', lambda m, _: {**m, "id": ["1"]}, BEYOND),
]

each_case = pytest.mark.parametrize("case", CASES, ids=str)


def refused(model: Model, body: bytes) -> Answer:
    model.needs_json()
    return model.server.ask("POST", model.infer_path(), body)


# A case that is beyond the specification does not fail the run, like other checks beyond it.
@check("error.{case}", REQUIRED, ERROR)
@each_case
def test_an_error_says_what_is_wrong(first: Model, case: Case, request: pytest.FixtureRequest) -> None:
    if case.part == BEYOND:
        request.applymarker(pytest.mark.xfail(reason="beyond the specification", strict=False))
    assert_error(refused(first, case.body(first)))


@check("error.4xx", BEYOND, "an HTTP error status (typically 400)")
@each_case
def test_a_clients_mistake_is_not_the_servers(first: Model, case: Case) -> None:
    status = refused(first, case.body(first)).status
    assert 400 <= status < 500 or case.part == BEYOND, f"{case}: {status}"


@check("error.next", REQUIRED, "The “server live” API indicates if the inference server is able to receive requests")
@each_case
def test_the_next_request_is_answered(first: Model, case: Case) -> None:
    refused(first, case.body(first))
    good(first.send(first.request()))


@check("error.model.unknown", REQUIRED, ERROR)
def test_an_unknown_model(first: Model) -> None:
    assert_error(first.server.ask("POST", "v2/models/no-such-model/infer", first.request().message))


@check("error.version.unknown", REQUIRED, ERROR)
def test_an_unknown_version(first: Model) -> None:
    assert_error(first.send(first.request(), version="987654321"))


@check("error.method", REQUIRED, "| Inference | POST |")
def test_a_wrong_method(first: Model) -> None:
    assert first.server.ask("GET", first.infer_path()).status >= 400
    assert first.server.ask("DELETE", first.path).status >= 400


@check("error.method.405", BEYOND, "RFC 9110: 405, whose header Allow names the methods that there are")
def test_a_wrong_method_is_told_the_right_one(first: Model) -> None:
    answer = first.server.ask("GET", first.infer_path())
    assert answer.status == 405 and "POST" in answer.headers.get("allow", "")


@check("error.route", REQUIRED, "| API | Verb | Path |")
def test_an_unknown_route(first: Model) -> None:
    assert first.server.ask("GET", "v2/no-such-route").status >= 400


@check("error.route.body", BEYOND, '{ "error": $string }')
def test_an_unknown_route_has_an_error_like_all_others(first: Model) -> None:
    assert_error(first.server.ask("GET", "v2/no-such-route"))
    assert_error(first.server.ask("GET", first.infer_path()))


@check("error.model.odd-names", REQUIRED, "The model name and (optionally) version must be available in the URL.")
@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "%00", "%ff", "a%0d%0ab", "%22%3cb%3e", "x" * 2000])
def test_names_that_no_model_has(first: Model, name: str) -> None:
    assert first.server.ask("GET", f"v2/models/{name}").status >= 400
    good(first.send(first.request()))


@check("error.connection", BEYOND, "RFC 9112: after an error the connection serves the next request, or is closed")
def test_a_connection_is_used_again_after_an_error(first: Model) -> None:
    first.needs_json()
    body, headers = first.request().encode()
    with Connection(first.server.address) as connection:
        for _ in range(3):
            assert_error(connection.ask("POST", first.infer_path(), b"{", headers))
            first.outputs_of(connection.ask("POST", first.infer_path(), body, headers))
