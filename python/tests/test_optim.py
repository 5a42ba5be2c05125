"""Tests of tenure.optim against torch.optim."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import pytest

import tenure

torch = pytest.importorskip("torch")

SHAPES: list[tuple[int, ...]] = [(3, 4), (5,), (), (2, 3, 4)]
#: Muon steps matrices alone.
MATRICES: list[tuple[int, ...]] = [(3, 4), (5, 2), (3, 3)]

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.1, "maximize": True}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.3}),
    ("Adagrad", {}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3}),
    ("Adagrad", {"lr": 0.1, "maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"lr": 0.1, "alpha": 0.8, "eps": 1e-3, "weight_decay": 0.1}),
    ("RMSprop", {"lr": 0.1, "momentum": 0.9}),
    ("RMSprop", {"lr": 0.1, "centered": True}),
    ("RMSprop", {"lr": 0.1, "centered": True, "momentum": 0.5, "weight_decay": 0.1, "maximize": True}),
    ("NAdam", {}),
    ("NAdam", {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1, "momentum_decay": 0.1}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("Adafactor", {}),
    ("Adafactor", {"lr": 0.1, "beta2_decay": -0.5, "eps": (0.1, 0.5), "d": 2.0, "weight_decay": 0.1}),
    ("Adafactor", {"lr": 0.3, "maximize": True}),
    ("Muon", {}),
    ("Muon", {"lr": 0.1, "weight_decay": 0.3, "momentum": 0.5, "nesterov": False}),
    ("Muon", {"lr": 0.1, "adjust_lr_fn": "match_rms_adamw", "eps": 0.1, "ns_steps": 3}),
    ("Muon", {"lr": 0.1, "adjust_lr_fn": "original", "ns_coefficients": (2.0, -1.5, 0.5)}),
]


def parameters(name: str = "SGD") -> tuple[list[Any], list[Any]]:
    """Returns the same parameters of an optimizer for Tenure and for PyTorch."""
    generator = torch.Generator().manual_seed(1)
    shapes = MATRICES if name == "Muon" else SHAPES
    theirs = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    ours = [tenure.tensor(param.tolist(), requires_grad=True) for param in theirs]
    return ours, theirs


def set_gradients(ours: list[Any], theirs: list[Any], step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for our, their in zip(ours, theirs, strict=True):
        grad = torch.randn(tuple(their.shape), generator=generator)
        their.grad = grad
        our.grad = tenure.tensor(grad.tolist())


def run(ours: Any, theirs: Any, our_optimizer: Any, their_optimizer: Any, steps: range) -> None:
    for step in steps:
        set_gradients(ours, theirs, step)
        our_optimizer.step()
        their_optimizer.step()


def assert_close(ours: Any, theirs: Any) -> None:
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.from_dlpack(our.detach()), their.detach(), rtol=2e-6, atol=1e-6)


def assert_same_state(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["param_groups"] == theirs["param_groups"]
    kept = {number: values for number, values in theirs["state"].items() if any(v is not None for v in values.values())}
    assert list(ours["state"]) == list(kept)
    for number, values in kept.items():
        own = ours["state"][number]
        assert sorted(own) == sorted(values)
        assert_close([own[key] for key in values], values.values())


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_steps_are_those_of_pytorch(name: str, options: dict[str, Any]) -> None:
    ours, theirs = parameters(name)
    our_optimizer = getattr(tenure.optim, name)(ours, **options)
    their_optimizer = getattr(torch.optim, name)(theirs, **options)
    run(ours, theirs, our_optimizer, their_optimizer, range(20))
    assert_close(ours, theirs)
    assert_same_state(our_optimizer.state_dict(), their_optimizer.state_dict())


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_state_of_pytorch_is_continued(name: str, options: dict[str, Any]) -> None:
    ours, theirs = parameters(name)
    their_optimizer = getattr(torch.optim, name)(theirs, **options)
    for step in range(3):
        set_gradients(ours, theirs, step)
        their_optimizer.step()
    for our, their in zip(ours, theirs, strict=True):
        our.data = tenure.tensor(their.tolist())
    our_optimizer = getattr(tenure.optim, name)(ours)
    our_optimizer.load_state_dict(copy.deepcopy(their_optimizer.state_dict()))
    run(ours, theirs, our_optimizer, their_optimizer, range(3, 6))
    assert_close(ours, theirs)


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_resumed_run_is_the_same_bit_for_bit(name: str, options: dict[str, Any]) -> None:
    ours, theirs = parameters(name)
    optimizer = getattr(tenure.optim, name)(ours, **options)
    for step in range(2):
        set_gradients(ours, theirs, step)
        optimizer.step()
    others = [our.detach().clone().requires_grad_() for our in ours]
    resumed = getattr(tenure.optim, name)(others)
    resumed.load_state_dict(optimizer.state_dict())
    for step in range(2, 4):
        set_gradients(ours, theirs, step)
        set_gradients(others, theirs, step)
        optimizer.step()
        resumed.step()
    assert [other.tolist() for other in others] == [our.tolist() for our in ours]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_pytorch_continues_a_state(name: str, options: dict[str, Any]) -> None:
    ours, theirs = parameters(name)
    optimizer = getattr(tenure.optim, name)(ours, **options)
    for step in range(2):
        set_gradients(ours, theirs, step)
        optimizer.step()
    with torch.no_grad():
        for our, their in zip(ours, theirs, strict=True):
            their.copy_(torch.tensor(our.tolist()))
    state = optimizer.state_dict()
    state["state"] = {
        number: {name: torch.tensor(value.tolist()) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    their_optimizer = getattr(torch.optim, name)(theirs)
    their_optimizer.load_state_dict(state)
    run(ours, theirs, optimizer, their_optimizer, range(2, 4))
    assert_close(ours, theirs)


def test_settings_of_groups_are_read_at_every_step() -> None:
    ours, theirs = parameters()
    optimizers = []
    for library, params in ((tenure, ours), (torch, theirs)):
        optimizer = library.optim.SGD([{"params": params[:1], "lr": 0.5}, {"params": params[1:2]}], lr=0.1)
        optimizer.add_param_group({"params": params[2], "momentum": 0.5})
        optimizers.append(optimizer)
    run(ours, theirs, optimizers[0], optimizers[1], range(2))
    for optimizer in optimizers:
        optimizer.param_groups[0]["lr"] = 0.25
        optimizer.param_groups[1]["momentum"] = 0.9
        optimizer.param_groups[2]["weight_decay"] = 0.1
    run(ours, theirs, optimizers[0], optimizers[1], range(2, 5))
    assert_close(ours, theirs)


def test_states_that_other_settings_need_too_are_kept() -> None:
    ours, theirs = parameters()
    our_optimizer = tenure.optim.RMSprop(ours, lr=0.1, centered=True, momentum=0.5)
    their_optimizer = torch.optim.RMSprop(theirs, lr=0.1, centered=True, momentum=0.5)
    run(ours, theirs, our_optimizer, their_optimizer, range(3))
    for optimizer in (our_optimizer, their_optimizer):
        optimizer.param_groups[0]["centered"] = False
    run(ours, theirs, our_optimizer, their_optimizer, range(3, 6))
    assert_close(ours, theirs)
    assert sorted(our_optimizer.state[ours[0]]) == ["momentum_buffer", "square_avg", "step"]


def test_parameters_whose_data_was_replaced_are_stepped() -> None:
    x = tenure.tensor([4.0], requires_grad=True)
    optimizer = tenure.optim.SGD([x], lr=0.25, momentum=0.5)
    x.grad = tenure.tensor([2.0])
    optimizer.step()
    x.data = tenure.tensor([8.0])
    x.grad = tenure.tensor([2.0])
    optimizer.step()
    assert x.tolist() == [8.0 - 0.25 * 3.0]


def test_frozen_parameters_stay_frozen() -> None:
    x = tenure.tensor([4.0])
    y = tenure.tensor([4.0], requires_grad=True)
    optimizer = tenure.optim.Adam([x, y], lr=1.0)
    (x * y).sum().backward()
    optimizer.step()
    assert not x.requires_grad
    assert x.tolist() == [4.0]
    assert y.tolist() != [4.0]


def test_the_state_is_that_which_steps_use() -> None:
    x = tenure.tensor([4.0], requires_grad=True)
    optimizer = tenure.optim.SGD([x], lr=1.0, momentum=0.5)
    assert x not in optimizer.state
    x.grad = tenure.tensor([1.0])
    optimizer.step()
    assert optimizer.state[x]["momentum_buffer"].tolist() == [1.0]
    optimizer.state[x]["momentum_buffer"].zero_()
    optimizer.step()
    assert x.tolist() == [2.0]
    optimizer.state[x]["momentum_buffer"] = tenure.tensor([8.0])
    optimizer.step()
    assert x.tolist() == [-3.0]
    del optimizer.state[x]
    assert len(optimizer.state) == 0


def test_a_closure_is_called_with_gradients_on() -> None:
    x = tenure.tensor([4.0], requires_grad=True)
    optimizer = tenure.optim.SGD([x], lr=0.25)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (x * x).sum()
        loss.backward()
        return loss

    with tenure.no_grad():
        assert optimizer.step(closure).item() == 16.0
    assert x.tolist() == [2.0]


def test_gradients_are_dropped_or_zeroed() -> None:
    x = tenure.tensor([4.0], requires_grad=True)
    optimizer = tenure.optim.SGD([x])
    x.grad = tenure.tensor([1.0])
    optimizer.zero_grad(set_to_none=False)
    assert x.grad is not None
    assert x.grad.tolist() == [0.0]
    optimizer.zero_grad()
    assert x.grad is None


def test_hooks_are_called_around_a_step() -> None:
    x = tenure.tensor([4.0], requires_grad=True)
    optimizer = tenure.optim.SGD([x])
    calls = []
    handle = optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.step()
    handle.remove()
    optimizer.step()
    assert calls == ["before", "after", "after"]


def test_an_optimizer_can_be_written_in_python() -> None:
    class Signs(tenure.optim.Optimizer):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        def step(self, closure: Any = None) -> None:
            with tenure.no_grad():
                for group in self.param_groups:
                    for param in group["params"]:
                        self.state[param]["steps"] = self.state[param].get("steps", 0) + 1
                        param.sub_(param.grad.sign() * group["lr"])

    x = tenure.tensor([4.0, 4.0], requires_grad=True)
    optimizer = Signs([x], lr=0.5)
    x.grad = tenure.tensor([3.0, -3.0])
    optimizer.step()
    assert x.tolist() == [3.5, 4.5]
    state = optimizer.state_dict()
    assert state == {"state": {0: {"steps": 1}}, "param_groups": [{"lr": 0.5, "params": [0]}]}
    other = Signs([x], lr=0.1)
    other.load_state_dict(state)
    assert other.state_dict() == state


def test_named_parameters_keep_their_names() -> None:
    x = tenure.tensor([4.0], requires_grad=True)
    optimizer = tenure.optim.Adam([("layer.weight", x)])
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["layer.weight"]


def wrong_optimizers(library: Any) -> list[Any]:
    """Returns functions that make optimizers wrongly."""
    sgd = library.optim.SGD
    x = library.tensor([1.0], requires_grad=True)
    return [
        lambda: sgd([], lr=0.1),
        lambda: sgd(x, lr=0.1),
        lambda: sgd([3], lr=0.1),
        lambda: sgd([x * 2], lr=0.1),
        lambda: sgd([{"params": [x]}, {"params": [x]}], lr=0.1),
        lambda: sgd([{"params": {x}}], lr=0.1),
        lambda: sgd([x], lr=-1.0),
        lambda: sgd([x], momentum=-1.0),
        lambda: sgd([x], nesterov=True),
        lambda: library.optim.Adam([x], eps=-1.0),
        lambda: library.optim.Adam([x], betas=(1.0, 0.5)),
        lambda: library.optim.Adagrad([x], lr_decay=-1.0),
        lambda: library.optim.RMSprop([x], lr=-1.0),
        lambda: library.optim.RMSprop([x], eps=-1.0),
        lambda: library.optim.RMSprop([x], momentum=-1.0),
        lambda: library.optim.RMSprop([x], weight_decay=-1.0),
        lambda: library.optim.RMSprop([x], alpha=-1.0),
        lambda: library.optim.NAdam([x], betas=(0.5, 1.0)),
        lambda: library.optim.NAdam([x], momentum_decay=-1.0),
        lambda: library.optim.Adafactor([x], lr=-1.0),
        lambda: library.optim.Adafactor([x], beta2_decay=0.1),
        lambda: library.optim.Adafactor([x], eps=(-1.0, 0.1)),
        lambda: library.optim.Adafactor([x], eps=(None, -0.1)),
        lambda: library.optim.Adafactor([x], d=0.5),
        lambda: library.optim.Adafactor([x], weight_decay=-1.0),
        lambda: library.optim.Muon([x]),
        lambda: library.optim.Muon([x], lr=-1.0),
        lambda: library.optim.Muon([x], momentum=-1.0),
        lambda: library.optim.Muon([x], weight_decay=-1.0),
        lambda: library.optim.Muon([x], adjust_lr_fn="other"),
        lambda: library.optim.LBFGS([x], lr=-1.0),
        lambda: library.optim.LBFGS([{"params": [x]}, {"params": [library.zeros(1)]}]),
        lambda: sgd([x]).load_state_dict({"state": {}, "param_groups": []}),
        lambda: sgd([x]).load_state_dict({"state": {}, "param_groups": [{"params": [0, 1]}]}),
    ]


@pytest.mark.parametrize("number", range(len(wrong_optimizers(tenure))))
def test_mistakes_are_refused_as_pytorch_refuses_them(number: int) -> None:
    with pytest.raises((TypeError, ValueError)) as theirs:
        wrong_optimizers(torch)[number]()
    with pytest.raises(theirs.type) as ours:
        wrong_optimizers(tenure)[number]()
    assert str(ours.value)[:25].replace("tenure", "torch") == str(theirs.value)[:25]


def test_duplicate_parameters_of_a_group_are_refused() -> None:
    x = tenure.tensor([1.0], requires_grad=True)
    with pytest.raises(ValueError, match="duplicate parameters"):
        tenure.optim.SGD([x, x])


def test_a_state_of_other_sizes_is_refused() -> None:
    x = tenure.tensor([1.0], requires_grad=True)
    optimizer = tenure.optim.SGD([x], momentum=0.5)
    with pytest.raises(tenure.Error, match=r"\[2\].*\[1\]"):
        optimizer.state[x] = {"momentum_buffer": tenure.ones(2)}


def test_parameters_added_past_add_param_group_are_refused() -> None:
    x = tenure.tensor([1.0], requires_grad=True)
    optimizer = tenure.optim.SGD([x])
    optimizer.param_groups[0]["params"].append(tenure.tensor([1.0], requires_grad=True))
    with pytest.raises(RuntimeError, match="add_param_group"):
        optimizer.step()


def test_an_optimizer_is_freed_with_its_last_reference() -> None:
    sgd = tenure.optim.SGD([tenure.ones(2, requires_grad=True)], lr=0.1)
    end = weakref.ref(sgd)
    del sgd
    assert end() is None
