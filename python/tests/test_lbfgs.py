"""Tests of tenure.optim.LBFGS against torch.optim.LBFGS."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import tenure

torch = pytest.importorskip("torch")

OPTIONS: list[dict[str, Any]] = [
    {"lr": 0.2},
    {"lr": 0.2, "max_iter": 3, "history_size": 2},
    {"line_search_fn": "strong_wolfe"},
    {"lr": 0.5, "max_iter": 4, "line_search_fn": "strong_wolfe"},
    {"max_iter": 4, "max_eval": 3, "line_search_fn": "strong_wolfe"},
    {"lr": 0.2, "tolerance_grad": 5.0},
    {"lr": 0.2, "tolerance_change": 0.5},
]


def parameters(library: Any) -> list[Any]:
    values = [[-1.2, 1.0], [[0.5], [0.3]]]
    return [library.tensor(value, dtype=library.float64, requires_grad=True) for value in values]


def closure(params: list[Any], optimizer: Any) -> Callable[[], Any]:
    """Returns a closure that computes Rosenbrock's function of each parameter."""

    def evaluate() -> Any:
        optimizer.zero_grad()
        flat = [param.reshape(-1) for param in params]
        loss = sum(10 * (param[1] - param[0] ** 2) ** 2 + (1 - param[0]) ** 2 for param in flat)
        loss.backward()
        return loss

    return evaluate


def numbers(value: Any) -> Any:
    """Returns the numbers in a value."""
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else float(value)


def assert_close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(numbers(ours), numbers(theirs), rtol=1e-7, atol=1e-9)


def assert_same_state(ours: Any, theirs: Any) -> None:
    theirs = copy.copy(theirs)
    for unused in ("prev_loss", "al"):
        theirs.pop(unused, None)
    theirs["ro"] = theirs.get("ro", [])
    assert sorted(ours | {"ro": ours.get("ro", [])}) == sorted(theirs)
    for name, value in ours.items():
        assert_close(value, theirs[name])


@pytest.mark.parametrize("options", OPTIONS)
def test_steps_are_those_of_pytorch(options: dict[str, Any]) -> None:
    ours, theirs = parameters(tenure), parameters(torch)
    our_optimizer, their_optimizer = tenure.optim.LBFGS(ours, **options), torch.optim.LBFGS(theirs, **options)
    for _ in range(4):
        our_loss = our_optimizer.step(closure(ours, our_optimizer))
        their_loss = their_optimizer.step(closure(theirs, their_optimizer))
        assert_close([our_loss, *ours], [their_loss, *theirs])
    assert_same_state(our_optimizer.state[ours[0]], their_optimizer.state[theirs[0]])
    assert our_optimizer.state_dict()["param_groups"] == their_optimizer.state_dict()["param_groups"]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_state_of_pytorch_is_continued(options: dict[str, Any]) -> None:
    ours, theirs = parameters(tenure), parameters(torch)
    their_optimizer = torch.optim.LBFGS(theirs, **options)
    their_optimizer.step(closure(theirs, their_optimizer))
    for our, their in zip(ours, theirs, strict=True):
        our.data = tenure.tensor(their.tolist(), dtype=tenure.float64)
    our_optimizer = tenure.optim.LBFGS(ours)
    our_optimizer.load_state_dict(copy.deepcopy(their_optimizer.state_dict()))
    our_optimizer.step(closure(ours, our_optimizer))
    their_optimizer.step(closure(theirs, their_optimizer))
    assert_close(ours, theirs)


@pytest.mark.parametrize("options", OPTIONS)
def test_pytorch_continues_a_state(options: dict[str, Any]) -> None:
    ours, theirs = parameters(tenure), parameters(torch)
    our_optimizer = tenure.optim.LBFGS(ours, **options)
    our_optimizer.step(closure(ours, our_optimizer))
    with torch.no_grad():
        for our, their in zip(ours, theirs, strict=True):
            their.copy_(torch.tensor(our.tolist(), dtype=torch.float64))

    def for_torch(value: Any) -> Any:
        if isinstance(value, list):
            return [for_torch(item) for item in value]
        return torch.from_dlpack(value).clone() if isinstance(value, tenure.Tensor) else value

    state = our_optimizer.state_dict()
    state["state"] = {
        number: {name: for_torch(value) for name, value in values.items()} for number, values in state["state"].items()
    }
    their_optimizer = torch.optim.LBFGS(theirs)
    their_optimizer.load_state_dict(state)
    our_optimizer.step(closure(ours, our_optimizer))
    their_optimizer.step(closure(theirs, their_optimizer))
    assert_close(ours, theirs)


def test_a_resumed_run_is_the_same_bit_for_bit() -> None:
    params = parameters(tenure)
    optimizer = tenure.optim.LBFGS(params, max_iter=3, line_search_fn="strong_wolfe")
    assert len(optimizer.state) == 0
    optimizer.step(closure(params, optimizer))
    others = [param.detach().clone().requires_grad_() for param in params]
    resumed = tenure.optim.LBFGS(others)
    resumed.load_state_dict(optimizer.state_dict())
    optimizer.step(closure(params, optimizer))
    resumed.step(closure(others, resumed))
    assert numbers(others) == numbers(params)


def test_settings_are_read_at_every_step() -> None:
    ours, theirs = parameters(tenure), parameters(torch)
    our_optimizer, their_optimizer = tenure.optim.LBFGS(ours, lr=0.2), torch.optim.LBFGS(theirs, lr=0.2)
    for params, optimizer in ((ours, our_optimizer), (theirs, their_optimizer)):
        optimizer.step(closure(params, optimizer))
        optimizer.param_groups[0].update(lr=0.1, max_iter=2)
        optimizer.step(closure(params, optimizer))
    assert_close(ours, theirs)


def test_a_deleted_state_starts_anew() -> None:
    params = parameters(tenure)
    optimizer = tenure.optim.LBFGS(params, lr=0.2)
    optimizer.step(closure(params, optimizer))
    assert list(map(id, optimizer.state)) == [id(params[0])]
    del optimizer.state[params[0]]
    assert len(optimizer.state) == 0


def test_an_exception_of_the_closure_is_raised_and_parameters_are_where_they_were() -> None:
    params = parameters(tenure)
    optimizer = tenure.optim.LBFGS(params, line_search_fn="strong_wolfe")
    calls = []

    def fails() -> Any:
        calls.append(numbers(params))
        if len(calls) == 2:
            raise KeyError("data")
        return closure(params, optimizer)()

    with pytest.raises(KeyError, match="data"):
        optimizer.step(fails)
    assert calls[1] != calls[0]
    assert numbers(params) == calls[0]


def test_a_closure_may_return_a_float_and_is_called_with_gradients_on() -> None:
    params = parameters(tenure)
    optimizer = tenure.optim.LBFGS(params, lr=0.2)
    with tenure.no_grad():
        loss = optimizer.step(lambda: closure(params, optimizer)().item())
    assert isinstance(loss, float)
    others = parameters(tenure)
    other = tenure.optim.LBFGS(others, lr=0.2)
    assert other.step(closure(others, other)).item() == loss
    assert numbers(others) == numbers(params)


def test_a_closure_that_steps_its_optimizer_is_refused() -> None:
    params = parameters(tenure)
    optimizer = tenure.optim.LBFGS(params)
    with pytest.raises(RuntimeError, match="when the step is over"):
        optimizer.step(lambda: optimizer.step(closure(params, optimizer)))


def test_other_mistakes_are_refused() -> None:
    x = tenure.ones(1).requires_grad_()
    optimizer = tenure.optim.LBFGS([x])
    with pytest.raises(TypeError, match="closure"):
        optimizer.step()
    with pytest.raises(ValueError, match="parameter groups"):
        optimizer.add_param_group({"params": [tenure.ones(1)]})
    with pytest.raises(RuntimeError, match="strong_wolfe"):
        tenure.optim.LBFGS([x], line_search_fn="other").step(lambda: 1.0)
    with pytest.raises(KeyError, match="first parameter"):
        optimizer.state[tenure.ones(1)]
    with pytest.raises(tenure.Error, match="dtype"):
        tenure.optim.LBFGS([x, tenure.ones(1, dtype=tenure.float64)]).step(lambda: 1.0)
    last = {"d": tenure.ones(2), "t": 1.0, "prev_flat_grad": tenure.ones(2), "old_dirs": [], "old_stps": []}
    with pytest.raises(tenure.Error, match=r"\[2\]"):
        optimizer.state[x] = {"n_iter": 1, "func_evals": 1} | last
