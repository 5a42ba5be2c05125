"""Memory that other libraries of the program allocate: it is counted by library, and gets what PyTorch has cached."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import tenure
import tenure.torch
from tenure.extension import _compilation

MIB = 1 << 20
CAPACITY = 8 << 30

#: A library that reaches the driver as NCCL does: by the loader, and from there on by the driver.
SOURCE = """
#include <dlfcn.h>
#include <stddef.h>
typedef int (*find_t)(const char *, void **, int, unsigned long long, void *);
static void *look_up(const char *name) {
  void *function = NULL;
  find_t find = (find_t)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
  return find(name, &function, 12000, 0, NULL) ? NULL : function;
}
int take(unsigned long long *address, size_t bytes) {
  return ((int (*)(unsigned long long *, size_t))look_up("cuMemAlloc"))(address, bytes);
}
int give(unsigned long long address) { return ((int (*)(unsigned long long))look_up("cuMemFree"))(address); }
"""


class Library:
    """A library that allocates device memory by itself."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.take.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]
        self._library.give.argtypes = [ctypes.c_uint64]

    def take(self, count: int) -> int | None:
        """Returns the address of a new allocation, or None if there is no room."""
        address = ctypes.c_uint64()
        code = self._library.take(ctypes.byref(address), count)
        assert code in (0, 2)
        return address.value if code == 0 else None

    def give(self, address: int) -> None:
        assert self._library.give(address) == 0


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles the library."""
    path = tmp_path_factory.mktemp("library") / "libother.so.3"
    command = [*_compilation.compiler(), "-x", "c", "-", "-shared", "-fPIC", "-o", str(path), "-ldl"]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    return path


def loaded(path: Path) -> Library:
    """Loads the library after Tenure was installed and CUDA has started."""
    tenure.torch.install()
    torch.empty(1, device="cuda")
    return Library(path)


def use() -> dict[str, Any]:
    """Returns who holds the device's memory, and checks that it is all of it."""
    device: dict[str, Any] = tenure.torch.report(format="json")["device"]
    held = sum(library["bytes"] for library in device["libraries"])
    parts = ("free_bytes", "allocated_bytes", "cached_bytes", "unnamed_bytes")
    assert held + sum(device[part] for part in parts) + (device["context_bytes"] or 0) == device["total_bytes"]
    return device


def holdings() -> dict[str, int]:
    return {library["library"]: library["bytes"] for library in use()["libraries"]}


def test_each_library_is_named_with_what_it_holds(path: Path) -> None:
    library = loaded(path)
    assert holdings() == {}
    first, second = library.take(3 * MIB), library.take(5 * MIB)
    assert first and second
    assert holdings() == {"libother.so.3": 8 * MIB}
    assert use()["unnamed_bytes"] == 0
    library.give(first)
    assert holdings() == {"libother.so.3": 5 * MIB}
    library.give(second)
    assert holdings() == {}


def test_memory_by_way_of_the_runtime_is_the_callers(path: Path) -> None:
    loaded(path)
    runtime = ctypes.CDLL("libcudart.so.13")
    address = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(6 * MIB)) == 0
    ((name, held),) = holdings().items()
    assert held == 6 * MIB and "cudart" not in name and "ffi" not in name
    assert runtime.cudaFree(address) == 0
    assert holdings() == {}


def test_a_runtime_that_has_started_before_is_seen(path: Path) -> None:
    runtime = ctypes.CDLL("libcudart.so.13")
    address = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(MIB)) == 0
    assert runtime.cudaFree(address) == 0
    loaded(path)
    assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(6 * MIB)) == 0
    assert list(holdings().values()) == [6 * MIB]
    assert runtime.cudaFree(address) == 0
    assert holdings() == {}


def test_a_chunk_is_held_until_it_is_unmapped(path: Path) -> None:
    loaded(path)
    driver = ctypes.CDLL("libcuda.so.1")
    size, handle, address = ctypes.c_size_t(4 * MIB), ctypes.c_uint64(), ctypes.c_uint64()
    # CUmemAllocationProp: pinned memory of device 0.
    properties = (ctypes.c_int * 8)(1, 0, 1, 0, 0, 0, 0, 0)
    zero = ctypes.c_uint64(0)
    assert driver.cuMemAddressReserve(ctypes.byref(address), size, ctypes.c_size_t(0), zero, zero) == 0
    assert driver.cuMemCreate(ctypes.byref(handle), size, properties, zero) == 0
    assert list(holdings().values()) == [4 * MIB]
    assert driver.cuMemMap(address, size, ctypes.c_size_t(0), handle, zero) == 0
    assert driver.cuMemRelease(handle) == 0
    assert list(holdings().values()) == [4 * MIB]
    assert driver.cuMemUnmap(address, size) == 0
    assert holdings() == {}
    assert use()["unnamed_bytes"] == 0


def test_a_failed_free_leaves_the_figures(path: Path) -> None:
    library = loaded(path)
    address = library.take(4 * MIB)
    assert address
    with pytest.raises(AssertionError):
        library.give(address + 1)
    assert holdings() == {"libother.so.3": 4 * MIB}


#: PyTorch's policies keep a chunk of which a part is in use.
KEPT = {"paged": 4 * MIB, "native": 4 * MIB, "expandable": 24 * MIB}


@pytest.mark.parametrize("allocator", KEPT)
def test_a_library_gets_what_is_cached(path: Path, allocator: Any) -> None:
    tenure.torch.install(allocator)
    kept = torch.empty(CAPACITY // 4, dtype=torch.uint8, device="cuda")
    cached = torch.empty(CAPACITY // 2, dtype=torch.uint8, device="cuda")
    del cached
    assert use()["cached_bytes"] >= CAPACITY // 2
    device = use()
    room = device["free_bytes"] + device["cached_bytes"] - KEPT[allocator]
    assert room > CAPACITY // 2 > device["free_bytes"]
    library = Library(path)
    address = library.take(room)
    assert address
    assert holdings() == {"libother.so.3": room}
    assert library.take(room) is None
    library.give(address)
    assert kept.numel() == CAPACITY // 4


def test_plain_pytorch_lets_a_library_fail(path: Path) -> None:
    del [torch.empty(CAPACITY * 3 // 4, dtype=torch.uint8, device="cuda")][:]
    assert Library(path).take(CAPACITY // 2) is None


def test_the_error_of_a_full_device_names_the_libraries(path: Path) -> None:
    library = loaded(path)
    assert library.take(CAPACITY // 2)
    with pytest.raises(torch.OutOfMemoryError, match=r"(?s)by other libraries.*libother\.so\.3 +4\.00 GiB"):
        torch.empty(CAPACITY * 3 // 4, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("allocator", ["paged", "native", "expandable"])
def test_a_headroom_is_never_taken(path: Path, allocator: Any) -> None:
    tenure.torch.install(allocator, headroom="2GiB")
    blocks = []
    with pytest.raises(torch.OutOfMemoryError, match=r"leaves 2\.00 GiB of the device free for others"):
        for _ in range(100):
            blocks.append(torch.empty(128 * MIB, dtype=torch.uint8, device="cuda"))
    assert len(blocks) >= 47
    assert 2 << 30 <= use()["free_bytes"] < (2 << 30) + 256 * MIB
    assert Library(path).take(2 << 30)


@pytest.mark.parametrize("headroom", ["much", "50%", -1, True])
def test_a_headroom_is_in_bytes(headroom: Any) -> None:
    with pytest.raises(tenure.Error, match="headroom="):
        tenure.torch.install(headroom=headroom)
