"""Hugging Face folders that `tenure serve` runs with `transformers`."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from .serving import Server, needs_program, tensor

torch = pytest.importorskip("torch")

#: Two texts of 5 tokens, the second of which is padded.
IDS = [[5, 9, 3, 7, 2], [8, 4, 6, 0, 0]]
MASK = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]

SIZES = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
DECODER = SIZES | {"num_key_value_heads": 1, "head_dim": 8}

pytestmark = needs_program


@pytest.fixture
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="pip install transformers")


def save(folder: Path, model: Any) -> None:
    model.save_pretrained(folder)


def write_sentences(folder: Path, model: Any, pooling: dict[str, Any], *after: str, path: str = "") -> None:
    """Writes a folder of sentence-transformers, with the model and a tokenizer of words in its folder ``path``."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    save(folder / path, model)
    modules = ["Transformer", "Pooling", *after]
    paths = [path, *(f"{place}_{name}" for place, name in enumerate(modules) if place)]
    described = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{name}"}
        for place, (name, path) in enumerate(zip(modules, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(described))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 16} | pooling))
    words = {"[UNK]": 0, "a": 5, "cat": 9, "on": 3, "mat": 7, "dog": 2}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / path / "tokenizer.json"))


def serving(models: Path) -> Server:
    return Server(models, "--python", sys.executable)


def masked() -> list[dict[str, Any]]:
    return [
        tensor("input_ids", "INT64", [2, 5], sum(IDS, [])),
        tensor("attention_mask", "INT64", [2, 5], sum(MASK, [])),
    ]


def exactly(values: Any) -> list[bytes]:
    """Returns numbers as 32-bit floats, since JSON has each in the shortest form that reads back the same."""
    flat = values.flatten().tolist() if isinstance(values, torch.Tensor) else values
    return [struct.pack("<f", value) for value in flat]


def outputs(server: Server, model: str, *inputs: dict[str, Any]) -> dict[str, dict[str, Any]]:
    status, said, _ = server.request("POST", f"/v2/models/{model}/infer", {"inputs": inputs})
    assert status == 200, said
    return {output["name"]: output for output in said["outputs"]}


ARCHITECTURES = (
    ["Qwen3ForCausalLM", "DistilBertForSequenceClassification", "MistralForSequenceClassification", "Dinov2Model"],
    ["MistralForCausalLM", "Gemma2ForCausalLM", "RobertaModel", "BertForTokenClassification"]
    + ["XLMRobertaForQuestionAnswering", "ViTForImageClassification"],
)


@pytest.mark.parametrize(
    "architectures", [ARCHITECTURES[0], pytest.param(ARCHITECTURES[1], marks=pytest.mark.soak)], ids=["few", "others"]
)
def test_answers_are_those_of_transformers_bit_for_bit(
    architectures: list[str], tmp_path: Path, transformers: Any
) -> None:
    t = transformers
    torch.manual_seed(1)
    distilled = {"vocab_size": 30, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "num_labels": 3}
    image = {"image_size": 8, "patch_size": 4, "num_labels": 4} | {
        key: SIZES[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    }
    made = {
        "Qwen3ForCausalLM": t.Qwen3Config(**DECODER, tie_word_embeddings=True),
        "MistralForCausalLM": t.MistralConfig(**DECODER),
        "Gemma2ForCausalLM": t.Gemma2Config(**DECODER),
        "RobertaModel": t.RobertaConfig(**SIZES),
        "DistilBertForSequenceClassification": t.DistilBertConfig(**distilled),
        "BertForTokenClassification": t.BertConfig(**SIZES, num_labels=3),
        "XLMRobertaForQuestionAnswering": t.XLMRobertaConfig(**SIZES),
        "MistralForSequenceClassification": t.MistralConfig(**DECODER | {"pad_token_id": None, "num_labels": 3}),
        "ViTForImageClassification": t.ViTConfig(**image),
        "Dinov2Model": t.Dinov2Config(**image),
    }
    for name in architectures:
        save(tmp_path / name, getattr(t, name)(made[name]))
    pixels = torch.randn(2, 3, 8, 8)
    with serving(tmp_path) as server:
        assert server.index() == {name: ("READY", "") for name in architectures}
        for name in architectures:
            model = getattr(t, name).from_pretrained(tmp_path / name)
            if name in ("ViTForImageClassification", "Dinov2Model"):
                given, inputs = (
                    {"pixel_values": pixels},
                    [tensor("pixel_values", "FP32", [2, 3, 8, 8], pixels.flatten().tolist())],
                )
            elif name.endswith("CausalLM"):
                given, inputs = {"input_ids": torch.tensor(IDS)}, masked()[:1]
            else:
                given = {"input_ids": torch.tensor(IDS), "attention_mask": torch.tensor(MASK)}
                inputs = masked()
            with torch.inference_mode():
                if name == "MistralForSequenceClassification":
                    # Without a padding token, transformers takes one text at a time.
                    rows = [{key: each[row : row + 1] for key, each in given.items()} for row in (0, 1)]
                    expected = {"logits": torch.cat([model(**row).logits for row in rows])}
                else:
                    expected = model(**given)
            answers = outputs(server, name, *inputs)
            _, metadata, _ = server.request("GET", f"/v2/models/{name}")
            assert metadata["platform"] == "tenure_pytorch"
            assert [each["name"] for each in metadata["outputs"]] == list(answers)
            for output, answer in answers.items():
                assert answer["shape"] == list(expected[output].shape), name
                assert exactly(answer["data"]) == exactly(expected[output]), name


def test_weights_in_several_files_and_in_half_precision_are_served_as_they_are_stored(
    tmp_path: Path, transformers: Any
) -> None:
    torch.manual_seed(2)
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**DECODER)).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "m", max_shard_size="4KB")
    assert len(list((tmp_path / "m").glob("model-*.safetensors"))) > 1
    config = json.loads((tmp_path / "m/config.json").read_text())
    # The server uses the stored weights' types, and ignores these.
    (tmp_path / "m/config.json").write_text(json.dumps(config | {"dtype": "float32", "torch_dtype": "float32"}))
    inputs = {"inputs": masked()[:1], "outputs": [{"name": "logits", "parameters": {"binary_data": True}}]}
    with serving(tmp_path) as server:
        _, metadata, _ = server.request("GET", "/v2/models/m")
        assert [each["datatype"] for each in metadata["outputs"]] == ["BF16"]
        import urllib.request

        request = urllib.request.Request(f"http://{server.address}/v2/models/m/infer", json.dumps(inputs).encode())
        with urllib.request.urlopen(request, timeout=300) as answer:
            length = int(answer.headers["Inference-Header-Content-Length"])
            data = answer.read()[length:]
    with torch.inference_mode():
        expected = model.eval()(torch.tensor(IDS)).logits
    assert data == expected.view(torch.int16).numpy().tobytes()


def test_sentences_that_are_no_averages_have_vectors_of_texts_too(tmp_path: Path, transformers: Any) -> None:
    from safetensors.torch import save_file

    t = transformers
    torch.manual_seed(3)
    cls = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    write_sentences(tmp_path / "cls", t.BertModel(t.BertConfig(**SIZES)), cls, "Normalize")
    last = {"pooling_mode": "lasttoken"}
    decoder = t.Qwen3Model(t.Qwen3Config(**DECODER)).to(torch.bfloat16)
    write_sentences(tmp_path / "last", decoder, last, "Normalize", path="0_Transformer")
    mean = {"pooling_mode_mean_tokens": True}
    write_sentences(tmp_path / "dense", t.MPNetModel(t.MPNetConfig(**SIZES)), mean, "Dense")
    (tmp_path / "dense/2_Dense").mkdir()
    config = {
        "in_features": 16,
        "out_features": 4,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    (tmp_path / "dense/2_Dense/config.json").write_text(json.dumps(config))
    linear = torch.nn.Linear(16, 4)
    save_file(
        {f"linear.{name}": value for name, value in linear.state_dict().items()},
        tmp_path / "dense/2_Dense/model.safetensors",
    )

    ids, mask = torch.tensor(IDS), torch.tensor(MASK)
    with serving(tmp_path) as server, torch.inference_mode():
        hidden = t.BertModel.from_pretrained(tmp_path / "cls")(ids, mask).last_hidden_state
        expected = torch.nn.functional.normalize(hidden[:, 0])
        answer = outputs(server, "cls", *masked())["sentence_embedding"]
        assert answer["shape"] == [2, 16] and exactly(answer["data"]) == exactly(expected)

        hidden = t.MPNetModel.from_pretrained(tmp_path / "dense")(ids, mask).last_hidden_state
        mean = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        answer = outputs(server, "dense", *masked())["sentence_embedding"]
        assert exactly(answer["data"]) == exactly(torch.tanh(linear(mean)))

        def vectors(model: str) -> list[list[float]]:
            asked = {"model": model, "input": ["a cat on a mat", "a dog"]}
            status, said, _ = server.request("POST", "/v1/embeddings", asked)
            assert status == 200, said
            return [each["embedding"] for each in said["data"]]

        texts = torch.tensor([[5, 9, 3, 5, 7], [5, 2, 0, 0, 0]]), torch.tensor([[1] * 5, [1, 1, 0, 0, 0]])
        hidden = t.BertModel.from_pretrained(tmp_path / "cls")(*texts).last_hidden_state
        assert torch.allclose(torch.tensor(vectors("cls")), torch.nn.functional.normalize(hidden[:, 0]), atol=1e-6)
        decoder = t.Qwen3Model.from_pretrained(tmp_path / "last/0_Transformer", dtype=torch.bfloat16)
        hidden = decoder(*texts).last_hidden_state
        expected = torch.nn.functional.normalize(hidden[[0, 1], [4, 1]]).float()
        assert torch.allclose(torch.tensor(vectors("last")), expected, atol=1e-2)


def test_scores_of_classes_are_no_vectors_of_texts(tmp_path: Path, transformers: Any) -> None:
    save(tmp_path / "m", transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES)))
    with serving(tmp_path) as server:
        status, said, _ = server.request("POST", "/v1/embeddings", {"model": "m", "input": [1, 2]})
        assert status == 400 and said["error"]["message"] == 'the model "m" answers no vectors of texts'


def test_folders_whose_weights_or_inputs_are_others_are_broken(tmp_path: Path, transformers: Any) -> None:
    t = transformers
    save(tmp_path / "weights", t.RobertaModel(t.RobertaConfig(**SIZES)))
    sound = {"conv_dim": [8], "conv_stride": [2], "conv_kernel": [3], "num_conv_pos_embedding_groups": 1}
    save(tmp_path / "inputs", t.Wav2Vec2ForSequenceClassification(t.Wav2Vec2Config(**SIZES | sound)))
    save(tmp_path / "class", t.RobertaModel(t.RobertaConfig(**SIZES)))
    save(tmp_path / "kernels", t.RobertaModel(t.RobertaConfig(**SIZES)))

    def change(name: str, **keys: Any) -> None:
        file = tmp_path / name / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | keys))

    change("weights", architectures=["RobertaForSequenceClassification"])
    change("class", architectures=["NobodysForCausalLM"])
    change("kernels", attn_implementation="someone/kernels")
    with serving(tmp_path) as server:
        reasons = {name: reason for name, (_, reason) in server.index().items()}
        assert reasons["weights"] == (
            "the weights have no classifier.dense.bias, one of 4 that RobertaForSequenceClassification needs: has"
            " config.json the architectures of these weights?"
        )
        assert reasons["inputs"] == (
            "Wav2Vec2ForSequenceClassification takes input_values, and would be given input_ids and attention_mask:"
            ' add a config.toml with python = "model.py:load"'
        )
        assert reasons["class"].startswith(f"transformers {t.__version__} has no class NobodysForCausalLM: ")
        assert reasons["kernels"].startswith("config.json: attn_implementation is 'someone/kernels'")


def test_a_python_without_transformers_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "raise ModuleNotFoundError(\"No module named 'transformers'\", name='transformers')"
    (tmp_path / "python").mkdir()
    (tmp_path / "python/transformers.py").write_text(missing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "python"), prepend=":")
    folder = tmp_path / "models/m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "mistral", "architectures": ["MistralForCausalLM"]}')
    header = json.dumps({"w": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with serving(tmp_path / "models") as server:
        assert server.index()["m"][1] == (
            "a Hugging Face folder is loaded by transformers, which is not installed:"
            f" {sys.executable} -m pip install 'transformers>=4.56'"
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vectors_are_pooled_as_sentence_transformers_does(dtype: Any) -> None:
    folders = pytest.importorskip("tenure.serving.hugging_face")
    hidden = torch.tensor([[[1.0, -2.0], [3.0, 4.0], [-5.0, 8.0]], [[9.0, 9.0], [2.0, -6.0], [4.0, 1.0]]], dtype=dtype)
    # The second text is padded on the left.
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    expected = {
        "cls": [[1.0, -2.0], [2.0, -6.0]],
        "max": [[3.0, 4.0], [4.0, 1.0]],
        "mean": [[2.0, 1.0], [3.0, -2.5]],
        "mean_sqrt_len_tokens": [[4.0 / 2**0.5, 2.0 / 2**0.5], [6.0 / 2**0.5, -5.0 / 2**0.5]],
        "weightedmean": [[7.0 / 3, 2.0], [10.0 / 3, -4.0 / 3]],
        "lasttoken": [[3.0, 4.0], [4.0, 1.0]],
    }
    for mode, vectors in expected.items():
        torch.testing.assert_close(folders._pooled(mode, hidden, mask), torch.tensor(vectors).to(dtype))
    both = folders._Pooling(["cls", "max"])(hidden, mask)
    assert both.tolist() == [[1.0, -2.0, 3.0, 4.0], [2.0, -6.0, 4.0, 1.0]]
