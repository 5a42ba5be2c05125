"""Functions of processes that use two devices, each on an allocator of its own. They are imported from this module."""

from __future__ import annotations

import ctypes
import os
import warnings

import torch

MIB = 1 << 20
#: Sizes of blocks that share a segment, blocks with a segment of their own, and blocks of many chunks.
SIZES = (1000, 3 * MIB, 40 * MIB)

PEER_ACCESS_ALREADY_ENABLED = 704


def install(kind: str) -> None:
    """Installs an allocator: one of Tenure's, one of Tenure's through the fallback, or none."""
    if kind == "stock":
        return
    import tenure.torch
    from tenure.torch.installation import build

    allocator, _, pluggable = kind.partition(" ")
    if pluggable:
        os.environ["CXX"] = "/no/compiler"
        build.prebuilt = lambda torch: None
    with warnings.catch_warnings(action="ignore"):
        status = tenure.torch.install(allocator)  # type: ignore[arg-type]
    assert (status.mode == "pluggable") == bool(pluggable)


def tensors(device: int) -> list[torch.Tensor]:
    """Returns tensors of all sizes, copied from the host, with other bytes on each device."""
    made = (torch.arange(device, device + size, dtype=torch.int32).to(torch.uint8) for size in SIZES)
    return [tensor.to(f"cuda:{device}") for tensor in made]


def copies(kind: str) -> dict[str, bool]:
    """Returns whether copies have the source's bytes: of tensors made before peer access was enabled, and of later
    ones."""
    install(kind)
    right = {}
    for when in ("before", "after"):
        here, there = tensors(0), tensors(1)
        for source, target in ((here, 1), (there, 0)):
            copied = [tensor.to(f"cuda:{target}") for tensor in source]
            right[f"{when}, new, to {target}"] = same(source, copied)
        into = tensors(1)
        for source_tensor, target_tensor in zip(here, into, strict=True):
            target_tensor.copy_(source_tensor, non_blocking=True)
        right[f"{when}, into what was there"] = same(here, into)
    return right


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(a.cpu().equal(b.cpu()) for a, b in zip(left, right, strict=True))


def enabled(kind: str) -> tuple[list[bool], list[bool]]:
    """Returns the devices that can reach the other's memory, and those that do after copies from the first to the
    second."""
    install(kind)
    can = [torch.cuda.can_device_access_peer(device, 1 - device) for device in range(2)]
    tensor = torch.zeros(4, device="cuda:0")
    for _ in range(3):
        tensor.to("cuda:1")
    return can, [is_enabled(device) for device in range(2)]


def is_enabled(device: int) -> bool:
    """Returns whether a device has peer access to the other, and enables it."""
    runtime = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).split('.')[0]}")
    with torch.cuda.device(device):
        result = runtime.cudaDeviceEnablePeerAccess(1 - device, 0)
    runtime.cudaGetLastError()
    assert result in (0, PEER_ACCESS_ALREADY_ENABLED)
    return result != 0


def known(kind: str) -> list[list[int]]:
    """Returns the devices that Tenure knows: at first, after the first one was used, and after both were."""
    install(kind)
    import tenure.torch

    seen = []
    for device in (None, "cuda:0", "cuda:1"):
        if device is not None:
            torch.zeros(4, device=device)
        assert tuple(tenure.memory.installed()) == tenure.torch.status().devices
        seen.append(tenure.memory.installed())
    return seen


def figures(kind: str) -> list[list[int]]:
    """Returns the bytes allocated on each device: with a tensor on both, after the second's was freed while the first
    is current, and with both freed; and last the bytes reserved, with the cache emptied."""
    install(kind)
    held = [torch.empty((4 + 2 * device) * MIB, dtype=torch.uint8, device=f"cuda:{device}") for device in range(2)]
    seen = []
    for _ in range(2):
        seen.append(figure(kind, "allocated"))
        held.pop()
    seen.append(figure(kind, "allocated"))
    torch.cuda.empty_cache()
    return [*seen, figure(kind, "reserved")]


def figure(kind: str, name: str) -> list[int]:
    """Returns a counter of each device."""
    stats = torch.cuda.memory_stats
    if kind.endswith("pluggable"):
        import tenure

        stats = tenure.memory.stats
    return [int(stats(device)[f"{name}_bytes.all.current"]) for device in range(2)]
