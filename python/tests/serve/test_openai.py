"""`tenure serve`, asked by OpenAI's client for embeddings of texts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .serving import PROGRAM, needs_program, serving

openai = pytest.importorskip("openai", reason="pip install openai")

ENCODER = Path(__file__).resolve().parents[3] / "crates/tenure-nn/tests/goldens/tiny_bert"
TEXTS = ["a cat on a mat", "a dog", "nothing at all of the kind"]

pytestmark = needs_program


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    """Yields a client of a server with a tiny encoder and its tokenizer."""
    models = tmp_path / "models"
    subprocess.run([PROGRAM, "models", "init", models, "--encoder", ENCODER], check=True, capture_output=True)
    with serving(models) as address, openai.OpenAI(base_url=f"http://{address}/v1", api_key="none") as client:
        yield client


def vectors(answer: Any) -> Any:
    assert [vector.index for vector in answer.data] == list(range(len(answer.data)))
    return np.array([vector.embedding for vector in answer.data], dtype=np.float32)


def test_models_are_listed(client: Any) -> None:
    assert {model.id for model in client.models.list()} == {"digits", "next-byte", "tiny_bert"}
    assert client.models.retrieve("tiny_bert").id == "tiny_bert"


def test_vectors_are_those_of_the_encoder(client: Any) -> None:
    # The client requests base64 by default.
    answer = client.embeddings.create(model="tiny_bert", input=TEXTS)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)
    said = subprocess.run([PROGRAM, "embed", "--weights", ENCODER, *TEXTS], check=True, capture_output=True, text=True)
    assert np.allclose(vectors(answer), [json.loads(line) for line in said.stdout.splitlines()], atol=1e-5)
    floats = client.embeddings.create(model="tiny_bert", input=TEXTS, encoding_format="float")
    assert np.array_equal(vectors(answer), vectors(floats))
    for place, text in enumerate(TEXTS):
        alone = client.embeddings.create(model="tiny_bert", input=text)
        assert np.allclose(vectors(alone)[0], vectors(answer)[place], atol=1e-5)


def test_a_shorter_vector_has_length_one(client: Any) -> None:
    whole = vectors(client.embeddings.create(model="tiny_bert", input=TEXTS))
    short = vectors(client.embeddings.create(model="tiny_bert", input=TEXTS, dimensions=3))
    assert np.allclose(short, whole[:, :3] / np.linalg.norm(whole[:, :3], axis=1, keepdims=True), atol=1e-6)


def test_tokens_have_vectors(client: Any) -> None:
    lists = vectors(client.embeddings.create(model="tiny_bert", input=[[1, 2, 3], [4]]))
    alone = vectors(client.embeddings.create(model="tiny_bert", input=[1, 2, 3]))
    assert lists.shape[0] == 2 and np.allclose(lists[0], alone[0], atol=1e-5)


def test_errors_are_understood(client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="absent", input="a")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    for model, given, param in (("tiny_bert", "", "input"), ("tiny_bert", [], "input"), ("digits", "a", "model")):
        with pytest.raises(openai.BadRequestError) as wrong:
            client.embeddings.create(model=model, input=given)
        assert (wrong.value.type, wrong.value.param) == ("invalid_request_error", param)
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model="tiny_bert", input=[[100_000]])
