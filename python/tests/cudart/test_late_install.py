"""`tenure.torch.install` after PyTorch's C++ code has begun to use its own allocator, which Python cannot see.

The installation fails then, and leaves nothing half in place.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch.utils.data import DataLoader

import tenure
import tenure.torch


def record() -> None:
    torch.cuda.memory._record_memory_history(max_entries=1000, context=None)


def pin() -> None:
    torch.empty(1).pin_memory()


def load() -> None:
    next(iter(DataLoader([torch.ones(1)], pin_memory=True)))


@pytest.mark.parametrize("start", [record, pin, load])
@pytest.mark.parametrize("compiler", [True, False])
@pytest.mark.filterwarnings("ignore:there is no program")
def test_it_says_what_to_do(start: Callable[[], None], compiler: bool) -> None:
    start()
    assert not torch.cuda.is_initialized()
    for _ in range(2):
        with (
            without_compiler(not compiler),
            pytest.raises(
                tenure.torch.InstallError, match=r"^CUDA has started already, .*: call tenure.torch.install\(\) earlier"
            ),
        ):
            tenure.torch.install()
    assert torch.cuda.get_allocator_backend() == "native"
    assert tenure.torch.status().mode == "not installed"
    with pytest.raises(tenure.Error, match=r"call tenure.torch.install\(\) before the first"):
        tenure.memory.stats()


def test_settings_are_pytorchs_own(capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> None:
    torch._C._accelerator_setAllocatorSettings("max_split_size_mb:128")
    pin()
    with pytest.raises(tenure.torch.InstallError, match="CUDA has started already"):
        tenure.torch.install()
    torch._C._accelerator_setAllocatorSettings("garbage_collection_threshold:0.5")
    assert "changes nothing" not in capfd.readouterr().err + "".join(str(warning.message) for warning in recwarn)


def without_compiler(really: bool) -> mock._patch_dict:
    """Makes shims impossible to build, if `really`."""
    return mock.patch.dict("os.environ", {"CXX": "nowhere"} if really else {})
