"""Tests of tenure.amp."""

from __future__ import annotations

from typing import Any

import pytest

import tenure


def test_products_are_computed_in_the_lower_dtype() -> None:
    x = tenure.ones(2, 2, requires_grad=True)
    with tenure.autocast("cpu", dtype=tenure.bfloat16):
        product = x @ x
        assert product.dtype == tenure.bfloat16
        assert (x + x).dtype == tenure.float32
        assert tenure.amp.is_autocast_enabled()
        with tenure.autocast("cpu", enabled=False):
            assert (x @ x).dtype == tenure.float32
    assert not tenure.amp.is_autocast_enabled()
    product.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == tenure.float32


def test_the_device_decides_the_default_dtype() -> None:
    x = tenure.ones(2, 2)

    @tenure.autocast("cuda")
    def product() -> Any:
        return x @ x

    assert product().dtype == tenure.float16
    assert tenure.amp.get_autocast_dtype("cpu") == tenure.bfloat16


def test_dtypes_and_devices_that_autocast_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match="float16 or bfloat16"):
        tenure.autocast("cpu", dtype=tenure.float64)
    with pytest.raises(RuntimeError, match="unsupported autocast device_type"):
        tenure.autocast("tpu")


def scaled_runs(library: Any, grads: list[list[float]]) -> list[Any]:
    """Returns the parameter, the scale and the state after each step."""
    x = library.tensor([4.0, 4.0], requires_grad=True)
    optimizer = library.optim.SGD([x], lr=0.25)
    scaler = library.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    seen = []
    for number, grad in enumerate(grads):
        optimizer.zero_grad()
        scaler.scale((x * library.tensor(grad)).sum()).backward()
        if number % 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        seen.append((x.tolist(), scaler.get_scale(), scaler.state_dict()))
    return seen


def test_a_scaler_skips_steps_and_adapts_as_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    grads = [[1.0, 2.0], [1.0, 1.0], [float("inf"), 1.0], [1.0, float("nan")], [2.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    ours = scaled_runs(tenure, grads)
    assert ours == scaled_runs(torch, grads)
    assert ours[2][0] == ours[1][0]
    assert ours[2][1] == 8.0


def test_a_scaler_refuses_calls_in_another_order() -> None:
    x = tenure.tensor([4.0], requires_grad=True)
    optimizer = tenure.optim.SGD([x])
    scaler = tenure.amp.GradScaler()
    with pytest.raises(RuntimeError, match="No inf checks"):
        scaler.update()
    x.grad = tenure.tensor([1.0])
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimizer)


def test_a_scaler_that_is_not_enabled_changes_nothing() -> None:
    x = tenure.tensor([4.0], requires_grad=True)
    optimizer = tenure.optim.SGD([x], lr=1.0)
    scaler = tenure.amp.GradScaler(enabled=False)
    x.grad = tenure.tensor([1.0])
    scaler.step(optimizer)
    scaler.update()
    assert x.tolist() == [3.0]
    assert scaler.state_dict() == {}
