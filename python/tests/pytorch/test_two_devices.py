"""Memory of two devices.

Each test has a process of its own, where peer access is not enabled yet. The tests are skipped where there is one GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
import torch

from . import two_devices
from .memory import ALLOCATOR, MIB

KINDS = ["paged", "native", "expandable", "native pluggable"] if ALLOCATOR == "tenure" else ["stock"]

Run = Callable[[Callable[[str], Any]], Any]


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Returns a function that runs a function of `two_devices` on an allocator."""
    if torch.cuda.get_device_name() != "Simulated" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    monkeypatch.setenv("TENURE_CUDART_DEVICES", "2")
    monkeypatch.setenv("TENURE_TORCH", "0")

    def in_a_process(function: Callable[[str], Any]) -> Any:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(function, request.param).result(timeout=300)

    return in_a_process


def test_copies_from_one_device_to_another_have_its_bytes(run: Run) -> None:
    assert set(run(two_devices.copies).items()) == {
        (f"{when}, {what}", True)
        for when in ("before", "after")
        for what in ("new, to 0", "new, to 1", "into what was there")
    }


def test_copies_let_a_device_reach_the_other_s_memory_once(run: Run) -> None:
    can, does = run(two_devices.enabled)
    if not all(can):
        pytest.skip("these devices do not reach each other's memory")
    assert sorted(does) == [False, True], "one direction is not the other"


@pytest.mark.skipif(ALLOCATOR != "tenure", reason="about Tenure")
def test_a_device_is_known_from_its_first_use_on(run: Run) -> None:
    assert run(two_devices.known) == [[], [0], [0, 1]]


def test_memory_is_counted_and_freed_on_its_own_device(run: Run) -> None:
    assert run(two_devices.figures) == [[4 * MIB, 6 * MIB], [4 * MIB, 0], [0, 0], [0, 0]]
