"""Pinned host memory: bytes, times of calls, and data loaders, on PyTorch's allocator and on Tenure's.

    python bench/gpu/pinned.py [--rounds 3]

Each figure is of a process of its own; the two allocators take turns. Prints one JSON line for each process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20


def host_bytes() -> int:
    """Returns the bytes of shared memory that this process holds: the driver's pinned memory, and Tenure's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (shared,) = [line for line in lines if line.startswith("RssShmem")]
    return int(shared.split()[1]) * 1024


def sizes_of(case: str) -> list[int]:
    if case == "33 MiB":
        return [33 * MIB]
    if case == "97 x 9 MiB":
        return [9 * MIB] * 97
    # Odd sizes up to 300 MB, 20.4 GiB together.
    sizes, left, number = [], int(20.4 * 1024 * MIB), 1
    while left > 0:
        number = number * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        size = min(left, 1 + (number >> 33) % (4096 if number >> 62 == 0 else 300_000_000))
        sizes.append(size)
        left -= size
    return sizes


def held(case: str) -> dict[str, Any]:
    import torch

    torch.zeros(1, device="cuda")
    sizes, before = sizes_of(case), host_bytes()
    began = time.perf_counter()
    tensors = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in sizes]
    took = time.perf_counter() - began
    stats = torch.cuda.host_memory_stats()
    result = {
        "requested": sum(sizes),
        "tensors": len(tensors),
        "system": host_bytes() - before,
        "pinned": stats["allocated_bytes.current"],
        "seconds": round(took, 3),
    }
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    result["fork_ms"] = round((time.perf_counter() - began) * 1e3, 1)
    os.waitpid(pid, 0)
    del tensors
    began = time.perf_counter()
    torch._C._host_emptyCache()
    result["release_seconds"] = round(time.perf_counter() - began, 3)
    return result


def pairs() -> dict[str, Any]:
    import torch

    torch.zeros(1, device="cuda")
    result: dict[str, Any] = {}
    for name, size in {"0": 0, "512": 512, "64KiB": 65536, "1MiB": MIB, "33MiB": 33 * MIB, "256MiB": 256 * MIB}.items():
        held = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        del held
        times = []
        for _ in range(9):
            began = time.perf_counter()
            for _ in range(20_000):
                torch.empty(size, dtype=torch.uint8, pin_memory=True)
            times.append((time.perf_counter() - began) / 20_000 * 1e9)
        result[name] = round(min(times))
    # Freed under a copy: the stream is recorded, and has passed when the block is wanted again.
    target = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(9):
        began = time.perf_counter()
        for _ in range(2000):
            target.copy_(torch.empty(MIB, dtype=torch.uint8, pin_memory=True), non_blocking=True)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) / 2000 * 1e9)
    result["copied 1MiB"] = round(min(times))
    return result


def loader() -> dict[str, Any]:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Images(Dataset[Any]):
        """Images of varying or equal size."""

        def __init__(self, varies: bool) -> None:
            self.varies = varies

        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> Any:
            side = 512 + (index * 7919 % 256 if self.varies else 0)
            return torch.empty(8, 3, side, side, dtype=torch.uint8)

    torch.zeros(1, device="cuda")
    result: dict[str, Any] = {}
    for name, varies, workers in (("equal", False, 0), ("varying", True, 0), ("equal, 4 workers", False, 4)):
        times = []
        for _ in range(3):
            batches = DataLoader(Images(varies), batch_size=None, pin_memory=True, num_workers=workers)
            began = time.perf_counter()
            for batch in batches:
                batch.to("cuda", non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        result[name] = round(statistics.median(times), 3)
    stats = torch.cuda.host_memory_stats()
    return {**result, "pinned": stats["allocated_bytes.peak"], "calls": stats["num_host_alloc"]}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    **{case: lambda case=case: held(case) for case in ("33 MiB", "97 x 9 MiB", "20.4 GiB odd")},
    "pairs": pairs,
    "loader": loader,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="one case")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(CASES[arguments.case]()))
        return
    for case in [arguments.only] if arguments.only else CASES:
        for _ in range(arguments.rounds):
            for allocator in ("plain", "Tenure"):
                environment = {**os.environ, "TENURE_TORCH": "1" if allocator == "Tenure" else "0"}
                command = [sys.executable, __file__, "--case", case]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                lines = done.stdout.splitlines()
                result = json.loads(lines[-1]) if done.returncode == 0 and lines else {"failed": done.stderr[-600:]}
                print(json.dumps({"case": case, "allocator": allocator, **result}), flush=True)


if __name__ == "__main__":
    main()
