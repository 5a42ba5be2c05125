"""Modules that a user's functions load for a server."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
modules = pytest.importorskip("tenure.serving.modules")

CODE = """
import torch

def load(folder):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8))
    model[2].weight = model[0].weight
    model.itself = [model]
    return model
"""


def names() -> set[str]:
    return {name for name in sys.modules if name.startswith("tenure_model_")}


def test_weights_that_are_shared_count_once_and_are_freed_with_the_module(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(CODE)
    loaded = modules.load(str(tmp_path), "model.py", "load", ["y"])
    # One weight, two biases; the normalisation's four vectors and its counter.
    assert loaded.bytes == 4 * (64 + 8 + 8 + 4 * 8) + 8
    assert not loaded._module.training
    (answer,) = loaded([torch.ones(2, 8)])
    assert answer.shape == (2, 8)
    weight = weakref.ref(loaded._module[0].weight)
    assert len(names()) == 1
    loaded.drop()
    assert weight() is None and not names()


def test_two_models_may_have_files_of_one_name(tmp_path: Path) -> None:
    for name, factor in ("a", 2), ("b", 3):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text(
            CODE + f"\nFACTOR = {factor}\ndef factor(folder): raise KeyError(FACTOR)"
        )
    for name, factor in ("a", 2), ("b", 3), ("a", 2):
        with pytest.raises(KeyError, match=str(factor)):
            modules.load(str(tmp_path / name), "model.py", "factor", ["y"])
    assert not names(), "what could not be loaded leaves nothing"


def test_a_function_of_an_importable_module_is_called_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "importable_for_tenure.py").write_text(
        "import torch\ndef load(folder):\n    m = torch.nn.Identity()\n    m.folder = folder\n    return m\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = modules.load("/some/folder", "importable_for_tenure", "load", ["y"])
    assert loaded._module.folder == "/some/folder" and loaded.bytes == 0
    loaded.drop()
    assert "importable_for_tenure" in sys.modules


def test_weights_elsewhere_than_on_the_cpu_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\ndef load(folder):\n    return torch.nn.Linear(2, 2, device='meta')\n"
    )
    with pytest.raises(TypeError, match="returns a module on meta: return it on the CPU"):
        modules.load(str(tmp_path), "model.py", "load", ["y"])
