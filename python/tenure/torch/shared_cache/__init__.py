"""The calls of the shared cache: device memory that processes share, under an unpatched PyTorch.

The calls are PipeSwitch's. One process allocates a cache and sends it; others receive it. Each process inserts ranges
of it into the allocator under its PyTorch, for the current stream:

- The range for *parameters* takes every tensor of the stream, one after the other. One process writes them. Any number
  of others allocate the same tensors in the same order and read them through a read-only mapping, without a copy.
- The range for *computation* takes the large tensors of the stream. Any number of processes and streams insert it. One
  stream at a time uses it, from its first large tensor to its last. Other allocations wait, in the order of their
  processes, and fail after `SharedCacheSettings.wait` seconds with an error that names the process that uses it.

Parameters are either published once and then read, or transferred request by request, as PipeSwitch does. The guide,
``docs/guide/sharing.md``, shows both orders of calls and says which mistakes Tenure finds in each.
`tenure.torch.share_module` and `tenure.torch.attach_module` publish and read a whole module.

Memory that a process has mapped stays valid and unchanged when any other process dies, even the owner of the cache. New
processes can receive the cache while its owner lives. A process that computes after the owner has died does so in
memory of its own. With the owner in a separate process (`tenure memory daemon`), published parameters outlive the
process that wrote them, for new readers too.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Literal

from tenure import Error, _native
from tenure.torch.installation import installed

#: The longest wait, in seconds: ten years.
_LONGEST_WAIT = 315_360_000


@dataclass(frozen=True)
class SharedCacheSettings:
    """The defaults of this module's calls.

    Attributes
    ----------
    pool_bytes
        The size of the cache in bytes. The default is PipeSwitch's: 12 GiB.
    parameter_bytes
        The first part of the cache, for parameters: 1 GiB.
    computation_bytes
        The part after it, for computation: 11 GiB.
    socket
        The socket where the cache is sent and received. By default it is where `tenure memory daemon` serves the
        device, numbered as in this process: set it where processes have different ``CUDA_VISIBLE_DEVICES``. A relative
        path is resolved in the working directory at the time of the call.
    wait
        The seconds to wait for a cache to be sent, and at a tensor for other processes to end their computation or for
        parameters to be transferred. A cache keeps the value that was set when it was received.
    """

    pool_bytes: int = 12 << 30
    parameter_bytes: int = 1 << 30
    computation_bytes: int = 11 << 30
    socket: str | None = None
    wait: float = 60.0

    def __post_init__(self) -> None:
        for name in ("pool_bytes", "parameter_bytes", "computation_bytes"):
            value = getattr(self, name)
            if not (hasattr(value, "__index__") and 0 <= index(value) < 1 << 63):
                raise Error(f"{name} = {value!r}: expected 0 or more whole bytes, and less than 2**63")
        if not (isinstance(self.wait, (int, float)) and 0 <= self.wait <= _LONGEST_WAIT):
            raise Error(f"wait = {self.wait!r}: expected 0 to {_LONGEST_WAIT} seconds")


_settings = SharedCacheSettings()


def configure_shared_cache(
    *,
    pool_bytes: int | None = None,
    parameter_bytes: int | None = None,
    computation_bytes: int | None = None,
    socket: str | os.PathLike[str] | None = None,
    wait: float | None = None,
) -> SharedCacheSettings:
    """Sets the defaults of this module's calls. Arguments that are not given stay as they are.

    Parameters
    ----------
    pool_bytes, parameter_bytes, computation_bytes, socket, wait
        As in `SharedCacheSettings`.

    Returns
    -------
    SharedCacheSettings
        The settings now.

    Raises
    ------
    tenure.Error
        A value is negative or no number. Nothing is set then.
    """
    global _settings
    _settings = _given(
        pool_bytes=pool_bytes,
        parameter_bytes=parameter_bytes,
        computation_bytes=computation_bytes,
        socket=None if socket is None else _path(socket),
        wait=wait,
    )
    return _settings


def allocate_shared_cache(
    pool_bytes: int | None = None, parameter_bytes: int | None = None, computation_bytes: int | None = None
) -> None:
    """Allocates the memory of a cache on the current device. This process owns it until it exits.

    Parameters
    ----------
    pool_bytes, parameter_bytes, computation_bytes
        As in `SharedCacheSettings`; multiples of 2 MiB.

    Raises
    ------
    tenure.Error
        The sizes do not fit together, or the device has not enough memory.
    """
    sizes = _given(pool_bytes=pool_bytes, parameter_bytes=parameter_bytes, computation_bytes=computation_bytes)
    _native.allocate_shared_cache(_device(), sizes.pool_bytes, sizes.parameter_bytes, sizes.computation_bytes)


def send_shared_cache(socket: str | os.PathLike[str] | None = None) -> None:
    """Sends the cache to every process of this user that receives it, now and later. Returns at once.

    PipeSwitch calls it once for each worker; calls after the first do nothing.

    Parameters
    ----------
    socket
        As in `SharedCacheSettings`.

    Raises
    ------
    tenure.Error
        There is no cache, or another process sends one at this socket. The cache can then be sent at another.
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
    """Maps the cache that is sent for the current device. Waits until it is sent.

    Replaces a cache received before, such as one whose owner has died, if nothing of that one is inserted any more
    (`clear_shared_cache`).

    Parameters
    ----------
    socket, wait
        As in `SharedCacheSettings`.
    parameter_bytes, computation_bytes
        Needed only where the sender's cache has more chunks than one for each, as ``tenure memory daemon --chunks`` may
        serve it. Parameters fill whole chunks, because write access to a chunk is access to all of it.

    Raises
    ------
    tenure.Error
        No process has sent a cache in time; it lies on another device; it cannot be mapped; parameters would share a
        chunk with memory that other processes write; ranges of another cache are inserted.
    """
    given = _given(parameter_bytes=parameter_bytes, computation_bytes=computation_bytes, wait=wait)
    device = _device()
    _native.recv_shared_cache(device, _socket(device, socket), given.wait, parameter_bytes, computation_bytes)


def insert_shared_cache_for_parameter(access: Literal["read", "write"] | None = None) -> None:
    """Places every tensor that the current stream allocates from now on in the cache's range for parameters.

    Writing lasts until `publish_shared_parameters`, `clear_shared_cache` or `insert_shared_cache_for_computation`;
    ``module.cuda()`` writes. Reading lasts until all that was published is allocated, in the order in which it was
    published. Memory for reading cannot be written: ``module.cuda()`` would copy to it and thereby lose the process its
    device. Use ``module.to_empty(device="cuda")``, which only allocates, or `attach_module`, which also compares the
    modules and handles tied parameters.

    Parameters
    ----------
    access
        By default as in PipeSwitch. The cache's owner writes; if it publishes nothing, `clear_shared_cache` tells
        readers what it wrote. Other processes read what is published. If nothing is published, they place their tensors
        for a later transfer by the owner, on any number of streams, until `insert_shared_cache_for_computation` is
        called on the same stream. With ``"write"`` readers see nothing before it is published. With ``"read"`` only
        published parameters can be read.

    Raises
    ------
    tenure.Error
        The stream has the range already, or this process has it, unless it placed tensors for a later transfer. PyTorch
        is set to fill new tensors, and these are to be read. For reading: nothing is published yet (with ``"read"``),
        or another process writes. For writing: another process reads or writes.
    """
    if access not in (None, "read", "write"):
        raise Error(f"access = {access!r}: expected 'read' or 'write'")
    device = cache_device()
    import torch

    purpose = access or ("transfer" if _native.owns_shared_cache(device) else "place")
    fills = torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory
    if fills and purpose in ("read", "place"):
        raise Error(
            "shared parameters can only be read, and under deterministic algorithms torch.empty() writes: use "
            "attach_module(), or set torch.utils.deterministic.fill_uninitialized_memory = False"
        )
    _native.insert_shared_parameters(device, _stream(device), purpose)


def insert_shared_cache_for_computation() -> None:
    """Places the large tensors that the current stream allocates from now on in the cache's range for computation.

    The stream has the range to itself from the first large tensor, which waits for other streams to end, to the last.
    The deletion of the last one waits for the device; a program that keeps one alive between its steps saves that time.
    If it is deleted while the device cannot be waited for (any thread is inside ``torch.cuda.use_mem_pool`` or captures
    a graph), the stream keeps the range until that ends.

    The workspace that cuBLAS keeps for the stream for the life of the process is allocated before, in other memory.
    cuBLAS keeps another workspace for each other thread that computes on the stream, as a backward pass does: then this
    process keeps the range until `clear_shared_cache`.

    Raises
    ------
    tenure.Error
        The stream has the range already, or it reads published parameters of which not all were allocated.
    """
    device = cache_device()
    _make_workspaces()
    _native.insert_shared_computation(device, _stream(device))


def publish_shared_parameters(about: bytes = b"") -> None:
    """Publishes the parameters that were written: others can read them, and no process, this one included, can write
    them.

    Waits for the device.

    Parameters
    ----------
    about
        A description that is kept with them for their readers: `shared_parameters`.

    Raises
    ------
    tenure.Error
        No parameters are written here, or their range has no room left for the list of them.
    """
    _native.publish_shared_parameters(cache_device(), about)


def shared_parameters() -> bytes | None:
    """Returns the description that the inserted parameters were published with; None if none are inserted."""
    return _native.about_shared_parameters(cache_device())


def check_shared_parameters() -> None:
    """Checks that all published parameters were allocated here, so that they lie where the model looks for them.

    For parameters that were placed before their transfer, checks that those of one stream have the layout of the last
    transfer. While a transfer goes on its layout is not known; that is no error.

    Raises
    ------
    tenure.Error
        Some were not allocated, the layouts differ (the error names the first difference), or nothing was transferred.
    """
    _native.check_shared_parameters(cache_device())


def clear_shared_cache() -> None:
    """Removes the ranges from the allocator, so that others can insert them. Waits for the device.

    Parameters that the owner wrote and did not publish are transferred by this to the processes that placed theirs for
    it.

    Raises
    ------
    tenure.Error
        Tensors live in one of the ranges: delete them first. That range stays inserted.
    """
    cache = cache_device()
    import torch

    # cuBLAS's workspaces may lie in the range; it allocates new ones when it next needs them.
    torch._C._cuda_clearCublasWorkspaces()
    _native.clear_shared_cache(cache)


def own_bytes() -> int:
    """Returns the physical bytes that this process itself got from the current device, without shared ones."""
    return _native.own_bytes(_device())


def _make_workspaces() -> None:
    """Makes cuBLAS allocate its workspace for this thread and the current stream now, outside of all inserted
    ranges."""
    import torch

    # Without cuBLAS, as on a simulated device, there is no workspace.
    with suppress(RuntimeError), torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        matrix = torch.zeros(8, 8, device="cuda")
        torch.addmm(matrix[0], matrix, matrix)


def _given(**changes: Any) -> SharedCacheSettings:
    """Returns the settings with the given changes."""
    return replace(_settings, **{name: value for name, value in changes.items() if value is not None})


def cache_device() -> int:
    """Returns the current device. Joins this process's own cache, if it has one and has received none."""
    device = _device()
    _native.join_own_shared_cache(device, _socket(device, None), _settings.wait)
    return device


def _device() -> int:
    """Returns the current device, with Tenure's memory opened on it."""
    if installed() is None:
        raise Error(
            "Tenure is not installed under PyTorch: call tenure.torch.install() before the first tensor on a GPU"
        )
    import torch

    device = torch.cuda.current_device()
    if device not in _native.installed():
        # The first block opens the device.
        torch.empty(1, device=f"cuda:{device}")
    return device


def _stream(device: int) -> int:
    import torch

    return int(torch.cuda.current_stream(device).cuda_stream)


def _socket(device: int, socket: str | os.PathLike[str] | None) -> str:
    """Returns the socket to send or receive at, as an absolute path."""
    if socket is not None:
        return _path(socket)
    return os.path.abspath(_settings.socket or _native.shared_cache_socket(device))


def _path(socket: str | os.PathLike[str]) -> str:
    path = os.fspath(socket)
    if not isinstance(path, str) or not path:
        raise Error(f"socket = {socket!r}: expected a path as text")
    return os.path.abspath(path)
