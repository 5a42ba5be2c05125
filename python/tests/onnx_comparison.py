"""Comparison of what ONNX Runtime computes with what an exported function computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import Tensor
from tenure.onnx import export

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
np = pytest.importorskip("numpy")


def outputs(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def session(path: Path) -> Any:
    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def compare(found: Any, function: Callable[..., Any], inputs: Sequence[Tensor], tolerance: float = 1e-4) -> None:
    """Compares what ONNX Runtime computes with what a function computes."""
    names = [info.name for info in found.get_inputs()]
    given = {name: np.asarray(tensor) for name, tensor in zip(names, inputs, strict=True)}
    results = found.run(None, given)
    with tenure.no_grad():
        expected = outputs(function(*inputs))
    assert len(results) == len(expected)
    for result, tensor in zip(results, expected, strict=True):
        wanted = np.asarray(tensor)
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance)


def check(function: Callable[..., Any], inputs: Sequence[Tensor], path: Path, **options: Any) -> Any:
    """Exports a function, compares it, and returns the session."""
    file = path / "model.onnx"
    export(function, tuple(inputs), file, **options)
    found = session(file)
    compare(found, function, inputs)
    return found


def numbers(*sizes: int) -> Tensor:
    return tenure.randn(*sizes, generator=tenure.Generator().manual_seed(sum(sizes)))
