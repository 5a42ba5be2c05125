"""Fixtures that the tests of PyTorch's behaviour share.

The tests are a specification: each holds on PyTorch's own allocator and on Tenure's. `TENURE_TEST_ALLOCATOR=native`
runs them on the former. They run on a GPU, or on the simulated CUDA of `tests/cudart`; there, kernels compute nothing,
and tests marked `values` are skipped. Its clock advances only in waits: a stream stays busy until a thread waits for
it.
"""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# CUDA reads this when it starts, here and in the processes that the tests start.
os.environ.setdefault("TENURE_CUDART_CLOCK", "virtual")

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import torch

    from .memory import ALLOCATOR


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "values: needs a GPU: kernels that compute, or more of CUDA than is simulated")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items = [item for item in items if item.path.parent == HERE]
    if not items:
        return
    reason = begin()
    simulated = reason is None and torch.cuda.is_available() and torch.cuda.get_device_name() == "Simulated"
    for item in items:
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
        elif simulated and item.get_closest_marker("values"):
            item.add_marker(pytest.mark.skip(reason="the simulated CUDA cannot do this"))


def begin() -> str | None:
    """Installs the tested allocator. Returns the reason if there is nothing to test."""
    if not torch.cuda.is_available():
        return "no GPU here, and not started on the simulated CUDA (`just test-torch`)"
    if ALLOCATOR == "tenure":
        import tenure.torch

        tenure.torch.install()
    # Freezes the objects so far, so that the collections around each test need not traverse them.
    gc.freeze()
    return None


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Checks that each test begins and ends with the same settings and memory."""
    settle()
    allocated = torch.cuda.memory_allocated()
    yield
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._set_memory_metadata("")
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    torch.cuda.set_per_process_memory_fraction(1.0)
    settle()
    assert torch.cuda.memory_allocated() <= allocated, "the test keeps memory"


def settle() -> None:
    gc.collect()
    torch.cuda.synchronize()
    # cuBLAS keeps a workspace for each stream that it was used on.
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
