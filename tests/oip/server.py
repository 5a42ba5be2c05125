"""A server under test and its models: their metadata, and requests that are made from it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote

import pytest
from tensors import DATATYPES, NO_JSON, Tensor, filled, of_bytes, of_json
from wire import Address, Answer, Connection

JSON_LENGTH = "Inference-Header-Content-Length"

# Sizes for dimensions that are -1, the first and the others. The first pair that a model answers is used.
SIZES = ((2, 3), (1, 8), (1, 1), (1, 32), (1, 224))

# The suffixes with which servers list extensions, and which the suite drops.
SUFFIXES = ("_extension",)


@dataclass
class Server:
    address: Address
    grpc: str | None = None
    shapes: dict[str, list[int]] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: Any = b"", headers: dict[str, str] | None = None) -> Answer:
        """Returns an answer, received on a connection of its own. A body that is not bytes is sent as JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        if raw:
            headers = {"Content-Type": "application/json", **(headers or {})}
        with Connection(self.address) as connection:
            return connection.ask(method, path, raw, headers)

    def get(self, path: str) -> Any:
        """Returns the JSON of an answer that must be good."""
        return good(self.ask("GET", path)).json()

    @cached_property
    def metadata(self) -> dict[str, Any]:
        answer = self.ask("GET", "v2")
        metadata = answer.json() if answer.status == 200 else {}
        return metadata if isinstance(metadata, dict) else {}

    @cached_property
    def extensions(self) -> set[str]:
        """Returns the extensions that the server lists."""
        listed = self.metadata.get("extensions")
        names = [str(name) for name in listed] if isinstance(listed, list) else []
        return {name.removesuffix(suffix) for name in names for suffix in SUFFIXES}

    def index(self) -> list[str]:
        """Returns the models that are ready, if the server has an index."""
        answer = self.ask("POST", "v2/repository/index", {"ready": True})
        entries = answer.json() if answer.status == 200 else []
        ready = [entry["name"] for entry in entries if entry.get("state", "READY") in ("READY", "")]
        return list(dict.fromkeys(ready))

    def model(self, name: str) -> Model:
        return Model(self, name)


def good(answer: Answer) -> Answer:
    assert answer.status == 200, f"status {answer.status}: {answer.body[:300]!r}"
    return answer


@dataclass
class Request:
    """A request for inference."""

    message: dict[str, Any]
    binary: bytes = b""

    def encode(self) -> tuple[bytes, dict[str, str]]:
        """Returns the body and its headers."""
        text = json.dumps(self.message).encode()
        if not self.binary:
            return text, {"Content-Type": "application/json"}
        headers = {"Content-Type": "application/octet-stream", JSON_LENGTH: str(len(text))}
        return text + self.binary, headers


class Model:
    """A model under test."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name
        self.path = f"v2/models/{quote(name, safe='')}"

    @cached_property
    def metadata(self) -> dict[str, Any]:
        return self.server.get(self.path)

    @property
    def inputs(self) -> list[dict[str, Any]]:
        return self.metadata["inputs"]

    @property
    def outputs(self) -> list[dict[str, Any]]:
        return self.metadata["outputs"]

    @cached_property
    def tensors(self) -> list[Tensor]:
        """Inputs that the model answers, of the first sizes for which it does."""
        for sizes in SIZES:
            tensors = [self._filled(spec, sizes) for spec in self.inputs]
            if self.send(self.request(tensors=tensors)).status == 200:
                return tensors
        return [self._filled(spec, SIZES[0]) for spec in self.inputs]

    def _filled(self, spec: dict[str, Any], sizes: tuple[int, int]) -> Tensor:
        first, other = sizes
        shape = [size if size >= 0 else (other if at else first) for at, size in enumerate(spec["shape"])]
        shape = self.server.shapes.get(spec["name"], shape)
        return filled(spec["name"], spec["datatype"], shape)

    def request(self, *, tensors: list[Tensor] | None = None, nested: bool = False, **message: Any) -> Request:
        """Makes a request with all inputs in JSON, except those whose datatype has no JSON form."""
        tensors = self.tensors if tensors is None else tensors
        binary = [tensor for tensor in tensors if tensor.datatype in NO_JSON]
        inputs = [tensor.binary() if tensor in binary else tensor.json(nested=nested) for tensor in tensors]
        if any(output["datatype"] in NO_JSON for output in self.outputs) and "outputs" not in message:
            message = {"parameters": {"binary_data_output": True}, **message}
        return Request({"inputs": inputs, **message}, b"".join(tensor.bytes() for tensor in binary))

    def binary_request(self, *, as_json: tuple[int, ...] = (), **message: Any) -> Request:
        """Makes a request with inputs as binary data, except those at the positions in `as_json`."""
        pairs = list(enumerate(self.tensors))
        inputs = [tensor.json() if at in as_json else tensor.binary() for at, tensor in pairs]
        data = b"".join(tensor.bytes() for at, tensor in pairs if at not in as_json)
        return Request({"inputs": inputs, **message}, data)

    def send(self, request: Request, *, version: str = "", headers: dict[str, str] | None = None) -> Answer:
        body, own = request.encode()
        return self.server.ask("POST", self.infer_path(version), body, {**own, **(headers or {})})

    def infer_path(self, version: str = "") -> str:
        return f"{self.path}/versions/{quote(version, safe='')}/infer" if version else f"{self.path}/infer"

    def infer(self, request: Request | None = None) -> dict[str, Tensor]:
        """Returns the outputs of an answer that must be good, by name."""
        return self.outputs_of(self.send(request or self.request()))

    def outputs_of(self, answer: Answer) -> dict[str, Tensor]:
        """Returns the outputs of an answer, and checks each against the answer and the metadata."""
        message, data = split(good(answer))
        assert message.get("model_name") == self.name, f"model_name is {message.get('model_name')!r}"
        assert isinstance(message.get("outputs"), list), "outputs is no array"
        found = {}
        for output in message["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size")
            if size is None:
                tensor = of_json(output)
            else:
                tensor, data = of_bytes(output, data[:size]), data[size:]
            self.check(tensor)
            found[tensor.name] = tensor
        assert not data, f"{len(data)} bytes behind the JSON are of no output"
        return found

    def check(self, tensor: Tensor) -> None:
        """Checks an output against the metadata."""
        known = {output["name"]: output for output in self.outputs}
        assert tensor.name in known, f"an output {tensor.name!r} that the metadata does not have"
        said = known[tensor.name]
        assert tensor.datatype == said["datatype"], f"{tensor.name!r} is {tensor.datatype}, not {said['datatype']}"
        fits = len(tensor.shape) == len(said["shape"]) and all(
            expected in (-1, size) for size, expected in zip(tensor.shape, said["shape"], strict=True)
        )
        assert fits, f"{tensor.name!r} has the shape {tensor.shape}, and the metadata says {said['shape']}"
        assert len(tensor.values) == math.prod(tensor.shape), f"{len(tensor.values)} elements of {tensor.shape}"

    def needs_json(self) -> None:
        """Skips a test of JSON tensors if some of the model's have no JSON form."""
        for spec in [*self.inputs, *self.outputs]:
            if spec["datatype"] in NO_JSON:
                pytest.skip(f"{spec['name']} is {spec['datatype']}, which has no form in JSON")

    def knows_datatypes(self) -> bool:
        return all(spec["datatype"] in DATATYPES for spec in [*self.inputs, *self.outputs])


def split(answer: Answer) -> tuple[dict[str, Any], bytes]:
    """Returns the JSON of an answer, and the bytes after it."""
    length = answer.headers.get(JSON_LENGTH.lower())
    end = len(answer.body) if length is None else int(length)
    message = Answer(answer.status, answer.headers, answer.body[:end]).json()
    return message, answer.body[end:]


def assert_error(answer: Answer) -> None:
    """Checks that an answer is an error in the protocol's form."""
    assert answer.status >= 400, f"status {answer.status}: {answer.body[:200]!r}"
    message = answer.json()
    text = message.get("error") if isinstance(message, dict) else None
    assert isinstance(text, str) and text, f"no error message: {answer.body[:200]!r}"
