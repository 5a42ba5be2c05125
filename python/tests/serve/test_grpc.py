"""`tenure serve` over gRPC, asked by Triton's client: the answers are those over HTTP."""

from __future__ import annotations

import queue
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from .serving import needs_program, serving_both

http = pytest.importorskip("tritonclient.http", reason="pip install 'tritonclient[http]'")
grpc = pytest.importorskip("tritonclient.grpc", reason="pip install 'tritonclient[grpc]'")
service = pytest.importorskip("tritonclient.grpc.service_pb2", reason="pip install 'tritonclient[grpc]'")
stubs = pytest.importorskip("tritonclient.grpc.service_pb2_grpc", reason="pip install 'tritonclient[grpc]'")
channels = pytest.importorskip("grpc", reason="pip install 'tritonclient[grpc]'")

pytestmark = needs_program


@contextmanager
def asking(models: Path, *args: str) -> Iterator[tuple[Any, Any, str]]:
    """Yields a client each for gRPC and HTTP of one server, and its address for gRPC."""
    with serving_both(models, "--grpc-port", "0", *args) as (address, http_address):
        clients = grpc.InferenceServerClient(address), http.InferenceServerClient(http_address)
        yield *clients, address
        for client in clients:
            client.close()


def tensor(module: Any, name: str, values: NDArray[Any]) -> Any:
    datatype = {"float32": "FP32", "int64": "INT64"}[values.dtype.name]
    tensor = module.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values)
    return tensor


def as_protobuf(said: Any) -> Any:
    """Converts JSON to protobuf's form: 64-bit numbers are text, and empty values are left out."""
    if isinstance(said, dict):
        return {name: as_protobuf(value) for name, value in said.items() if value not in ("", [])}
    return [as_protobuf(value) for value in said] if isinstance(said, list) else str(said)


def images() -> NDArray[np.float32]:
    return np.random.default_rng(1).random((2, 1, 28, 28), dtype=np.float32)


def test_a_server_and_its_models_say_the_same(models: Path) -> None:
    with asking(models) as (client, other, _):
        assert client.is_server_live() and client.is_server_ready()
        metadata = other.get_server_metadata()
        # Over gRPC, tensors as bytes are not an extension but standard.
        metadata["extensions"].remove("binary_tensor_data")
        assert client.get_server_metadata(as_json=True) == as_protobuf(metadata)
        assert client.get_model_metadata("digits", as_json=True) == as_protobuf(other.get_model_metadata("digits"))
        index = client.get_model_repository_index(as_json=True)["models"]
        assert index == as_protobuf(other.get_model_repository_index())
        names = [model["name"] for model in index]
        assert len(names) == 3
        for name in (*names, "absent"):
            assert client.is_model_ready(name) == other.is_model_ready(name) == (name != "absent")


def test_configurations_and_statistics_are_those_of_http(models: Path) -> None:
    def numbers(said: Any) -> Any:
        """Converts JSON to protobuf's form, which also leaves out numbers that are 0."""
        if isinstance(said, dict):
            return {name: numbers(value) for name, value in said.items() if value not in ("", "0", 0, [])}
        return [numbers(value) for value in said] if isinstance(said, list) else str(said)

    with asking(models) as (client, other, _):
        client.infer("digits", [tensor(grpc, "image", images())])
        for name in ("digits", "next-byte"):
            config = numbers(client.get_model_config(name, as_json=True)["config"])
            assert config == numbers(other.get_model_config(name))
            statistics = client.get_inference_statistics(name, as_json=True)
            assert numbers(statistics) == numbers(other.get_inference_statistics(name))
        assert len(client.get_inference_statistics().model_stats) == 3


def test_tensors_may_be_in_shared_memory(models: Path) -> None:
    memory = pytest.importorskip("tritonclient.utils.shared_memory", reason="the client has no shared memory")
    image = images()
    with asking(models) as (client, other, _):
        expected = other.infer("digits", [tensor(http, "image", image)]).as_numpy("scores")
        keys = {name: f"/tenure-test-{uuid.uuid4()}" for name in ("in", "out")}
        regions = [memory.create_shared_memory_region(name, key, 1 << 13) for name, key in keys.items()]
        try:
            for name, key in keys.items():
                client.register_system_shared_memory(name, key, 1 << 13)
            assert set(client.get_system_shared_memory_status().regions) == {"in", "out"}
            memory.set_shared_memory_region(regions[0], [image])
            asked, wanted = grpc.InferInput("image", list(image.shape), "FP32"), grpc.InferRequestedOutput("scores")
            asked.set_shared_memory("in", image.nbytes)
            wanted.set_shared_memory("out", expected.nbytes)
            output = client.infer("digits", [asked], outputs=[wanted]).get_output("scores")
            scores = memory.get_contents_as_numpy(regions[1], np.float32, list(output.shape))
            assert np.array_equal(scores, expected)
            client.unregister_system_shared_memory()
            assert not client.get_system_shared_memory_status().regions
        finally:
            for region in regions:
                memory.destroy_shared_memory_region(region)


@pytest.mark.parametrize("packing", [None, "gzip", "deflate"])
def test_an_answer_is_that_of_http(models: Path, packing: str | None) -> None:
    with asking(models) as (client, other, _):
        answer = client.infer(
            "digits", [tensor(grpc, "image", images())], request_id="7", compression_algorithm=packing
        )
        expected = other.infer("digits", [tensor(http, "image", images())])
        assert answer.get_response().id == "7"
        assert np.array_equal(answer.as_numpy("scores"), expected.as_numpy("scores"))
        wanted = [grpc.InferRequestedOutput("scores")]
        again = client.infer("digits", [tensor(grpc, "image", images())], outputs=wanted, timeout=60_000_000)
        assert np.array_equal(again.as_numpy("scores"), expected.as_numpy("scores"))


def test_numbers_in_the_message_are_answered_with_numbers(models: Path) -> None:
    with asking(models) as (client, _, address), channels.insecure_channel(address) as channel:
        tokens = np.array([[72, 101, 108]])
        expected = client.infer("next-byte", [tensor(grpc, "tokens", tokens)]).as_numpy("scores")
        request = service.ModelInferRequest(model_name="next-byte")
        asked = request.inputs.add(name="tokens", datatype="INT64", shape=tokens.shape)
        asked.contents.int64_contents.extend(tokens.flatten().tolist())
        answer = stubs.GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert not answer.raw_output_contents
        (scores,) = answer.outputs
        assert np.array_equal(np.array(scores.contents.fp32_contents, np.float32).reshape(scores.shape), expected)


def test_a_stream_answers_in_order(models: Path) -> None:
    with asking(models) as (client, _, _):
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for name in ("digits", "absent", "digits"):
            client.async_stream_infer(name, [tensor(grpc, "image", images())])
        said = [answers.get(timeout=300) for _ in range(3)]
        client.stop_stream()
        assert np.array_equal(*(said[at][0].as_numpy("scores") for at in (0, 2)))
        assert "unknown model" in str(said[1][1])


def test_errors_are_those_of_http(models: Path) -> None:
    def reason(module: Any, client: Any, model: str, name: str, values: NDArray[Any]) -> tuple[str, str]:
        with pytest.raises(module.InferenceServerException) as caught:
            client.infer(model, [tensor(module, name, values)])
        return str(caught.value.status()), str(caught.value.message())

    tokens = np.array([[1, 2, 3]])
    with asking(models) as (client, other, _):
        for code, args in (
            ("NOT_FOUND", ("absent", "tokens", tokens)),
            ("INVALID_ARGUMENT", ("digits", "image", tokens)),
            ("INVALID_ARGUMENT", ("next-byte", "tokens", tokens + 1000)),
        ):
            status, message = reason(grpc, client, *args)
            assert status == f"StatusCode.{code}", message
            assert message == reason(http, other, *args)[1]
        client.unload_model("next-byte")
        assert not client.is_model_ready("next-byte") and not other.is_model_ready("next-byte")
        status, message = reason(grpc, client, "next-byte", "tokens", tokens)
        assert status == "StatusCode.UNAVAILABLE" and "it was unloaded" in message
        client.load_model("next-byte")
        assert client.infer("next-byte", [tensor(grpc, "tokens", tokens)]).as_numpy("scores").shape == (1, 3, 256)


def test_a_client_without_a_token_is_refused(models: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    with asking(models, "--tokens", str(tokens)) as (client, _, _):
        assert client.is_server_live()
        with pytest.raises(grpc.InferenceServerException, match="the server asks for a token"):
            client.get_server_metadata()
        assert client.get_server_metadata(headers={"authorization": "Bearer secret"}).name == "tenure"
