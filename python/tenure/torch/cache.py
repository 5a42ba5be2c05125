"""Device memory that processes share, under PyTorch: PipeSwitch's calls, on an unpatched PyTorch.

One process takes a cache of device memory and sends it; others receive it. Each inserts ranges of it into the allocator
under its PyTorch, for the current stream:

- the range for *parameters* takes every tensor of the stream, one behind the other. One process writes it and publishes
  what lies where. Any number of others read it, mapped for reading only: they allocate the same tensors in the same
  order and find them filled, at no copy. Any other allocation there is an error, so that nobody computes with somebody
  else's weights.
- the range for *computation* takes the large tensors of the stream, of one process alone.

What survives what: memory that a process has mapped stays valid and unchanged whoever else dies, the owner of the cache
among them. New processes can receive the cache while its owner lives. With the owner in a process of its own (`tenure
memory daemon`), parameters outlive the process that wrote them for new readers too.

========================================  ======================================================
in the owner                              `allocate_shared_cache`, `send_shared_cache`
in a worker                               `recv_shared_cache`
in whoever writes parameters              `share_module`; or `insert_shared_cache_for_parameter`,
                                          allocate and fill, `publish_shared_parameters`
in whoever reads them                     `attach_module`; or `insert_shared_cache_for_parameter`,
                                          allocate
in both, then                             `insert_shared_cache_for_computation`
at the end                                `clear_shared_cache`
========================================  ======================================================
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tenure import Error, _native
from tenure.torch.installation import installed

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SharedCacheSettings:
    """How the calls of this module behave where their arguments do not say.

    Attributes
    ----------
    pool_bytes
        The size of the cache. The default is PipeSwitch's: 12 GiB.
    parameter_bytes
        Of these, the first, for parameters: 1 GiB.
    computation_bytes
        The next, for computation: 11 GiB.
    socket
        Where the cache is sent and received; by default where `tenure memory daemon` serves the device.
    wait
        Seconds to wait for a cache to be sent.
    """

    pool_bytes: int = 12 << 30
    parameter_bytes: int = 1 << 30
    computation_bytes: int = 11 << 30
    socket: str | None = None
    wait: float = 60.0


_settings = SharedCacheSettings()
#: The devices of which this process owns a cache, and those on which it has received one.
_owned: set[int] = set()
_joined: set[int] = set()


def configure_shared_cache(
    *,
    pool_bytes: int | None = None,
    parameter_bytes: int | None = None,
    computation_bytes: int | None = None,
    socket: str | os.PathLike[str] | None = None,
    wait: float | None = None,
) -> SharedCacheSettings:
    """Sets how calls without arguments behave; what is not given stays as it is.

    Parameters
    ----------
    pool_bytes, parameter_bytes, computation_bytes, socket, wait
        As in `SharedCacheSettings`.

    Returns
    -------
    SharedCacheSettings
        The settings now.
    """
    global _settings
    given = {
        "pool_bytes": pool_bytes,
        "parameter_bytes": parameter_bytes,
        "computation_bytes": computation_bytes,
        "socket": None if socket is None else os.fspath(socket),
        "wait": wait,
    }
    _settings = replace(_settings, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    return _settings


def allocate_shared_cache(
    pool_bytes: int | None = None, parameter_bytes: int | None = None, computation_bytes: int | None = None
) -> None:
    """Takes the memory of a cache on the current device. This process owns it until it exits.

    Parameters
    ----------
    pool_bytes, parameter_bytes, computation_bytes
        As in `SharedCacheSettings`; multiples of 2 MiB.

    Raises
    ------
    tenure.Error
        The sizes do not fit together, or the device has not enough memory.
    """
    device = _device()
    sizes = (pool_bytes, parameter_bytes, computation_bytes)
    defaults = (_settings.pool_bytes, _settings.parameter_bytes, _settings.computation_bytes)
    pool, parameters, computation = (
        default if size is None else size for size, default in zip(sizes, defaults, strict=True)
    )
    _native.allocate_shared_cache(device, pool, parameters, computation)
    _owned.add(device)


def send_shared_cache(socket: str | os.PathLike[str] | None = None) -> None:
    """Hands the cache to every process of this user that receives it, now and later. Returns at once.

    PipeSwitch calls it once for each worker; calls after the first do nothing.

    Parameters
    ----------
    socket
        As in `SharedCacheSettings`.

    Raises
    ------
    tenure.Error
        There is no cache, or another process sends one there.
    """
    device = _device()
    _native.send_shared_cache(device, _socket(device, socket))


def recv_shared_cache(
    socket: str | os.PathLike[str] | None = None,
    *,
    parameter_bytes: int | None = None,
    computation_bytes: int | None = None,
    wait: float | None = None,
) -> None:
    """Maps the cache that is sent for the current device. Waits until it is.

    Parameters
    ----------
    socket, wait
        As in `SharedCacheSettings`.
    parameter_bytes, computation_bytes
        Needed only where the sender's cache is not divided so: what `tenure memory daemon` serves as one chunk.

    Raises
    ------
    tenure.Error
        Nobody has sent one in time, or it can not be mapped.
    """
    device = _device()
    wait = _settings.wait if wait is None else wait
    _native.recv_shared_cache(device, _socket(device, socket), wait, parameter_bytes, computation_bytes)
    _joined.add(device)


def insert_shared_cache_for_parameter(access: Literal["read", "write"] | None = None) -> None:
    """Places every tensor that the current stream allocates from now on in the cache's range for parameters.

    For writing, until `publish_shared_parameters` or `insert_shared_cache_for_computation`; ``module.cuda()`` writes.
    For reading, until all that was published is allocated, in the order in which it was published. What is read can not
    be written: ``module.cuda()`` would copy to it, and so lose the process its device. ``module.to_empty(device="cuda")``
    allocates alone; `attach_module` also compares the modules, and knows tied parameters.

    Parameters
    ----------
    access
        By default, the cache's owner writes and others read.

    Raises
    ------
    tenure.Error
        To be read: nothing is published yet, or somebody writes; or PyTorch is set to fill new tensors. To be written:
        somebody reads or writes.
    """
    import torch

    device = _cache()
    writes = device in _owned if access is None else access == "write"
    fills = torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory
    if fills and not writes:
        raise Error(
            "shared parameters can only be read, and under deterministic algorithms torch.empty() writes: use "
            "attach_module(), or set torch.utils.deterministic.fill_uninitialized_memory = False"
        )
    _native.insert_shared_parameters(device, _stream(device), writes)


def insert_shared_cache_for_computation() -> None:
    """Places the large tensors that the current stream allocates from now on in the cache's range for computation.

    Raises
    ------
    tenure.Error
        Another process computes in it; or parameters are read that were not all allocated.
    """
    device = _cache()
    _native.insert_shared_computation(device, _stream(device))


def publish_shared_parameters(about: bytes = b"") -> None:
    """Lets others read the parameters that were written, and none write them, this process included.

    Waits for the device.

    Parameters
    ----------
    about
        Kept with them, for whoever reads them: `shared_parameters`.

    Raises
    ------
    tenure.Error
        No parameters are written here, or their range has no room left for the list of them.
    """
    _native.publish_shared_parameters(_cache(), about)


def shared_parameters() -> bytes | None:
    """What was said of the parameters that are inserted, by who published them; None if none are."""
    return _native.about_shared_parameters(_cache())


def check_shared_parameters() -> None:
    """Makes sure that all published parameters were allocated here, and so are where the model looks for them.

    Raises
    ------
    tenure.Error
        Some were not.
    """
    _native.check_shared_parameters(_cache())


def clear_shared_cache() -> None:
    """Takes the ranges out of the allocator again and gives them back, for others to insert. Waits for the device.

    Raises
    ------
    tenure.Error
        Tensors live in one of them: delete them first. That one stays inserted.
    """
    import torch

    cache = _cache()
    # What cuBLAS keeps for itself may lie there; it gets more when it next needs it.
    torch._C._cuda_clearCublasWorkspaces()
    _native.clear_shared_cache(cache)


def own_bytes() -> int:
    """Physical bytes that this process's allocator itself got from the current device, shared ones not counted."""
    return _native.own_bytes(_device())


def share_module(module: torch.nn.Module) -> torch.nn.Module:
    """Moves a module's parameters and buffers into the cache, and publishes them.

    They can only be read after that, here too: the module is for inference.

    Parameters
    ----------
    module
        On the host, in the state that it is to have everywhere.

    Returns
    -------
    torch.nn.Module
        The same module, on the current device.

    Raises
    ------
    tenure.Error
        As `insert_shared_cache_for_parameter` and `publish_shared_parameters`.
    """
    about = _described(module)
    insert_shared_cache_for_parameter("write")
    _place(module, fill=True)
    publish_shared_parameters(about)
    return module


def attach_module(module: torch.nn.Module) -> torch.nn.Module:
    """Puts a module on the parameters and buffers that another process has shared with `share_module`. Copies nothing.

    Writing to one of them is an error of the device, after which this process can not use it any more; nobody else
    notices anything.

    Parameters
    ----------
    module
        Made as in the process that shared it; its own values do not matter, and it may lie on the device ``meta``.

    Returns
    -------
    torch.nn.Module
        The same module, on the current device, with no gradients.

    Raises
    ------
    tenure.Error
        Nothing is shared, or another module.
    """
    device = _cache()
    _native.insert_shared_parameters(device, _stream(device), False)
    published, described = shared_parameters(), _described(module)
    if published and published != described:
        # Nothing was allocated yet, so nothing is in the way.
        clear_shared_cache()
        raise Error(f"another module was shared: {_difference(json.loads(published), json.loads(described))}")
    _place(module, fill=False)
    check_shared_parameters()
    return module


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, torch.Tensor]]:
    """Parameters and buffers with full names and their places; those that are tied come once for each place."""
    for prefix, part in module.named_modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    yield f"{prefix}.{name}" if prefix else name, part, name, tensor


def _described(module: torch.nn.Module) -> bytes:
    """What must agree for two processes to mean the same module."""
    first: dict[int, str] = {}
    tensors = [
        [name, first.setdefault(id(tensor), name), str(tensor.dtype), list(tensor.shape), list(tensor.stride())]
        for name, _, _, tensor in _tensors(module)
    ]
    return json.dumps(tensors, separators=(",", ":")).encode()


def _difference(published: list[object], described: list[object]) -> str:
    for theirs, ours in zip(published, described, strict=False):
        if theirs != ours:
            return f"it has {theirs} where this one has {ours}"
    return f"it has {len(published)} parameters and buffers, and this one {len(described)}"


def _place(module: torch.nn.Module, *, fill: bool) -> None:
    """Gives every parameter and buffer memory of the current device and stream, filled with its values or as it is."""
    import torch

    placed: dict[int, torch.Tensor] = {}
    for _, part, name, tensor in list(_tensors(module)):
        target = placed.get(id(tensor))
        if target is None:
            target = _unwritten(tensor)
            if fill:
                target.copy_(tensor.detach())
            if isinstance(tensor, torch.nn.Parameter):
                target = torch.nn.Parameter(target, requires_grad=False)
            placed[id(tensor)] = target
        held = part._parameters if name in part._parameters else part._buffers
        held[name] = target


def _unwritten(like: torch.Tensor) -> torch.Tensor:
    """A tensor of the current device and stream, laid out like another, whose memory nobody has written.

    `torch.empty` is no such thing: under deterministic algorithms it fills what it allocates, and memory that others
    have published can only be read.
    """
    import torch

    layout = torch.empty_like(like, device="meta")
    storage = torch.UntypedStorage(layout.untyped_storage().nbytes(), device="cuda")
    return torch.empty(0, dtype=like.dtype, device="cuda").set_(storage, 0, layout.shape, layout.stride())


def _cache() -> int:
    """The current device, on which a cache is received: its owner's own is if need be."""
    device = _device()
    if device in _owned and device not in _joined:
        send_shared_cache()
        recv_shared_cache()
    return device


def _device() -> int:
    """The current device, with Tenure's memory on it."""
    import torch

    if installed() is None:
        raise Error(
            "Tenure is not installed under PyTorch: call tenure.torch.install() before the first tensor on a GPU"
        )
    device = torch.cuda.current_device()
    if device not in _native.installed():
        # Opened with its first block.
        torch.empty(1, device=f"cuda:{device}")
    return device


def _stream(device: int) -> int:
    import torch

    return int(torch.cuda.current_stream(device).cuda_stream)


def _socket(device: int, socket: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
    return socket or _settings.socket or _native.shared_cache_socket(device)
