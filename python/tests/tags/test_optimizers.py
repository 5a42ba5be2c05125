# mypy: disallow-subclassing-any=False
"""Purposes of allocations in an optimizer's steps, and the state that steps leave unchanged."""

from __future__ import annotations

import copy
import gc
import inspect
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim import Optimizer  # noqa: E402
from torch.optim.lr_scheduler import StepLR  # noqa: E402

import tenure.torch  # noqa: E402
from tenure.torch import purpose as purpose_module  # noqa: E402
from tenure.torch.tagging import holdings  # noqa: E402

from .tagging import (  # noqa: E402
    NOTHING,
    ROW,
    WIDTH,
    Scale,
    figures,
    held,
    needs_device,
    purpose,
    tagged_keys,
)


class Momentum(Optimizer):
    """An optimizer that makes a buffer for each parameter and notes its steps' purpose. It fails when told to."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1.0})
        self.seen: list[tuple[str, str]] = []
        self.error: BaseException | None = None

    def step(self, closure: Any = None) -> Any:
        self.seen.append(purpose())
        if self.error is not None:
            raise self.error
        for group in self.param_groups:
            for parameter in group["params"]:
                if not self.state[parameter]:
                    self.state[parameter]["buffer"] = torch.zeros_like(parameter)
        return closure and closure()


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(Scale())


@pytest.mark.usefixtures("untouched")
def test_the_first_step_makes_state_and_later_ones_need_workspace(model: nn.Module) -> None:
    optimizer = Momentum(model.parameters())
    with tenure.torch.tag(model, optimizer):
        for _ in range(3):
            optimizer.step()
    optimizer.step()
    assert optimizer.seen == [("optimizer_state", ""), *[("workspace", "")] * 2, NOTHING]


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_step_that_fails_leaves_nothing_behind(model: nn.Module, error: type[BaseException]) -> None:
    optimizer = Momentum(model.parameters())
    with tenure.torch.tag(model, optimizer):
        optimizer.error = error()
        with pytest.raises(error):
            optimizer.step()
        assert optimizer.seen == [("optimizer_state", "")] and purpose() == NOTHING


@pytest.mark.usefixtures("untouched")
def test_a_step_returns_what_its_closure_does(model: nn.Module) -> None:
    optimizer = Momentum(model.parameters())
    with tenure.torch.tag(model, optimizer):
        assert optimizer.step(lambda: 3) == optimizer.step(closure=lambda: 3) == 3
        assert "closure" in inspect.signature(optimizer.step).parameters


@pytest.mark.usefixtures("untouched")
def test_schedulers_before_and_after_go_on(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = StepLR(optimizer, 1, gamma=0.5)
    with tenure.torch.tag(model, optimizer):
        after = StepLR(optimizer, 1, gamma=0.5)
        optimizer.step()
        before.step()
        after.step()
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.25 and before.optimizer._opt_called


@needs_device
def test_a_step_that_was_replaced_tags_nothing_after_the_tagging(model: nn.Module) -> None:
    optimizer = Momentum(model.cuda().parameters())
    with tenure.torch.tag(model, optimizer):
        StepLR(optimizer, 1)
    optimizer.step()
    assert figures("optimizer_state") == 0


@pytest.mark.usefixtures("untouched")
def test_a_step_that_was_replaced_meanwhile_stays(model: nn.Module) -> None:
    optimizer = Momentum(model.parameters())
    tagging = tenure.torch.tag(model, optimizer)
    StepLR(optimizer, 1)
    replaced = optimizer.step
    tagging.remove()
    assert optimizer.step is replaced
    optimizer.step()
    assert optimizer.seen == [NOTHING]


@pytest.mark.usefixtures("untouched")
def test_a_removed_tagging_puts_back_what_was_there(model: nn.Module) -> None:
    optimizer = Momentum(model.parameters())
    with tenure.torch.tag(model, optimizer):
        pass
    assert "step" not in vars(optimizer)
    StepLR(optimizer, 1)
    patched = optimizer.step
    with tenure.torch.tag(model, optimizer), tenure.torch.tag(model, optimizer):
        optimizer.step()
    assert optimizer.step is patched and purpose() == NOTHING


@pytest.mark.usefixtures("untouched")
def test_optimizers_are_freed_and_copied_as_without_tags(model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    tagging = tenure.torch.tag(model, optimizer)
    assert "step" not in vars(copy.deepcopy(optimizer))
    reference = weakref.ref(optimizer)
    gc.disable()
    try:
        del optimizer
        assert reference() is None
    finally:
        gc.enable()
    tagging.remove()


@pytest.mark.usefixtures("untouched")
def test_an_invalid_optimizer_is_refused_before_anything_is_done(model: nn.Module) -> None:
    with pytest.raises(TypeError, match="optimizer is a list: expected one torch.optim.Optimizer; call"):
        tenure.torch.tag(model, [Momentum(model.parameters())])
    assert not model._forward_hooks


@pytest.mark.usefixtures("untouched")
def test_a_tagging_that_fails_leaves_no_hook(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = Momentum(model.parameters())
    monkeypatch.setattr(optimizer, "state", None)
    with pytest.raises(AttributeError):
        tenure.torch.tag(model, optimizer)
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in model.modules())
    assert "step" not in vars(optimizer)


@needs_device
def test_state_that_is_made_again_is_tagged_again(model: nn.Module) -> None:
    optimizer = Momentum(model.cuda().parameters())
    with tenure.torch.tag(model, optimizer):
        for forget in (dict.clear, lambda state: state.pop(next(iter(state))), lambda state: None):
            optimizer.step()
            assert held("optimizer_state") == {"": 2 * ROW, "0": 2 * ROW} and figures("workspace") == 0
            forget(optimizer.state)


@needs_device
def test_state_is_found_however_it_is_nested(model: nn.Module) -> None:
    class Nested(Momentum):
        def step(self, closure: Any = None) -> Any:
            with tenure.torch.tagged("workspace"):
                for state in (self.state[parameter] for group in self.param_groups for parameter in group["params"]):
                    state.setdefault("history", []).append({"step": 1, "direction": torch.empty(WIDTH, device="cuda")})

    optimizer = Nested(model.cuda().parameters())
    with tenure.torch.tag(model, optimizer):
        for step in (1, 2, 3):
            optimizer.step()
            assert held("optimizer_state") == {"": 2 * step * ROW, "0": 2 * step * ROW}


@needs_device
def test_only_new_state_is_tagged_after_a_step(model: nn.Module) -> None:
    optimizer = Momentum(model.cuda().parameters())
    with tenure.torch.tag(model, optimizer):
        optimizer.step()
        buffer = optimizer.state[model[0].weight]["buffer"]
        purpose_module.retag(buffer, purpose_module.number_of_tag("input"), 0)
        optimizer.step()
        assert figures("input") == ROW


@needs_device
def test_a_loaded_optimizer_is_tagged(model: nn.Module) -> None:
    optimizer = Momentum(model.cuda().parameters())
    optimizer.step()
    with tenure.torch.tag(model, optimizer):
        assert held("optimizer_state")["0"] == 2 * ROW
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert held("optimizer_state")["0"] == 2 * ROW


@needs_device
def test_state_of_others_parameters_is_the_optimizers(model: nn.Module) -> None:
    other = Scale().cuda()
    optimizer = Momentum([*model.cuda().parameters(), *other.parameters()])
    with tenure.torch.tag(model, optimizer):
        optimizer.step()
        assert held("optimizer_state") == {"": 4 * ROW, "0": 2 * ROW}
        assert tagged_keys("optimizer_state") == {
            "0/Momentum/weight.buffer#0",
            "0/Momentum/bias.buffer#0",
            "/Momentum/buffer#0",
        }


@needs_device
def test_state_of_a_parameter_that_came_later_has_its_path() -> None:
    model = nn.Sequential(Scale(), Scale()).cuda()
    optimizer = Momentum(model[0].parameters())
    with tenure.torch.tag(model, optimizer):
        optimizer.step()
        model[1].register_parameter("adapter", nn.Parameter(torch.ones(WIDTH, device="cuda")))
        optimizer.add_param_group({"params": [model[1].adapter]})
        optimizer.step()
        assert held("optimizer_state") == {"": 3 * ROW, "0": 2 * ROW, "1": ROW}
        assert "1/Momentum/adapter.buffer#0" in tagged_keys("optimizer_state")


@needs_device
def test_state_outlives_the_model_with_its_path() -> None:
    model = nn.Sequential(Scale()).cuda()
    optimizer = Momentum(model.parameters())
    with tenure.torch.tag(model, optimizer):
        optimizer.step()
        del model
        gc.collect()
        holdings.tag_holdings()
        assert held("optimizer_state") == {"": 2 * ROW, "0": 2 * ROW}
