"""Tests of `tenure.onnx`: ONNX Runtime computes the same as our modules and functions."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tenure
import tenure.nn.functional as F
from tenure import Tensor, nn
from tenure.onnx import export

from .onnx_comparison import check, compare, numbers, session

onnx = pytest.importorskip("onnx")
np = pytest.importorskip("numpy")

EXAMPLES = Path(__file__).parent.parent / "examples"
BATCH = {0: "batch"}


def example(name: str) -> ModuleType:
    """Returns a program of the examples as a module."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Classifier(nn.Module):
    """Classifies sequences by the last output of an LSTM."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.recurrent = kind(5, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        result, _ = self.recurrent(x)
        return F.log_softmax(self.head(result[:, -1]), dim=-1)


def test_an_mlp_is_exported_with_the_names_of_its_parameters(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(), nn.Linear(8, 2)).eval()
    found = check(
        model,
        [numbers(3, 4)],
        tmp_path,
        input_names=["rows"],
        output_names=["scores"],
        dynamic_axes={"rows": BATCH},
    )
    assert [(info.name, info.shape) for info in found.get_inputs()] == [("rows", ["batch", 4])]
    assert [(info.name, info.shape) for info in found.get_outputs()] == [("scores", ["batch", 2])]
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert {"0.weight", "0.bias", "3.weight", "3.bias"} <= {each.name for each in graph.initializer}
    compare(found, model, [numbers(7, 4)])
    compare(found, model, [numbers(1, 4)])


def test_a_resnet_is_exported_for_any_number_and_size_of_images(tmp_path: Path) -> None:
    model = example("resnet18").ResNet18(classes=10, width=8).eval()
    axes = {0: "batch", 2: "height", 3: "width"}
    found = check(model, [numbers(2, 3, 40, 40)], tmp_path, input_names=["images"], dynamic_axes={"images": axes})
    compare(found, model, [numbers(1, 3, 64, 48)])


def test_a_gpt2_is_exported_for_any_number_and_length_of_texts(tmp_path: Path) -> None:
    model = example("gpt2").GPT2(vocabulary=50, positions=24, width=16, layers=2, heads=4).eval()

    def tokens(*sizes: int) -> Tensor:
        return tenure.randint(0, 50, sizes, generator=tenure.Generator().manual_seed(1))

    axes = {0: "batch", 1: "length"}
    found = check(model, [tokens(2, 24)], tmp_path, input_names=["tokens"], dynamic_axes={"tokens": axes})
    compare(found, model, [tokens(3, 24)])
    compare(found, model, [tokens(1, 7)])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_classifier_is_exported_for_any_batch(kind: type[nn.LSTM] | type[nn.GRU], tmp_path: Path) -> None:
    model = Classifier(kind).eval()
    found = check(model, [numbers(2, 6, 5)], tmp_path, input_names=["x"], dynamic_axes={"x": BATCH})
    compare(found, model, [numbers(5, 6, 5)])


def test_a_transformers_encoder_is_exported_for_any_batch_and_length(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, dim_feedforward=32, batch_first=True, activation="gelu")
    model = nn.TransformerEncoder(layer, 2).eval()
    axes = {0: "batch", 1: "length"}
    found = check(model, [numbers(2, 6, 16)], tmp_path, input_names=["x"], dynamic_axes={"x": axes})
    compare(found, model, [numbers(3, 9, 16)])


def test_a_transformer_with_a_causal_mask_is_exported_for_any_length(tmp_path: Path) -> None:
    model = nn.Transformer(16, 4, 1, 1, 32, batch_first=True).eval()

    def function(source: Tensor, target: Tensor) -> Any:
        return model(source, target, tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]))

    axes = {"source": {0: "batch", 1: "length"}, "target": {0: "batch", 1: "written"}}
    inputs = [numbers(2, 5, 16), numbers(2, 4, 16)]
    found = check(function, inputs, tmp_path, input_names=["source", "target"], dynamic_axes=axes)
    compare(found, function, [numbers(3, 7, 16), numbers(3, 9, 16)])


def test_tensors_in_dictionaries_and_tuples_are_outputs_in_their_order(tmp_path: Path) -> None:
    def nested(x: Tensor) -> dict[str, Any]:
        return {"last": x + 1, "hidden": (x * 2, [x * 3]), "cache": None}

    export(nested, numbers(2, 3), tmp_path / "model.onnx")
    compare(session(tmp_path / "model.onnx"), lambda x: (x + 1, x * 2, x * 3), [numbers(2, 3)])


@pytest.mark.parametrize(
    ("result", "reason"), [(3.0, "but returns float"), ((), "returns no tensor"), (None, "no tensor")]
)
def test_a_function_that_returns_no_tensors_is_refused(result: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=reason):
        export(lambda x: result, numbers(2, 3), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_program_can_ask_whether_it_is_exported(tmp_path: Path) -> None:
    answers = []

    def function(x: Tensor) -> Tensor:
        answers.append(tenure.onnx.is_in_onnx_export())
        if len(answers) > 1:
            raise ValueError
        return x + 1

    export(function, numbers(2, 3), tmp_path / "model.onnx")
    with pytest.raises(ValueError):
        export(function, numbers(2, 3), tmp_path / "model.onnx")
    assert [*answers, tenure.onnx.is_in_onnx_export()] == [True, True, False]


def test_one_tensor_that_is_given_twice_is_two_inputs(tmp_path: Path) -> None:
    x = numbers(2, 3)
    found = check(lambda a, b: a - 2 * b, [x, x], tmp_path)
    compare(found, lambda a, b: a - 2 * b, [x, numbers(2, 3) + 1])


def test_an_argument_that_the_function_has_anyway_is_an_initializer_and_an_input(tmp_path: Path) -> None:
    x = numbers(2, 3)
    found = check(lambda a: a * 3 + x, [x], tmp_path)
    compare(found, lambda a: a * 3 + x, [x + 1])


def test_an_export_leaves_arguments_that_are_written_to_in_place_as_they_were(tmp_path: Path) -> None:
    x = numbers(2, 3)
    export(lambda a: a.add_(1) * 2, x, tmp_path / "model.onnx", input_names=["x"], dynamic_axes={"x": [0]})
    assert x.tolist() == numbers(2, 3).tolist()
    compare(session(tmp_path / "model.onnx"), lambda a: (a + 1) * 2, [numbers(5, 3)])


def test_large_parameters_are_written_to_a_second_file(tmp_path: Path) -> None:
    model = nn.Linear(4, 3).eval()
    check(model, [numbers(2, 4)], tmp_path, external_data=True)
    assert (tmp_path / "model.onnx.data").stat().st_size >= 15 * 4
    assert b"external" not in (tmp_path / "model.onnx").read_bytes()
    assert all(each.raw_data != b"" for each in onnx.load(tmp_path / "model.onnx").graph.initializer)


@pytest.mark.parametrize("opset", [18, 20, 23])
def test_opsets_can_be_chosen(opset: int, tmp_path: Path) -> None:
    check(lambda x: F.softmax(x.mean(0), 0), [numbers(2, 4)], tmp_path, opset_version=opset)
    imports = onnx.load(tmp_path / "model.onnx").opset_import
    assert [(each.domain, each.version) for each in imports] == [("", opset)]


def through_a_view(x: Tensor) -> Tensor:
    y = x.exp()
    y[0].add_(1)
    return y


#: Functions that cannot be exported, and the reasons.
REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "item": (lambda x: x * x.sum().item(), "reads elements of a tensor"),
    "condition": (lambda x: x if x.sum() > 0 else -x, "reads elements of a tensor"),
    "tensor of numbers": (lambda x: x + tenure.tensor([1.0, 2.0, 3.0]), "made within the function of values"),
    "write through a view": (through_a_view, "wrote to a tensor .* through a view"),
    "unmapped": (lambda x: tenure.lgamma(x), "operation lgamma at .*test_onnx.py:[0-9]+: it has no mapping"),
    "nonzero": (lambda x: x.nonzero(), "operation nonzero .* depend on elements"),
    "mask": (lambda x: x[x > 0], "depend on elements"),
    "random": (lambda x: x + tenure.rand(3), "operation rand at .* draws random numbers"),
    "dropout": (lambda x: F.dropout(x, 0.5), "operation dropout .* eval()"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_says_what_cannot_be_exported(name: str, tmp_path: Path) -> None:
    function, reason = REFUSED[name]
    with pytest.raises(tenure.Error, match=reason):
        export(function, numbers(2, 3), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_tensors_that_were_there_before_are_initializers_as_they_were(tmp_path: Path) -> None:
    kept = tenure.ones(3)

    def function(x: Tensor) -> Tensor:
        y = x + kept
        kept.add_(1)
        return y * kept

    export(function, numbers(2, 3), tmp_path / "model.onnx")
    found = session(tmp_path / "model.onnx")
    x = numbers(2, 3)
    result = found.run(None, {"input_0": np.asarray(x)})[0]
    np.testing.assert_allclose(result, np.asarray((x + 1) * 2), rtol=1e-5)


def test_unused_results_need_no_mapping(tmp_path: Path) -> None:
    def function(x: Tensor) -> Tensor:
        tenure.lgamma(x)
        return x + 1

    check(function, [numbers(2, 3)], tmp_path)


def test_a_condition_on_a_dynamic_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tenure.Error, match="other operations with other sizes"):
        export(
            lambda x: x.exp() if x.shape[0] == 2 else x,
            numbers(2, 3),
            tmp_path / "model.onnx",
            input_names=["x"],
            dynamic_axes={"x": [0]},
        )


def test_a_number_of_a_size_is_refused_in_floating_point(tmp_path: Path) -> None:
    with pytest.raises(tenure.Error, match="must not depend on dynamic axes"):
        export(
            lambda x: x * x.shape[0] ** -0.5,
            numbers(2, 3),
            tmp_path / "model.onnx",
            input_names=["x"],
            dynamic_axes={"x": [0]},
        )


def test_an_exception_of_the_function_is_raised(tmp_path: Path) -> None:
    def function(x: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        export(function, numbers(2, 3), tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"opset_version": 17}, "opset must be from 18 to 23"),
        ({"input_names": ["a", "b"]}, "2 names are given for 1 inputs"),
        ({"dynamic_axes": {"y": [0]}}, "no input or output has this name"),
        ({"input_names": ["x"], "dynamic_axes": {"x": [2]}}, "has 2 dimensions"),
    ],
)
def test_options_are_checked(options: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(tenure.Error, match=reason):
        export(lambda x: x + 1, numbers(2, 3), tmp_path / "model.onnx", **options)


def test_a_program_that_looks_at_elements_is_refused(tmp_path: Path) -> None:
    counted = tenure.zeros(())

    def counting(x: Tensor) -> Tensor:
        counted.copy_(x.sum())
        number: float = counted.item()
        return x * number

    programs: list[Callable[[Tensor], Tensor]] = [
        lambda x: x * x[0, 0].item(),
        lambda x: x * float(x[0, 0]),
        lambda x: x[: int(x[1, 0])],
        lambda x: x if tenure.equal(x, x * 1) else -x,
        lambda x: x if x.allclose(x + 1) else -x,
        counting,
    ]
    x = tenure.ones(2, 3)
    for program in programs:
        with pytest.raises(tenure.Error, match="a graph has no values of the program"):
            export(program, (x,), tmp_path / "m.onnx")
