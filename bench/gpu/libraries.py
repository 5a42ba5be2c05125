"""Other libraries of a program beside a full cache of PyTorch's, and who holds the device's memory.

    libraries.py [--json]

Fills the device with tensors and drops them, so that PyTorch's allocator has cached nearly all of it. Then libraries
that allocate by themselves ask for memory: NCCL for a communicator, cuBLAS and cuDNN for workspaces, CuPy for an array
(if it is installed), the CUDA runtime and the driver for a fifth of the device. Each runs in a process of its own, on
PyTorch's own allocator, on it with expandable segments, and on Tenure's. At the end, Tenure's account is compared with
the driver's figures.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time

ALLOCATORS = ("native", "expandable", "tenure")
MIB = 1 << 20


def fill() -> None:
    """Fills the device with blocks of 1 GiB and then of 64 MiB, and frees them."""
    import torch

    blocks = []
    for size in (1024 * MIB, 64 * MIB):
        try:
            while torch.cuda.mem_get_info()[0] > size:
                blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            pass


def nccl() -> None:
    import torch
    import torch.distributed as dist

    store = f"file://{tempfile.mkdtemp()}/store"
    dist.init_process_group("nccl", store, rank=0, world_size=1, device_id=torch.device("cuda", 0))
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))


def cublas() -> None:
    import torch

    x = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
    x @ x
    torch.linalg.svd(torch.randn(256, 256, device="cuda"))


def cudnn() -> None:
    import torch

    convolution = torch.nn.Conv2d(64, 64, 3, padding=1).cuda().half()
    convolution(torch.randn(32, 64, 56, 56, device="cuda").half())


def cupy() -> None:
    import cupy as library
    import torch

    fifth = torch.cuda.mem_get_info()[1] // 5
    globals()["kept"] = library.zeros(fifth, dtype=library.uint8)


def runtime() -> None:
    import torch

    library = ctypes.CDLL("libcudart.so.13")
    address = ctypes.c_void_p()
    code = library.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(torch.cuda.mem_get_info()[1] // 5))
    if code:
        raise MemoryError(f"cudaMalloc: error {code}")


def stream_order() -> None:
    import torch

    library = ctypes.CDLL("libcudart.so.13")
    address = ctypes.c_void_p()
    fifth = ctypes.c_size_t(torch.cuda.mem_get_info()[1] // 5)
    code = library.cudaMallocAsync(ctypes.byref(address), fifth, ctypes.c_void_p())
    if code:
        raise MemoryError(f"cudaMallocAsync: error {code}")


def driver() -> None:
    import torch

    library = ctypes.CDLL("libcuda.so.1")
    address = ctypes.c_uint64()
    code = library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(torch.cuda.mem_get_info()[1] // 5))
    if code:
        raise MemoryError(f"cuMemAlloc: error {code}")


LIBRARIES = {it.__name__: it for it in (nccl, cublas, cudnn, cupy, runtime, stream_order, driver)}


def measure(allocator: str, names: list[str], is_full: bool) -> dict[str, object]:
    """Runs libraries in this process, beside a full cache or beside a small one."""
    if allocator == "expandable":
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    import torch

    # Programs ask this before anything else.
    assert torch.cuda.is_available()
    result: dict[str, object] = {}
    if allocator == "tenure":
        import tenure.torch

        began = time.perf_counter()
        tenure.torch.install()
        result["installing_ms"] = 1000 * (time.perf_counter() - began)
    kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    if is_full:
        fill()
    for name in names:
        try:
            LIBRARIES[name]()
            torch.cuda.synchronize()
            result[name] = "ok"
        except Exception as error:
            result[name] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
    if allocator == "tenure":
        result["device"] = tenure.torch.report(format="json")["device"]
    free, total = torch.cuda.mem_get_info()
    result["in_use_bytes"] = total - free
    del kept
    return result


def run(allocator: str, names: list[str], is_full: bool) -> dict[str, object]:
    """Measures in a process of its own."""
    command = [sys.executable, __file__, "--in-process", allocator, ",".join(names), *(["--full"] if is_full else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        return {"failed": done.stderr[-600:]}
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--in-process", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--full", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        allocator, names = options.in_process
        print(json.dumps(measure(allocator, names.split(","), options.full)), flush=True)
        # CuPy and NCCL end in any order; nothing is left to write.
        os._exit(0)
    beside = {name: {it: run(it, [name], True) for it in ALLOCATORS} for name in LIBRARIES}
    account = run("tenure", list(LIBRARIES), False)
    if options.json:
        print(json.dumps({"beside_a_full_cache": beside, "account": account}, indent=1))
        return
    for name, results in beside.items():
        print(f"{name:<13}" + "".join(f"{it}: {found.get(name, found)!s:<42}" for it, found in results.items()))
    print(json.dumps(account, indent=1))


if __name__ == "__main__":
    main()
