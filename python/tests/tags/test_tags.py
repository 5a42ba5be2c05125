# mypy: disallow-subclassing-any=False
"""Purposes of memory, according to the hooks of `tenure.torch.tag`."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import tenure.torch  # noqa: E402
from tenure.torch.purpose import number_of_tag, retag  # noqa: E402

from .tagging import (  # noqa: E402
    ACTIVATION,
    BATCH,
    NOTHING,
    ROW,
    WIDTH,
    Failing,
    Probe,
    Scale,
    figures,
    held,
    needs_device,
    purpose,
)


class Interrupted(nn.Module):
    """Raises KeyboardInterrupt when its input has two elements."""

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() == 2:
            raise KeyboardInterrupt
        return x


# Tests without a device: the hooks alone.


@pytest.mark.usefixtures("untouched")
def test_modules_nest() -> None:
    inner, after = Probe(), Probe()
    model = nn.Sequential(nn.Sequential(nn.Identity(), inner), after)
    with tenure.torch.tag(model):
        model(torch.ones(2))
    assert (inner.seen, after.seen) == ([("activation", "0.1")], [("activation", "1")])


@pytest.mark.usefixtures("untouched")
def test_a_name_begins_every_path() -> None:
    probe = Probe()
    with tenure.torch.tag(nn.Sequential(probe), name="generator"):
        probe(torch.ones(2))
    assert probe.seen == [("activation", "generator.0")]


@pytest.mark.usefixtures("untouched")
def test_a_forward_call_that_fails_leaves_nothing_behind() -> None:
    model = nn.Sequential(nn.Identity(), nn.Sequential(Failing()))
    with tenure.torch.tag(model):
        for _ in range(2):
            with pytest.raises(ValueError, match="on purpose"):
                model(torch.ones(2))
            assert purpose() == NOTHING


@pytest.mark.usefixtures("untouched")
def test_the_call_after_an_interrupted_one_begins_anew() -> None:
    model = nn.Sequential(Interrupted())
    with tenure.torch.tag(model):
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(2))
        model(torch.ones(3))
    assert purpose() == NOTHING


@pytest.mark.usefixtures("untouched")
def test_threads_have_purposes_of_their_own() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Waiting(Probe):
        def forward(self, x: Tensor) -> Tensor:
            inside.set()
            assert go_on.wait(300)
            return super().forward(x)

    model = nn.Sequential(Waiting())
    with tenure.torch.tag(model):
        thread = threading.Thread(target=model, args=(torch.ones(2),))
        thread.start()
        assert inside.wait(300)
        assert purpose() == NOTHING
        with tenure.torch.tagged("input", "batch"):
            go_on.set()
            thread.join()
            assert purpose()[0] == "input"
    assert model[0].seen == [("activation", "0")]


@pytest.mark.usefixtures("untouched")
def test_a_tagging_ends() -> None:
    probe = Probe()
    model = nn.Sequential(probe)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    tagging = tenure.torch.tag(model, optimizer)
    tagging.remove()
    tagging.remove()
    model(torch.ones(2))
    assert probe.seen == [NOTHING]
    assert not probe._forward_hooks and not probe._forward_pre_hooks
    assert "step" not in vars(optimizer)


@pytest.mark.usefixtures("untouched")
def test_a_tagging_ends_also_what_was_interrupted() -> None:
    model = nn.Sequential(nn.Sequential(Interrupted()))
    with tenure.torch.tagged("input", "batch"):
        with pytest.raises(KeyboardInterrupt), tenure.torch.tag(model):
            model(torch.ones(2))
        assert purpose() == NOTHING
        with tenure.torch.tagged("workspace"):
            pass
        assert purpose() == ("input", "")


@pytest.mark.usefixtures("untouched")
def test_a_tagging_that_ends_in_a_call_ends_there() -> None:
    class Ending(Probe):
        def forward(self, x: Tensor) -> Tensor:
            tagging.remove()
            return super().forward(x)

    model = nn.Sequential(Ending(), Probe())
    tagging = tenure.torch.tag(model)
    model(torch.ones(2))
    assert model[0].seen == model[1].seen == [NOTHING]


@pytest.mark.usefixtures("untouched")
def test_a_tagging_ends_on_every_thread() -> None:
    inside, go_on = threading.Event(), threading.Event()
    seen: list[tuple[str, str]] = []

    class Waiting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            inside.set()
            assert go_on.wait(300)
            return x

    def call() -> None:
        model(torch.ones(2))
        seen.append(purpose())

    model = nn.Sequential(Waiting())
    tagging = tenure.torch.tag(model)
    thread = threading.Thread(target=call)
    thread.start()
    assert inside.wait(300)
    tagging.remove()
    go_on.set()
    thread.join()
    assert seen == [NOTHING]


@pytest.mark.usefixtures("untouched")
def test_many_taggings_that_are_dropped_take_nothing_from_others() -> None:
    for _ in range(1000):
        tenure.torch.tag(nn.Identity())
    model = nn.Sequential(Interrupted())
    with pytest.raises(KeyboardInterrupt), tenure.torch.tag(model):
        model(torch.ones(2))
    assert purpose() == NOTHING


@pytest.mark.usefixtures("untouched")
def test_copies_of_a_tagged_model_are_not_tagged() -> None:
    model = nn.Sequential(Probe())
    with tenure.torch.tag(model):
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(torch.ones(2)), torch.ones(2))
            assert other[0].seen == [NOTHING]


@pytest.mark.usefixtures("untouched")
def test_copies_of_a_tagged_model_can_be_compiled() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(Scale())
    with tenure.torch.tag(model):
        compiled = torch.compile(copy.deepcopy(model), backend="eager", fullgraph=True)
        assert torch.equal(compiled(torch.ones(2, WIDTH)), torch.full((2, WIDTH), 2.0))


@pytest.mark.usefixtures("untouched")
def test_a_tagged_model_can_be_loaded_without_tenure(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Identity())
    with tenure.torch.tag(model):
        torch.save(model, tmp_path / "model.pt")
    program = """
import sys
sys.modules["tenure"] = None
import torch
assert torch.load("model.pt", weights_only=False)(torch.ones(1)) == 1
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, env=os.environ | {"TENURE_TORCH": "0"})


@pytest.mark.usefixtures("untouched")
def test_wrappers_are_left_out_of_paths() -> None:
    probe = Probe()
    with tenure.torch.tag(torch.compile(nn.Sequential(probe), backend="eager")):
        probe(torch.ones(2))
    assert probe.seen == [("activation", "0")]


@pytest.mark.usefixtures("untouched")
def test_modules_may_be_recomputed() -> None:
    probe = Probe()
    model = nn.Sequential(probe, Scale())
    with tenure.torch.tag(model):
        for reentrant in (False, True):
            x = torch.ones(2, WIDTH, requires_grad=True)
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    assert probe.seen == [("activation", "0")] * 4


def test_purposes_are_scopes() -> None:
    with tenure.torch.tagged("input", "tokens"):
        with pytest.raises(ValueError, match="on purpose"), tenure.torch.tagged("workspace", module="head"):
            assert purpose() == ("workspace", "head")
            raise ValueError("on purpose")
        assert purpose() == ("input", "")


def test_an_unknown_tag_is_refused() -> None:
    with pytest.raises(ValueError, match="tag='inputs': expected one of 'unknown', 'weight'"):
        tenure.torch.tagged("inputs")  # type: ignore[arg-type]


def test_without_an_installation_nothing_is_done(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr("tenure.torch.tagging.tags.status", lambda: tenure.torch.Status("not installed", "test"))
    model = nn.Sequential(Probe())
    with tenure.torch.tag(model):
        model(torch.ones(2))
    assert model[0].seen == [NOTHING]
    assert "tags have no effect: call tenure.torch.install()" in caplog.text


# Tests on a device: the memory of allocations.


@needs_device
def test_everything_that_a_step_allocates_is_tagged(device: str) -> None:
    model = nn.Sequential(Scale(), nn.Sequential(nn.ReLU(inplace=True), Scale())).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    with tenure.torch.tagged("input", "images"):
        x = torch.ones(BATCH, WIDTH, device=device)
    with tenure.torch.tag(model, optimizer):
        assert held("weight") == {"": 6 * ROW, "0": 3 * ROW, "1": 3 * ROW, "1.1": 3 * ROW}
        assert figures("input") == ACTIVATION
        for step in range(3):
            y = model(x)
            saved = held("activation")
            # Each layer's product, and the sum that is ReLU's input or the result.
            assert saved["0"] >= ACTIVATION and saved["1.1"] >= ACTIVATION
            y.sum().backward()
            assert held("gradient") == {"": 4 * ROW, "0": 2 * ROW, "1": 2 * ROW, "1.1": 2 * ROW}
            del y
            optimizer.step()
            assert held("optimizer_state") == {"": 8 * ROW, "0": 4 * ROW, "1": 4 * ROW, "1.1": 4 * ROW}
            optimizer.zero_grad()
            assert (figures("gradient"), figures("activation"), figures("workspace")) == (0, 0, 0), step


@needs_device
def test_parameters_that_move_are_tagged_again(device: str) -> None:
    model = nn.Sequential(Scale())
    with tenure.torch.tag(model):
        model.to(device)
        before = figures("weight")
        model(torch.ones(BATCH, WIDTH, device=device))
        assert (before, figures("weight")) == (0, 3 * ROW)


@needs_device
@pytest.mark.parametrize("name", ["weight", "bias", "mean"])
def test_whatever_moves_is_tagged_again(device: str, name: str) -> None:
    model = nn.Sequential(Scale(), Scale()).to(device)
    with tenure.torch.tag(model):
        model(torch.ones(BATCH, WIDTH, device=device))
        tensor = getattr(model[1], name)
        tensor.data = tensor.data.clone()
        assert figures("weight") == 5 * ROW
        model(torch.ones(BATCH, WIDTH, device=device))
        assert held("weight") == {"": 6 * ROW, "0": 3 * ROW, "1": 3 * ROW}


@needs_device
def test_parameters_are_tagged_again_only_when_they_move(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(Scale(), nn.Sequential(nn.LazyLinear(4))).to(device)
    with tenure.torch.tag(model[0]), tenure.torch.tag(model):
        model[0](torch.ones(BATCH, WIDTH, device=device))
        monkeypatch.setattr(
            "tenure.torch.tagging.holdings.Parameters.tag", lambda parameters: pytest.fail("tagged again")
        )
        model[0](torch.ones(BATCH, WIDTH, device=device))


@needs_device
def test_gradients_that_are_there_are_tagged(device: str) -> None:
    model = nn.Sequential(Scale()).to(device)
    model(torch.ones(BATCH, WIDTH, device=device)).sum().backward()
    with tenure.torch.tag(model):
        assert held("gradient") == {"": 2 * ROW, "0": 2 * ROW}


@needs_device
def test_a_report_finds_what_no_hook_saw(device: str) -> None:
    model = nn.Sequential(Scale()).to(device)
    optimizer = torch.optim.SGD(model.parameters())
    with tenure.torch.tag(model, optimizer):
        model[0].weight.data = model[0].weight.data.clone()
        model[0].weight.grad = torch.ones(WIDTH, device=device)
        optimizer.state[model[0].bias]["buffer"] = torch.ones(WIDTH, device=device)
        before = [figures(tag) for tag in ("weight", "gradient", "optimizer_state")]
        tenure.torch.report(format="json")
        after = [figures(tag) for tag in ("weight", "gradient", "optimizer_state")]
        assert (before, after) == ([2 * ROW, 0, 0], [3 * ROW, ROW, ROW])


@needs_device
def test_a_tagging_keeps_no_memory(device: str) -> None:
    model = nn.Sequential(Scale()).to(device)
    tagging = tenure.torch.tag(model, torch.optim.Adam(model.parameters()))
    model(torch.ones(BATCH, WIDTH, device=device)).sum().backward()
    del model
    assert figures("weight") == figures("gradient") == 0
    tagging.remove()


@needs_device
def test_operations_name_their_results_and_their_workspace(device: str) -> None:
    model = nn.Sequential(Scale()).to(device)
    x = torch.ones(BATCH, WIDTH, device=device)
    with tenure.torch.tag(model), tenure.torch.tag_operations():
        y = model(x)
        keys = {block["key"]: block["tag"] for block in tenure.torch.report(format="json")["largest"]}
        assert keys["0/aten.add.Tensor/out#0"] == "activation"
        y.sum().backward()
    assert model[0].weight.grad is not None and figures("workspace") == 0


@needs_device
def test_tensors_without_memory_of_their_own_are_left_alone(device: str) -> None:
    model = nn.Sequential(nn.Embedding(100, 16, sparse=True)).to(device)
    with tenure.torch.tag(model), tenure.torch.tag_operations():
        model(torch.zeros(4, dtype=torch.long, device=device)).sum().backward()
        assert model[0].weight.grad.is_sparse
    before = figures("weight")
    with tenure.torch.tag(nn.Sequential(nn.LazyLinear(4)).to(device)):
        assert figures("weight") == before


@needs_device
def test_parameters_beside_one_that_has_no_memory_are_tagged_when_they_move(device: str) -> None:
    model = nn.ModuleDict({"scale": Scale(), "lazy": nn.LazyLinear(4)}).to(device)
    model.forward = lambda x: model["scale"](x)
    with tenure.torch.tag(model):
        model["scale"].weight.data = model["scale"].weight.data.clone()
        model(torch.ones(BATCH, WIDTH, device=device))
        assert figures("weight") == 3 * ROW


@needs_device
def test_a_distributed_tensors_part_is_tagged(device: str) -> None:
    class Distributed:
        def __init__(self) -> None:
            self._local_tensor = torch.ones(WIDTH, device=device)

    tensor: Any = Distributed()
    retag(tensor, number_of_tag("weight"), 0)
    assert figures("weight") == ROW


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("wrapper", ["_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"])
def test_no_wrapper_is_in_a_path(wrapper: str) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.add_module(wrapper, module)

    probe = Probe()
    with tenure.torch.tag(nn.Sequential(Wrapper(probe))):
        probe(torch.ones(2))
    assert probe.seen == [("activation", "0")]


@pytest.mark.usefixtures("untouched")
def test_frozen_parameters_and_scripts_can_be_tagged() -> None:
    model = nn.Sequential(Scale().requires_grad_(False), torch.jit.script(nn.ReLU()))
    with tenure.torch.tag(model):
        assert not model[1]._forward_hooks
        model(torch.ones(2, WIDTH))


@pytest.mark.usefixtures("untouched")
def test_calls_interrupted_twice_are_left_by_the_next() -> None:
    model = nn.Sequential(Interrupted())
    with tenure.torch.tag(model):
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                model(torch.ones(2))
        model(torch.ones(3))
        # One later call leaves both interrupted calls.
        assert purpose() == NOTHING


def test_scopes_left_out_of_order_are_their_own() -> None:
    outer, inner = tenure.torch.tagged("input"), tenure.torch.tagged("workspace")
    with outer:
        inner.__enter__()
        outer.__exit__(None, None, None)
        assert purpose() == NOTHING
        inner.__exit__(None, None, None)
        assert purpose() == NOTHING


@needs_device
def test_lists_of_results_are_results_and_views_are_not(device: str) -> None:
    x = torch.ones(WIDTH, device=device)
    with tenure.torch.tag_operations(), tenure.torch.tagged("activation"):
        results = torch._foreach_add([x, x], 1.0)
        assert figures("activation") == 2 * ROW and figures("workspace") == 0
        view = x.view(2, -1)
        assert figures("activation") == 2 * ROW
        x.add_(1)
        assert figures("activation") == 2 * ROW
    del results, view


@needs_device
def test_an_operation_inside_a_scope_leaves_it_as_it_was(device: str) -> None:
    with tenure.torch.tagged("input", module="loader"), tenure.torch.tag_operations():
        torch.ones(WIDTH, device=device)
        assert purpose() == ("input", "loader")


def test_a_span_that_outlives_the_interpreter_says_nothing() -> None:
    program = """
import sys
from tenure.torch.purpose import Span
span = Span()
span.itself = sys.modules["kept"] = span
"""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"TENURE_TORCH": "0"},
    )
    assert ended.stderr == ""


@pytest.mark.usefixtures("untouched")
def test_functions_that_refuse_hooks_take_the_model_once_the_tagging_is_removed() -> None:
    model = nn.Sequential(nn.ReLU())
    tagging = tenure.torch.tag(model)
    with pytest.raises(AttributeError):
        torch.jit.script(model)
    tagging.remove()
    torch.jit.script(model)
