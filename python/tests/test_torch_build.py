"""Shims that are compiled for the PyTorch that is there."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tenure.torch import build


def test_a_shim_has_the_cxx_library_of_pytorch_whatever_its_compiler_links(tmp_path: Path) -> None:
    library = tmp_path / "shim.so"
    build.compile_shim(build.Torch.current(), library, build.on_cpu(), compiler=["c++", "-static-libstdc++"])
    assert b"libstdc++.so" in library.read_bytes()
