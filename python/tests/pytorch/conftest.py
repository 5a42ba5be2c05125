"""What the tests of PyTorch's behaviour share.

They are a specification: each holds on PyTorch's own allocator and on Tenure's. `TENURE_TEST_ALLOCATOR=native` runs
them on the former. They run on a GPU, or on the simulated CUDA of `tests/cudart`; there, kernels compute nothing, and
tests marked `values` are skipped. Its clock stands still except for waits: a busy stream stays busy until then.
"""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# Read when CUDA starts, here and in the processes that the tests start.
os.environ.setdefault("TENURE_CUDART_CLOCK", "virtual")

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import torch
    from memory import ALLOCATOR


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
    """Installs the allocator that is tested; or says why there is nothing to test."""
    if not torch.cuda.is_available():
        return "no GPU here, and not started on the simulated CUDA (`just test-torch`)"
    if ALLOCATOR == "tenure":
        import tenure.torch

        tenure.torch.install()
    # What is there now stays, and need not be looked through before and after each test.
    gc.freeze()
    return None


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Each test begins and ends with settings and memory as they were."""
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
    # A library's workspace stays for the stream that it was first used on.
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
