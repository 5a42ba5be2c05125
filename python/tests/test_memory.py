"""Memory of this process on its devices: here on a simulated device, used through the C interface."""

from __future__ import annotations

import ctypes
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tenure
from tenure import _native

# The only device that can be simulated, and a device that no machine has.
DEVICE, ABSENT = 0, 100
MIB = 1 << 20


class Library:
    """The C interface of the extension module, and the simulated device that it opened."""

    def __init__(self) -> None:
        self.c = ctypes.CDLL(_native.__file__)
        self.c.tenure_last_error.restype = ctypes.c_char_p
        self.check(self.c.tenure_open(DEVICE, b"driver=sim"))

    def allocate(self, size: int) -> ctypes.c_void_p:
        block = ctypes.c_void_p()
        self.check(self.c.tenure_alloc(DEVICE, ctypes.c_size_t(size), None, ctypes.byref(block)))
        return block

    def free(self, block: ctypes.c_void_p) -> None:
        self.check(self.c.tenure_free(DEVICE, block))

    def check(self, status: int) -> None:
        assert status == 0, self.c.tenure_last_error()


@pytest.fixture(scope="module")
def library() -> Library:
    return Library()


@pytest.fixture
def block(library: Library) -> Iterator[ctypes.c_void_p]:
    """Allocates a block of 8 MiB."""
    block = library.allocate(8 * MIB)
    yield block
    library.free(block)


CALLS = pytest.mark.parametrize(
    "call",
    [
        tenure.memory.stats,
        tenure.memory.reset_peak,
        tenure.memory.snapshot,
        tenure.memory.empty_cache,
        lambda device: tenure.memory.set_memory_fraction(0.5, device),
    ],
)


@CALLS
def test_a_device_that_was_not_opened_says_how_to_open_it(call: Callable[[int], object]) -> None:
    with pytest.raises(tenure.Error, match=r"device 100: call tenure.torch.install\(\) before"):
        call(ABSENT)
    assert ABSENT not in tenure.memory.installed()


@CALLS
@pytest.mark.parametrize("device", [-1, 1 << 70])
def test_a_number_that_no_device_has(call: Callable[[int], object], device: int) -> None:
    with pytest.raises(tenure.Error, match=f"device {device} does not exist: devices are numbered from 0"):
        call(device)


def test_a_device_that_pytorch_has_not_used_yet_says_so() -> None:
    """`install()` was called: the message does not ask for it again."""
    program = """
import tenure
tenure._native.torch_configure("allocator=paged,fraction=1.0")
try:
    tenure.memory.stats(1)
except tenure.Error as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == (
        "PyTorch has not used device 1 yet, so that it has no memory there: ask after its first tensor on it, "
        'such as torch.empty(1, device="cuda:1")\n'
    )


def test_allocations_of_c_are_counted(block: ctypes.c_void_p) -> None:
    assert DEVICE in tenure.memory.installed()
    stats = tenure.memory.stats(DEVICE)
    assert stats["allocated_bytes.all.current"] == 8 * MIB
    assert stats["requested_bytes.unknown.current"] == 8 * MIB
    assert stats["reserved_bytes.all.current"] is not None
    assert stats["reserved_bytes.all.current"] >= 8 * MIB
    assert "overhead_bytes" in stats


def test_a_peak_can_be_begun_again(library: Library, block: ctypes.c_void_p) -> None:
    library.free(library.allocate(64 * MIB))
    assert tenure.memory.stats(DEVICE)["allocated_bytes.all.peak"] == 72 * MIB
    tenure.memory.reset_peak(DEVICE)
    assert tenure.memory.stats(DEVICE)["allocated_bytes.all.peak"] == 8 * MIB


def test_cached_memory_goes_back_to_the_device(library: Library) -> None:
    library.free(library.allocate(64 * MIB))
    tenure.memory.empty_cache(DEVICE)
    assert tenure.memory.stats(DEVICE)["reserved_bytes.all.current"] == 0


def test_a_snapshot_has_the_shape_of_pytorchs(block: ctypes.c_void_p) -> None:
    snapshot = tenure.memory.snapshot(DEVICE)
    assert snapshot.keys() >= {"segments", "device_traces", "allocator_settings"}
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    active = [(each["address"], each["requested_size"]) for each in blocks if each["state"] == "active_allocated"]
    assert active == [(block.value, 8 * MIB)]


def test_a_snapshot_without_a_history_is_no_trace(block: ctypes.c_void_p, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(tenure.memory.snapshot(DEVICE)))
    with pytest.raises(tenure.TraceError, match="snapshot.pickle: .*history"):
        tenure.trace.load(path)


def test_a_fraction_is_from_0_to_1(library: Library) -> None:
    tenure.memory.set_memory_fraction(1.0, DEVICE)
    with pytest.raises(tenure.Error):
        tenure.memory.set_memory_fraction(1.5, DEVICE)
