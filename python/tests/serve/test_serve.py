"""`tenure serve`, asked by Triton's client."""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from .serving import needs_program, with_bias
from .serving import serving as serving_at

http = pytest.importorskip("tritonclient.http", reason="pip install 'tritonclient[http]'")

pytestmark = needs_program


@contextmanager
def serving(models: Path, *args: str) -> Iterator[Any]:
    """Yields a client of a new server."""
    with serving_at(models, *args) as address:
        client = http.InferenceServerClient(address)
        yield client
        client.close()


def tensor(name: str, values: NDArray[Any], *, binary: bool = True) -> Any:
    datatype = {"float32": "FP32", "int64": "INT64"}[values.dtype.name]
    tensor = http.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=binary)
    return tensor


def test_a_server_and_its_models_say_what_they_are(models: Path) -> None:
    with serving(models) as client:
        assert client.is_server_live() and client.is_server_ready()
        assert client.get_server_metadata()["name"] == "tenure"
        index = {model["name"]: model["state"] for model in client.get_model_repository_index()}
        assert len(index) == 3 and set(index.values()) == {"READY"}
        metadata = client.get_model_metadata("digits")
        assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 28, 28]}]
        assert metadata["outputs"] == [{"name": "scores", "datatype": "FP32", "shape": [-1, 10]}]


def test_an_answer_is_the_same_in_json_and_in_bytes(models: Path) -> None:
    image = np.random.default_rng(1).random((2, 1, 28, 28), dtype=np.float32)
    with serving(models) as client:
        answers = [
            client.infer(
                "digits",
                [tensor("image", image, binary=binary)],
                outputs=[http.InferRequestedOutput("scores", binary_data=binary)],
            ).as_numpy("scores")
            for binary in (True, False)
        ]
        assert answers[0].shape == (2, 10)
        assert np.array_equal(*answers)
        tokens = np.array([[72, 101, 108, 108, 111]])
        assert client.infer("next-byte", [tensor("tokens", tokens)]).as_numpy("scores").shape == (1, 5, 256)


def test_a_sentence_encoder_makes_vectors_of_length_one(models: Path) -> None:
    with serving(models) as client:
        names = {model["name"] for model in client.get_model_repository_index()}
        (name,) = names - {"digits", "next-byte"}
        tokens, mask = np.array([[101, 7, 102, 0], [101, 7, 9, 102]]), np.array([[1, 1, 1, 0], [1, 1, 1, 1]])
        inputs = [tensor("input_ids", tokens), tensor("attention_mask", mask)]
        vectors = client.infer(name, inputs).as_numpy("sentence_embedding")
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1)


def test_five_models_with_memory_for_two(models: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    crowded = tmp_path / "crowded"
    biases = {f"model-{number}": generator.random(10, dtype=np.float32) for number in range(5)}
    for name, bias in biases.items():
        shutil.copytree(models / "digits", crowded / name)
        weights = crowded / name / "model.safetensors"
        weights.write_bytes(with_bias(weights, bias))
    memory = (crowded / "model-0" / "model.safetensors").stat().st_size * 5 // 2
    image = generator.random((1, 1, 28, 28), dtype=np.float32)
    names = random.Random(3).choices(sorted(biases), k=60)
    with serving(crowded, "--device-bytes", str(memory)) as client:
        for name in names:
            answer = client.infer(name, [tensor("image", image)]).as_numpy("scores")
            assert np.array_equal(answer[0], biases[name]), name


def test_errors_are_understood(models: Path) -> None:
    def reason(*args: Any) -> str:
        with pytest.raises(http.InferenceServerException) as caught:
            client.infer(*args)
        return str(caught.value.message())

    tokens = np.array([[1, 2, 3]])
    with serving(models) as client:
        assert "unknown model" in reason("absent", [tensor("tokens", tokens)])
        assert "the model takes FP32" in reason("digits", [tensor("image", tokens)])
        assert "out of range" in reason("next-byte", [tensor("tokens", tokens + 1000)])
        client.unload_model("next-byte")
        assert not client.is_model_ready("next-byte")
        assert "it was unloaded" in reason("next-byte", [tensor("tokens", tokens)])
        client.load_model("next-byte")
        assert client.infer("next-byte", [tensor("tokens", tokens)]).as_numpy("scores").shape == (1, 3, 256)


def test_a_model_says_its_configuration(models: Path) -> None:
    with serving(models) as client:
        assert "model_configuration" in client.get_server_metadata()["extensions"]
        config = client.get_model_config("digits")
        assert config == client.get_model_config("digits", "1")
        assert (config["name"], config["backend"], config["max_batch_size"]) == ("digits", "tenure", 16)
        assert config["input"] == [{"name": "image", "data_type": "TYPE_FP32", "dims": [1, 28, 28]}]
        assert config["output"] == [{"name": "scores", "data_type": "TYPE_FP32", "dims": [10]}]


def test_statistics_count_requests_and_rows(models: Path) -> None:
    with serving(models) as client:
        for rows in (1, 2, 2):
            client.infer("digits", [tensor("image", np.zeros((rows, 1, 28, 28), np.float32))])
        with pytest.raises(http.InferenceServerException):
            client.infer("digits", [tensor("image", np.array([[1]]))])
        (digits,) = client.get_inference_statistics("digits")["model_stats"]
        assert (digits["inference_count"], digits["execution_count"]) == (5, 3)
        assert digits["last_inference"] > 0
        counts = {name: times["count"] for name, times in digits["inference_stats"].items()}
        assert (counts["success"], counts["fail"], counts["queue"], counts["compute_infer"]) == (3, 1, 3, 3)
        assert {batch["batch_size"]: batch["compute_infer"]["count"] for batch in digits["batch_stats"]} == {1: 1, 2: 2}
        assert len(client.get_inference_statistics()["model_stats"]) == 3


@contextmanager
def region(client: Any, shared_memory: Any, name: str, byte_size: int) -> Iterator[Any]:
    """Registers shared memory with the server under a name."""
    key = f"/tenure-test-{uuid.uuid4()}"
    handle = shared_memory.create_shared_memory_region(name, key, byte_size)
    try:
        client.register_system_shared_memory(name, key, byte_size)
        yield handle
        client.unregister_system_shared_memory(name)
    finally:
        shared_memory.destroy_shared_memory_region(handle)


def test_tensors_may_be_in_shared_memory(models: Path) -> None:
    shared_memory = pytest.importorskip("tritonclient.utils.shared_memory", reason="the client has no shared memory")
    image = np.random.default_rng(4).random((2, 1, 28, 28), dtype=np.float32)
    with serving(models) as client:
        expected = client.infer("digits", [tensor("image", image)]).as_numpy("scores")
        with (
            region(client, shared_memory, "in", image.nbytes) as inputs,
            region(client, shared_memory, "out", expected.nbytes) as outputs,
        ):
            assert {status["name"] for status in client.get_system_shared_memory_status()} == {"in", "out"}
            shared_memory.set_shared_memory_region(inputs, [image])
            asked, wanted = http.InferInput("image", list(image.shape), "FP32"), http.InferRequestedOutput("scores")
            asked.set_shared_memory("in", image.nbytes)
            wanted.set_shared_memory("out", expected.nbytes)
            output = client.infer("digits", [asked], outputs=[wanted]).get_output("scores")
            scores = shared_memory.get_contents_as_numpy(outputs, np.float32, output["shape"])
            assert np.array_equal(scores, expected)
            asked.set_shared_memory("in", image.nbytes, offset=4)
            with pytest.raises(http.InferenceServerException, match='region "in" has 6272 bytes'):
                client.infer("digits", [asked], outputs=[wanted])
        assert client.get_system_shared_memory_status() == []
