"""Compares modules of `tenure.nn` with PyTorch's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tenure


def given(*sizes: int, seed: int = 0) -> Any:
    """Returns a tensor of PyTorch's with random values."""
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def close(ours: Any, theirs: Any, tolerance: float = 2e-5) -> bool:
    """Returns whether a tensor has the sizes and values of PyTorch's."""
    return tuple(ours.shape) == tuple(theirs.shape) and torch.allclose(
        torch.from_dlpack(ours.detach()), theirs.detach(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


def clone(value: Any) -> Any:
    """Copies tensors of PyTorch's, also in tuples. Other values stay as they are."""
    if isinstance(value, tuple):
        return tuple(clone(part) for part in value)
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def as_ours(value: Any) -> Any:
    """Copies tensors of PyTorch's, also in tuples, to ours. Other values stay as they are."""
    if isinstance(value, tuple):
        return tuple(as_ours(part) for part in value)
    return tenure.from_dlpack(clone(value)) if isinstance(value, torch.Tensor) else value


def same_error(ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
    """Asserts that two functions raise the same error, with sizes as lists and other names of modules."""
    with pytest.raises(Exception) as wanted:
        theirs()
    text = re.sub(r"torch\.Size\((\[.*?\])\)", r"\1", str(wanted.value)).replace("torch.", "tenure.")
    with pytest.raises(type(wanted.value)) as found:
        ours()
    assert str(found.value) == text


def compare(ours: Any, theirs: Any, *inputs: Any, **arguments: Any) -> None:
    """Asserts that two modules agree in names, texts, results and gradients, from PyTorch's weights."""
    assert list(ours.state_dict()) == list(theirs.state_dict())
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}
    assert {name: tuple(tensor.shape) for name, tensor in ours.state_dict().items()} == shapes
    text = repr(theirs).replace("torch.", "tenure.").replace("NonDynamicallyQuantizableLinear", "Linear")
    assert repr(ours) == text
    ours.load_state_dict(theirs.state_dict())
    # An input that is given twice stays one tensor.
    copies = {id(value): (as_ours(value), clone(value)) for value in inputs}
    our_inputs, their_inputs = zip(*(copies[id(value)] for value in inputs), strict=True)
    for mine, other in zip(flat(our_inputs), flat(their_inputs), strict=True):
        if isinstance(other, torch.Tensor) and other.is_floating_point():
            other.requires_grad_()
            mine.requires_grad_()
    expected = theirs(*their_inputs, **arguments)
    found = ours(*our_inputs, **{name: as_ours(value) for name, value in arguments.items()})
    flat_expected, flat_found = flat(expected), flat(found)
    assert len(flat_found) == len(flat_expected)
    for mine, other in zip(flat_found, flat_expected, strict=True):
        assert close(mine, other)
    sum((other * given(*other.shape, seed=1)).sum() for other in flat_expected if other.requires_grad).backward()
    total: Any = 0
    for mine, other in zip(flat_found, flat_expected, strict=True):
        if other.requires_grad:
            total = total + (mine * as_ours(given(*other.shape, seed=1))).sum()
    total.backward()
    for mine, other in zip(flat(our_inputs), flat(their_inputs), strict=True):
        if isinstance(other, torch.Tensor) and other.grad is not None:
            assert close(mine.grad, other.grad, 1e-4)
    parameters = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        if parameters[name].grad is not None:
            assert close(parameter.grad, parameters[name].grad, 1e-4), name
        else:
            assert parameter.grad is None, name
    for name, tensor in theirs.state_dict().items():
        assert close(ours.state_dict()[name], tensor), name


def flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in flat(part)]
    return [] if value is None else [value]
