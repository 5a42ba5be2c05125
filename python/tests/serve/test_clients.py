"""Third parties' clients, each with five models of `tenure serve` in memory for two.

Clients that are not installed are skipped. All of them: `pip install '.[clients]'`, or `just clients`.

The protocol's schemas are those of `open-inference-openapi`, which is generated from the official OpenAPI file. To
check that file itself, name it in `TENURE_OPENAPI`: `specification/protocol/open_inference_rest.yaml` in the repository
kserve/open-inference-protocol.

`perf_analyzer` is run if `TENURE_PERF_ANALYZER` names it. It is `bin/perf_analyzer` in the `manylinux1` wheel of
tritonclient 2.50.0. It needs Debian's libb64-0d, and libcudart of nvidia-cuda-runtime-cu12 in `LD_LIBRARY_PATH`.
"""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from .serving import PROGRAM, needs_program, serving, serving_both

pytestmark = needs_program

ENCODER = Path(__file__).resolve().parents[3] / "crates/tenure-nn/tests/goldens/tiny_bert"
TEXTS = ["a cat on a mat", "a dog"]
DATATYPES = {"float32": "FP32", "int64": "INT64"}

Inputs: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Served:
    """A server with five models in memory for two, and the answers of a server with memory for all."""

    grpc: str
    http: str
    inputs: dict[str, Inputs]
    expected: dict[str, NDArray[np.float32]]
    vectors: NDArray[np.float32]

    def switches(self) -> int:
        """Returns how often weights were loaded so far."""
        text = urllib.request.urlopen(f"http://{self.http}/metrics").read().decode()
        return sum(int(float(count)) for count in re.findall(r"^tenure_switches_total\{.*\} (\S+)$", text, re.M))

    def order(self) -> list[str]:
        """Returns names of models in an order in which most are not in memory when they are asked."""
        return random.Random(1).choices(sorted(self.inputs), k=25)

    def check(self, ask: Callable[[str, Inputs], NDArray[Any]]) -> None:
        """Asks the models in that order, and compares their answers."""
        before = self.switches()
        for name in self.order():
            answer = ask(name, self.inputs[name])
            assert answer.dtype == np.float32 and answer.shape == self.expected[name].shape, name
            assert np.array_equal(answer, self.expected[name]), name
        assert self.switches() > before


def varied(weights: Path, seed: int) -> None:
    """Scales all weights a little, so that models of one kind give different answers."""
    content = bytearray(weights.read_bytes())
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    values = np.frombuffer(content, np.float32, offset=begin)
    content[begin:] = (values * np.float32(1 + seed / 16)).tobytes()
    weights.write_bytes(content)


def plainly(address: str, model: str, inputs: Inputs) -> NDArray[np.float32]:
    """Returns an answer in JSON, received without a client library."""
    tensors = [
        {"name": name, "datatype": DATATYPES[values.dtype.name], "shape": values.shape, "data": values.ravel().tolist()}
        for name, values in inputs.items()
    ]
    url = f"http://{address}/v2/models/{model}/infer"
    answer = json.load(urllib.request.urlopen(url, json.dumps({"inputs": tensors}).encode()))
    (output,) = answer["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    examples, models = (tmp_path_factory.mktemp("clients") / name for name in ("examples", "models"))
    subprocess.run([PROGRAM, "models", "init", examples, "--encoder", ENCODER], check=True, capture_output=True)
    generator = np.random.default_rng(1)
    tokens = np.array([[5, 3, 7, 0], [5, 3, 7, 9]])
    of_kind: dict[str, Callable[[], Inputs]] = {
        "digits": lambda: {"image": generator.random((2, 1, 28, 28), dtype=np.float32)},
        "next-byte": lambda: {"tokens": generator.integers(0, 256, (1, 5))},
        "tiny_bert": lambda: {"input_ids": tokens, "attention_mask": (tokens > 0).astype(np.int64)},
    }
    inputs: dict[str, Inputs] = {}
    for kind, count in ("digits", 2), ("next-byte", 2), ("tiny_bert", 1):
        for number in range(count):
            name = f"{kind}-{number}"
            shutil.copytree(examples / kind, models / name)
            varied(models / name / "model.safetensors", number)
            inputs[name] = of_kind[kind]()
    sizes = sorted((models / name / "model.safetensors").stat().st_size for name in inputs)
    with serving(models) as roomy:
        expected = {name: plainly(roomy, name, inputs[name]) for name in inputs}
        asked = json.dumps({"model": "tiny_bert-0", "input": TEXTS}).encode()
        request = urllib.request.Request(f"http://{roomy}/v1/embeddings", asked, {"Content-Type": "application/json"})
        vectors = [vector["embedding"] for vector in json.load(urllib.request.urlopen(request))["data"]]
    with serving_both(models, "--device-bytes", str(sum(sizes[-2:])), "--grpc-port", "0") as (grpc, http):
        yield Served(grpc, http, inputs, expected, np.array(vectors, np.float32))


def triton_inputs(module: Any, inputs: Inputs) -> list[Any]:
    tensors = []
    for name, values in inputs.items():
        tensors.append(module.InferInput(name, list(values.shape), DATATYPES[values.dtype.name]))
        tensors[-1].set_data_from_numpy(values)
    return tensors


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient(served: Served, protocol: str) -> None:
    module = pytest.importorskip(f"tritonclient.{protocol}", reason=f"pip install 'tritonclient[{protocol}]'")
    with module.InferenceServerClient(getattr(served, protocol)) as client:
        served.check(lambda model, inputs: first(client.infer(model, triton_inputs(module, inputs))))
        for name, inputs in served.inputs.items():
            metadata = client.get_model_metadata(name, **({"as_json": True} if protocol == "grpc" else {}))
            assert metadata["name"] == name and {tensor["name"] for tensor in metadata["inputs"]} == set(inputs)
        with pytest.raises(module.InferenceServerException, match="unknown model"):
            client.infer("absent", triton_inputs(module, served.inputs["digits-0"]))


def first(answer: Any) -> NDArray[Any]:
    """Returns the only output of Triton's answer, whose name differs between JSON and protobuf."""
    response = answer.get_response()
    (output,) = response["outputs"] if isinstance(response, dict) else response.outputs
    values: NDArray[Any] = answer.as_numpy(output["name"] if isinstance(output, dict) else output.name)
    return values


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_requests_of_tritonclient_at_once(served: Served, protocol: str) -> None:
    module = pytest.importorskip(f"tritonclient.{protocol}.aio", reason=f"pip install 'tritonclient[{protocol}]'")

    async def ask() -> list[Any]:
        async with module.InferenceServerClient(getattr(served, protocol)) as client:
            asked = (client.infer(name, triton_inputs(module, served.inputs[name])) for name in served.order())
            return await asyncio.gather(*asked)

    for name, answer in zip(served.order(), asyncio.run(ask()), strict=True):
        # Requests that wait together are computed in one batch, whose sums may have another order.
        assert np.allclose(first(answer), served.expected[name], rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_kserve(served: Served, protocol: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("kserve") is None:
        pytest.skip("pip install kserve")
    questions, answers = tmp_path / "questions.npz", tmp_path / "answers.npz"
    tensors = {f"{model}/{name}": values for model, inputs in served.inputs.items() for name, values in inputs.items()}
    np.savez(questions, allow_pickle=False, **tensors)
    before = served.switches()
    program = [sys.executable, str(Path(__file__).with_name("kserve_asking.py"))]
    subprocess.run([*program, protocol, getattr(served, protocol), questions, answers], check=True)
    with np.load(answers) as answered:
        assert set(answered.files) == set(served.expected)
        for name, expected in served.expected.items():
            assert np.array_equal(answered[name].astype(np.float32), expected), name
    assert served.switches() > before


def test_open_inference_client(served: Served) -> None:
    openapi = pytest.importorskip("open_inference.openapi.client", reason="pip install open-inference-openapi")
    core = pytest.importorskip("open_inference.openapi.core.api_error", reason="pip install open-inference-openapi")
    errors = pytest.importorskip("open_inference.openapi.errors", reason="pip install open-inference-openapi")
    types = pytest.importorskip("open_inference.openapi.types", reason="pip install open-inference-openapi")
    client = openapi.OpenInferenceClient(base_url=f"http://{served.http}")
    client.check_server_liveness()
    client.check_server_readiness()
    assert client.read_server_metadata().name == "tenure"

    def request(inputs: Inputs) -> Any:
        tensors = [
            types.RequestInput(
                name=name,
                shape=list(values.shape),
                datatype=DATATYPES[values.dtype.name],
                data=types.TensorData.parse_obj(values.ravel().tolist()),
            )
            for name, values in inputs.items()
        ]
        return types.InferenceRequest(id="7", inputs=tensors)

    def ask(model: str, inputs: Inputs) -> NDArray[Any]:
        client.check_model_readiness(model)
        answer = client.model_infer(model, request=request(inputs))
        assert (answer.id, answer.model_name) == ("7", model)
        (output,) = answer.outputs
        return np.array(output.data.__root__, np.float32).reshape(output.shape)

    served.check(ask)
    for name, inputs in served.inputs.items():
        assert {tensor.name for tensor in client.read_model_metadata(name).inputs} == set(inputs)
    with pytest.raises(core.ApiError) as missing:
        client.read_model_metadata("absent")
    assert missing.value.status_code == 404 and "unknown model" in missing.value.body["error"]
    with pytest.raises(errors.BadRequestError, match="the model takes FP32"):
        client.model_infer("digits-0", request=request({"image": np.array([[1]])}))


def test_openai(served: Served) -> None:
    openai = pytest.importorskip("openai", reason="pip install openai")
    with openai.OpenAI(base_url=f"http://{served.http}/v1", api_key="none") as client:
        assert {model.id for model in client.models.list()} == set(served.inputs)
        for name in served.order():
            # Requests for other models evict the encoder.
            assert np.array_equal(plainly(served.http, name, served.inputs[name]), served.expected[name]), name
            answer = client.embeddings.create(model="tiny_bert-0", input=TEXTS)
            assert np.array_equal(np.array([vector.embedding for vector in answer.data], np.float32), served.vectors)
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="absent", input="a")


def openapi_of_the_protocol(models: list[str]) -> dict[str, Any]:
    """Returns the protocol's required routes as OpenAPI, with the schemas of the client's types."""
    names_of = {"model": models, "version": ["1"]}
    types = pytest.importorskip("open_inference.openapi.types", reason="pip install open-inference-openapi")
    schemas: dict[str, Any] = {}
    for name in "InferenceRequest", "InferenceResponse", "MetadataModelResponse", "MetadataServerResponse":
        schema = getattr(types, name).schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("definitions", {}) | {name: schema}

    def operation(answer: str | None, request: str | None, parameters: list[str]) -> dict[str, Any]:
        def content(schema: str) -> dict[str, Any]:
            return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}

        described: dict[str, Any] = {
            "responses": {"200": {"description": "OK"} | (content(answer) if answer else {})},
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"anyOf": [known, {"type": "string"}]}}
                for name, known in ((name, {"type": "string", "enum": names_of[name]}) for name in parameters)
            ],
        }
        return described | ({"requestBody": {"required": True} | content(request)} if request else {})

    paths: dict[str, Any] = {
        "/v2": {"get": operation("MetadataServerResponse", None, [])},
        "/v2/health/live": {"get": operation(None, None, [])},
        "/v2/health/ready": {"get": operation(None, None, [])},
    }
    for path, names in (
        ("/v2/models/{model}", ["model"]),
        ("/v2/models/{model}/versions/{version}", ["model", "version"]),
    ):
        paths[path] = {"get": operation("MetadataModelResponse", None, names)}
        paths[f"{path}/ready"] = {"get": operation(None, None, names)}
        paths[f"{path}/infer"] = {"post": operation("InferenceResponse", "InferenceRequest", names)}
    info = {"title": "Open Inference Protocol", "version": "2.0"}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def test_no_request_of_schemathesis_fails_the_server(served: Served, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="pip install schemathesis")
    official = os.environ.get("TENURE_OPENAPI")
    schema = Path(official) if official else tmp_path / "protocol.json"
    if not official:
        schema.write_text(json.dumps(openapi_of_the_protocol(sorted(served.inputs))))
    program = shutil.which("schemathesis") or shutil.which("schemathesis", path=Path(sys.executable).parent)
    assert program is not None
    checks = "not_a_server_error,response_schema_conformance,content_type_conformance"
    command = [program, "run", str(schema), "--url", f"http://{served.http}", "--checks", checks]
    command += ["--max-examples", "100", "--seed", "1", "--generation-deterministic", "--no-color"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    served.check(lambda model, inputs: plainly(served.http, model, inputs))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("memory", ["none", "system"])
def test_perf_analyzer(served: Served, tmp_path: Path, memory: str, protocol: str) -> None:
    program = os.environ.get("TENURE_PERF_ANALYZER")
    if program is None:
        pytest.skip("TENURE_PERF_ANALYZER does not name perf_analyzer of tritonclient 2.50.0")
    # Without this file, perf_analyzer would make up tokens that are out of range.
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"data": [{"tokens": {"content": list(range(16)), "shape": [16]}}]}))
    for model, data in ("digits-0", []), ("next-byte-1", ["--input-data", str(tokens)]):
        report = tmp_path / f"{model}.csv"
        command = [
            program,
            "-m",
            model,
            "-u",
            getattr(served, protocol),
            "-i",
            protocol,
            "-b",
            "1",
            "-f",
            str(report),
            *data,
        ]
        command += ["--shared-memory", memory, "--output-shared-memory-size", "16384"]
        command += ["--measurement-mode", "count_windows", "--measurement-request-count", "50"]
        command += ["--stability-percentage", "999", "--max-trials", "3"]
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        (row,) = csv.DictReader(report.read_text().splitlines())
        assert float(row["Inferences/Second"]) > 0
        print(f"{model}, {protocol}, shared memory {memory}: {row}")
    served.check(lambda model, inputs: plainly(served.http, model, inputs))
