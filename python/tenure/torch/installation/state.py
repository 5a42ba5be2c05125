"""The state of Tenure under PyTorch, and its limitations there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tenure import Error

Mode = Literal["not installed", "prebuilt shim", "built shim", "pluggable"]
Allocator = Literal["paged", "native", "expandable"]

#: The versions of PyTorch that Tenure's tests run on. For others from 2.8 to 2.15, the shim is only compiled.
TESTED = ("2.11", "2.12", "2.13", "2.14", "2.15")

#: The limitations of PyTorch's own interface for external allocators.
_PLUGGABLE_LIMITS = (
    "torch.cuda.memory_stats() and what stands on it (memory_allocated, peaks and their reset, memory_summary): "
    "tenure.memory.stats() has the figures",
    "snapshots and history (torch.cuda.memory._snapshot, _record_memory_history): tenure.memory.snapshot() has one",
    "memory events of torch.profiler",
    "torch.cuda.MemPool and torch.cuda.use_mem_pool",
    "torch.cuda.OutOfMemoryError: running out of memory is a RuntimeError with the same text",
    "out-of-memory observers and free-memory callbacks",
    "torch.cuda.get_per_process_memory_fraction() (setting it works)",
    "torch.compile(mode='reduce-overhead'), which saves and restores the state of private pools",
    "sharing CUDA tensors between processes (torch.multiprocessing)",
    "copies from one GPU to another, unless with install('native')",
    "exact sizes of pinned memory: PyTorch's own allocator rounds them up to powers of two",
    "PYTORCH_CUDA_ALLOC_CONF and torch.cuda.caching_allocator_enable(), which change nothing",
)

_OLD_SETTINGS = (
    "allocator settings changed after install(): PyTorch tells of them, and lets them name a backend, since 2.10"
)


class InstallError(Error, RuntimeError):
    """Tenure cannot be put under PyTorch. The message says why, and what to do."""


@dataclass(frozen=True)
class Status:
    """The state of Tenure under PyTorch.

    Attributes
    ----------
    mode
        The way that PyTorch reaches Tenure: through the C++ shim, prebuilt in the package or built here; through
        ``CUDAPluggableAllocator``, which can do less; or not at all.
    tenure
        Tenure's version.
    reason
        The reason why Tenure is not installed although it was asked for.
    torch
        PyTorch's version, if Tenure is installed under it.
    cuda
        The version of CUDA that PyTorch was built for.
    allocator
        The allocator: Tenure's own (``paged``), or PyTorch's policy in Tenure (``native``, ``expandable``).
    fraction
        The fraction of each device's memory that this process may hold: the argument of `install` or, if less, that of
        ``PYTORCH_ALLOC_CONF``; or the value that the program has set since, the least if devices differ.
    library
        The file of the shim.
    devices
        The devices used so far.
    tested
        Whether Tenure's tests run on this version of PyTorch.
    limitations
        The features that do not work.
    """

    mode: Mode
    tenure: str
    reason: str | None = None
    torch: str | None = None
    cuda: str | None = None
    allocator: Allocator | None = None
    fraction: float | None = None
    library: str | None = None
    devices: tuple[int, ...] = ()
    tested: bool = True
    limitations: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.mode == "not installed":
            reason = self.reason or "call tenure.torch.install()"
            return f"Tenure {self.tenure} is not installed under PyTorch: {reason}"
        devices = ", ".join(map(str, self.devices)) or "none yet"
        lines = [
            f"Tenure {self.tenure} under PyTorch {self.torch} (CUDA {self.cuda}), by way of: {self.mode}",
            f"allocator: {self.allocator}, up to {self.fraction:.0%} of a device; devices in use: {devices}",
        ]
        if not self.tested:
            lines.append(f"tested with PyTorch {', '.join(TESTED)} only: what works with this one is not known")
        if self.limitations:
            lines += ["does not work:", *(f"  - {limitation}" for limitation in self.limitations)]
        return "\n".join(lines)


def limitations_of(mode: Mode, release: str) -> tuple[str, ...]:
    if mode == "pluggable":
        return _PLUGGABLE_LIMITS
    return (_OLD_SETTINGS,) if release in ("2.8", "2.9") else ()
