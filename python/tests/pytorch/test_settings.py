"""Settings of the allocator, and state that installing it must not change."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .memory import ALLOCATOR, MIB, limit, stat, tensor


def program(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program on the tested allocator."""
    hook = {"TENURE_TORCH": "1" if ALLOCATOR == "tenure" else "0"}
    return subprocess.run(
        [sys.executable, "-c", text], env=os.environ | hook | environment, text=True, capture_output=True, timeout=300
    )


@pytest.mark.parametrize(
    ("setting", "size", "taken"),
    [
        ("", 84 * MIB, 84 * MIB),
        ("roundup_power2_divisions:4", 84 * MIB, 96 * MIB),
        ("roundup_power2_divisions:4", 64 * MIB, 64 * MIB),
        ("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 84 * MIB, 88 * MIB),
        ("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 400 * MIB, 512 * MIB),
    ],
)
def test_requests_are_rounded_as_set_and_counted_as_asked(setting: str, size: int, taken: int) -> None:
    """Covers TestCudaMallocAsync.test_allocator_settings."""
    torch._C._accelerator_setAllocatorSettings(setting)
    before = stat("active_bytes.all.allocated"), stat("requested_bytes.all.allocated")
    held = tensor(size)
    assert stat("active_bytes.all.allocated") - before[0] == taken
    assert stat("requested_bytes.all.allocated") - before[1] == held.numel()


def test_a_setting_that_is_not_given_again_is_as_at_first() -> None:
    """Covers TestCudaMallocAsync.test_allocator_settings."""
    torch._C._accelerator_setAllocatorSettings("roundup_power2_divisions:4")
    torch._C._accelerator_setAllocatorSettings("garbage_collection_threshold:0.5,max_split_size_mb:40")
    before = stat("active_bytes.all.allocated")
    tensor(84 * MIB)
    assert stat("active_bytes.all.allocated") - before == 84 * MIB


@pytest.mark.parametrize("setting", ["foo:1", "garbage_collection_threshold:1.2", "max_split_size_mb:2"])
def test_settings_that_make_no_sense_are_refused(setting: str) -> None:
    """Covers TestCudaMallocAsync.test_allocator_settings."""
    with pytest.raises(ValueError):
        torch._C._accelerator_setAllocatorSettings(setting)


def test_the_backend_that_is_there_may_be_named() -> None:
    """Programs name it in their settings."""
    torch._C._accelerator_setAllocatorSettings("backend:native,roundup_power2_divisions:4")
    assert torch.cuda.get_allocator_backend() == ("tenure" if ALLOCATOR == "tenure" else "native")
    with pytest.raises(RuntimeError, match="parsed at load time"):
        torch._C._accelerator_setAllocatorSettings("backend:cudaMallocAsync")
    assert torch.cuda.get_allocator_backend() == ("tenure" if ALLOCATOR == "tenure" else "native")


def test_settings_that_change_nothing_are_named_and_no_others() -> None:
    settings = "expandable_segments:True,max_split_size_mb:40"
    done = program("import torch; torch.zeros(1, device='cuda')", PYTORCH_ALLOC_CONF=settings)
    assert done.returncode == 0, done.stderr
    assert "expandable_segments changes nothing" not in done.stderr, "private pools are made of them"
    assert ("max_split_size_mb changes nothing" in done.stderr) == (ALLOCATOR == "tenure")


# A value for each setting, and whether the setting changes nothing in Tenure.
SETTINGS = {
    "backend:native": False,
    "expandable_segments:True": False,
    "expandable_segments_reserve:0.5": True,
    "expandable_segments_reserve_by_class:[a:0.5]": True,
    "garbage_collection_threshold:0.5": True,
    "graph_capture_record_stream_reuse:True": True,
    "large_segment_size_mb:40": True,
    "max_non_split_rounding_mb:100": True,
    "max_split_size_mb:40": True,
    "per_process_memory_fraction:0.5": False,
    "pinned_free_catch_all:True": False,
    "pinned_max_cached_size_mb:64": False,
    "pinned_max_round_threshold_mb:64": False,
    "pinned_num_register_threads:2": False,
    "pinned_reserve_segment_size_mb:2": False,
    "pinned_use_background_threads:True": False,
    "pinned_use_cuda_host_register:True": False,
    "release_lock_on_cudamalloc:True": True,
    "roundup_power2_divisions:4": False,
    "throw_on_cudamalloc_oom:True": False,
}

# Settings newer than 2.11: an older PyTorch refuses them.
NEW_SETTINGS = {
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "throw_on_cudamalloc_oom",
}


def name_of(setting: str) -> str:
    return setting.split(":")[0]


def accepted_settings() -> list[str]:
    """Returns the settings that this PyTorch knows."""
    source = (Path(torch.__file__).parent / "lib/libc10_cuda.so").read_bytes()
    source += (Path(torch.__file__).parent / "lib/libc10.so").read_bytes()
    return [it for it in SETTINGS if name_of(it) not in NEW_SETTINGS or name_of(it).encode() in source]


def test_every_setting_is_known() -> None:
    """A setting that PyTorch adds must be followed, or named as one that changes nothing."""
    include = Path(torch.__file__).parent / "include/c10"
    names = set()
    for header in ("core/AllocatorConfig.h", "cuda/CUDAAllocatorConfig.h"):
        # Newer headers list CUDA's keys only.
        for keys in re.findall(r"unordered_set<std::string> keys\{(.*?)\};", (include / header).read_text(), re.DOTALL):
            keys = re.sub(r"//.*", "", keys)
            names |= {name.replace('"', "") for name in re.sub(r'"\s+"', "", keys).replace(" ", "").split(",")}
    names = {name.strip() for name in names if "hip" not in name}
    assert names, "the headers name settings"
    assert names <= {name_of(setting) for setting in accepted_settings()}


def test_of_all_settings_those_that_change_nothing_are_named_once() -> None:
    settings = accepted_settings()
    text = f"import torch\nfor setting in {settings * 2}: torch._C._accelerator_setAllocatorSettings(setting)"
    done = program(text)
    assert done.returncode == 0, done.stderr
    unused = [name_of(setting) for setting in settings if SETTINGS[setting] and ALLOCATOR == "tenure"]
    assert re.findall(r"(\w+) changes nothing", done.stderr) == unused


FRACTIONS = """
import torch, tenure.torch
before = torch.cuda.get_per_process_memory_fraction(), tenure.torch.status().fraction
torch.zeros(1, device="cuda")
after = torch.cuda.get_per_process_memory_fraction(), tenure.torch.status().fraction
torch.cuda.set_per_process_memory_fraction(0.75)
print(*before, *after, tenure.torch.status().fraction)
"""


@pytest.mark.skipif(ALLOCATOR != "tenure", reason="of install()'s own limit")
@pytest.mark.parametrize(
    ("installed", "setting", "least"), [("0.25", "0.5", 0.25), ("0.5", "0.25", 0.25), ("0.25", "1.0", 0.25)]
)
def test_of_two_fractions_the_smaller_holds(installed: str, setting: str, least: float) -> None:
    done = program(
        FRACTIONS,
        TENURE_TORCH_OPTIONS=f"fraction={installed}",
        PYTORCH_ALLOC_CONF=f"per_process_memory_fraction:{setting}",
    )
    assert [float(word) for word in done.stdout.split()] == [least] * 4 + [0.75], done.stderr


FRACTION = "torch.cuda.get_per_process_memory_fraction()"


@pytest.mark.parametrize(("started", "installed", "least"), [(False, "1", 0.5), (False, "0.25", 0.25), (True, "1", 1)])
def test_the_fraction_can_be_set_by_the_program_until_cuda_starts(started: bool, installed: str, least: float) -> None:
    text = f"""
import torch, tenure.torch
{FRACTION if started else ""}
for fraction in (0.125, 0.5):
    torch._C._accelerator_setAllocatorSettings(f"per_process_memory_fraction:{{fraction}}")
torch.zeros(1, device="cuda")
print({FRACTION})
"""
    done = program(text, TENURE_TORCH_OPTIONS=f"fraction={installed}")
    assert float(done.stdout) == (least if ALLOCATOR == "tenure" else max(least, 0.5)), done.stderr


def test_expandable_segments_are_turned_on_and_off_between_blocks() -> None:
    """Covers TestCudaMallocAsync.test_max_split_expandable, TestCudaMallocAsync.test_garbage_collect_expandable."""
    limit(120 * MIB)
    held = []
    for on in (False, True, False):
        torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{on},max_split_size_mb:40")
        held.append(tensor(40 * MIB))
    with pytest.raises(torch.OutOfMemoryError):
        tensor(40 * MIB)
    held.clear()
    assert tensor(120 * MIB).numel() == 120 * MIB


def test_the_cache_can_be_turned_off() -> None:
    """Covers TestCudaMallocAsync.test_cachingAllocator_raw_alloc."""

    def counted() -> int:
        before = stat("requested_bytes.all.allocated")
        stream = torch._C._cuda_getCurrentRawStream(0)
        address = torch._C._cuda_cudaCachingAllocator_raw_alloc(MIB, stream)
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)
        return stat("requested_bytes.all.allocated") - before

    torch.cuda.caching_allocator_enable(False)
    try:
        assert counted() == 0
    finally:
        torch.cuda.caching_allocator_enable(True)
    assert counted() == MIB


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_the_fraction_can_be_set_from_outside(fraction: float) -> None:
    """Covers TestCudaMallocAsync.test_allocator_memory_fraction_setting."""
    setting = f"per_process_memory_fraction:{fraction}"
    done = program(
        "import torch; print(torch.cuda.get_per_process_memory_fraction(torch._C._cuda_getDevice()))",
        PYTORCH_CUDA_ALLOC_CONF=setting,
    )
    assert done.stdout == f"{fraction}\n", done.stderr


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_a_fraction_from_outside_that_makes_no_sense_is_an_error(fraction: float) -> None:
    """Covers TestCudaMallocAsync.test_allocator_memory_fraction_setting."""
    setting = f"per_process_memory_fraction:{fraction}"
    done = program("import torch; torch.cuda.get_per_process_memory_fraction(0)", PYTORCH_CUDA_ALLOC_CONF=setting)
    assert done.returncode != 0
    assert "per_process_memory_fraction is invalid" in done.stderr


def test_another_backend_that_the_program_chose_is_left_alone() -> None:
    """Covers TestCudaMallocAsync.test_allocator_backend."""
    text = "import torch; torch.cuda.init(); print(torch.cuda.get_allocator_backend())"
    done = program(text, PYTORCH_ALLOC_CONF="max_split_size_mb:20,backend:cudaMallocAsync")
    assert done.stdout == "cudaMallocAsync\n", done.stderr


def test_a_backend_that_pytorch_does_not_know_is_an_error() -> None:
    text = "import torch; torch.cuda.init()"
    done = program(text, PYTORCH_ALLOC_CONF="backend:tenure")
    assert done.returncode != 0
    assert "ValueError: Unknown allocator backend" in done.stderr
    told = "PyTorch refuses its own settings, PYTORCH_ALLOC_CONF=backend:tenure: Unknown allocator back" in done.stderr
    assert told == (ALLOCATOR == "tenure")


@pytest.mark.skipif(ALLOCATOR != "tenure", reason="of what install() says")
def test_a_value_that_pytorch_cannot_read_is_named() -> None:
    done = program("import torch", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:abc")
    assert "PyTorch refuses its own settings, PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:abc: sto" in done.stderr


@pytest.mark.values
def test_importing_torch_starts_no_cuda() -> None:
    """Covers TestCuda.test_lazy_init."""
    text = "import ctypes, torch; print(ctypes.CDLL('libcuda.so.1').cuDeviceGetCount(ctypes.byref(ctypes.c_int())))"
    not_initialized = "3\n"
    assert program(text).stdout == not_initialized


@pytest.mark.values
def test_devices_can_be_hidden_after_the_import() -> None:
    """Covers TestCuda.test_lazy_init."""
    text = "import os, torch; os.environ['CUDA_VISIBLE_DEVICES'] = '32'; print(torch.cuda.device_count())"
    assert program(text).stdout == "0\n"


def test_the_first_allocation_imports_no_compiler() -> None:
    """Covers TestBlockStateAbsorption.test_no_triton_on_import."""
    text = "import sys, torch; torch.empty(2, device='cuda'); print('triton' in sys.modules)"
    assert program(text).stdout == "False\n"


def test_a_program_may_fork_after_the_import() -> None:
    """Neither the import nor the installation may start CUDA. This goes beyond TestCuda.test_lazy_init."""
    text = """
import multiprocessing, torch
def child(): print(torch.empty(2, device="cuda").numel(), flush=True)
process = multiprocessing.get_context("fork").Process(target=child)
process.start(); process.join()
"""
    assert program(text).stdout == "2\n"
