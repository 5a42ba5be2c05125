"""Memory of this process on its devices, and what is said where there is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tenure


@pytest.mark.parametrize(
    "call",
    [
        tenure.memory.stats,
        tenure.memory.reset_peak,
        tenure.memory.snapshot,
        tenure.memory.empty_cache,
        lambda: tenure.memory.set_memory_fraction(0.5),
    ],
)
def test_a_device_that_was_not_opened_says_how_to_open_it(call: Callable[[], object]) -> None:
    with pytest.raises(tenure.Error, match=r"device 0: call tenure.torch.install\(\) before"):
        call()
    assert tenure.memory.installed() == []
