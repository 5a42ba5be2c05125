"""Fixtures that the tests of tags share.

Tests with a device need one under PyTorch, real or simulated (tests/cudart). They look at memory and not at values, and
use none of CUDA's libraries, since the simulated device runs no kernel and has no library.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

import tenure.torch  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    """Installs Tenure before any test makes PyTorch start CUDA."""
    if torch.cuda.is_available():
        tenure.torch.install()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(installed: None) -> Iterator[None]:
    from tenure.torch.tagging import backward

    from .tagging import NOTHING, backward_thread_has, purpose

    # Frees models of other tests, which exceptions or graphs have kept.
    gc.collect()
    assert purpose() == NOTHING
    yield
    assert purpose() == NOTHING
    assert not torch.cuda.is_available() or backward_thread_has() == NOTHING
    assert not backward._spans


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets tests tag modules where there is no device to install Tenure on."""
    monkeypatch.setattr("tenure.torch.tagging.tags.status", lambda: tenure.torch.Status("built shim", "test"))


@pytest.fixture
def device() -> str:
    return "cuda"
