"""Device memory that processes share, under PyTorch: PipeSwitch's calls, on an unpatched PyTorch.

One process allocates a cache of device memory and sends it; others receive it. Each inserts ranges of it into the
allocator under its PyTorch, for the current stream:

- the range for *parameters* takes every tensor of the stream, one after the other. One process writes them. Any number
  of others read them through a read-only mapping: they allocate the same tensors in the same order and copy nothing.
- the range for *computation* takes the large tensors of the stream. Any number of processes and streams have it
  inserted. One stream uses it at a time, from its first large tensor to its last. Other allocations meanwhile wait, in
  the order of processes, and fail with an error that names the using process after `SharedCacheSettings.wait` seconds.

There are two orders of calls. In **Tenure's own**, parameters are published once and then read:

========================================  ======================================================
in the owner                              `allocate_shared_cache`, `send_shared_cache`
in a worker                               `recv_shared_cache`
in the process that writes parameters     `share_module`; or `insert_shared_cache_for_parameter`,
                                          allocate and fill, `publish_shared_parameters`
in the processes that read them           `attach_module`; or `insert_shared_cache_for_parameter`
                                          ``("read")``, allocate
in both, then                             `insert_shared_cache_for_computation`
at the end                                `clear_shared_cache`
========================================  ======================================================

Only published parameters can be read; any other allocation in their range is an error. No process writes while another
reads. So no process computes with another model's weights.

In **PipeSwitch's order** parameters come and go, request by request. PipeSwitch runs with its calls as they are:

========================================  ======================================================
in the owner, which schedules             `allocate_shared_cache`; for each worker `send_shared_cache`
in a worker                               `recv_shared_cache`; then for each model, on two streams of
                                          its own: `insert_shared_cache_for_parameter` on the one,
                                          `insert_shared_cache_for_computation` on the other, and
                                          its parameters allocated on the first
in the owner, for each request            `insert_shared_cache_for_parameter`, the model's parameters
                                          ``.cuda()`` in the same order, `clear_shared_cache`
in the request's worker, notified by      computes on the model's second stream; deletes its results
the owner through the program's own pipe
========================================  ======================================================

Workers have allocated before anything is written, and may compute with the first layers while the last are still being
copied. So the program decides which process computes when and with which parameters. Tenure cannot see a worker that
computes too early or too long. It ensures this much:

- A worker does not write parameters by mistake.
- Two processes never compute in the same memory.
- A computation, with its first large tensor, waits until its parameters have been transferred or are being transferred.
- The computation fails if the writer of its parameters died during the transfer. It also fails if the layout of the
  last transfer differs from that of the parameters for which its process last inserted the range, before it inserted
  the range for the computation. A computation that began during a transfer is checked at its first large tensor after
  the transfer.

Two models of the same layout cannot be told apart. Where the owner transfers many parameters as one tensor, as
PipeSwitch does, sizes that fill the same 512 bytes count as equal. A computation that uses only small tensors is not
seen at all.

Memory that a process has mapped stays valid and unchanged when any other process dies, even the owner of the cache. New
processes can receive the cache while its owner lives. A process that computes after the owner has died does so in
memory of its own. With the owner in a separate process (`tenure memory daemon`), published parameters outlive the
process that wrote them, for new readers too.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from operator import index
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tenure import Error, _native
from tenure.torch.installation import installed

if TYPE_CHECKING:
    import torch


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
    device = _cache()
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
    device = _cache()
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
    _native.publish_shared_parameters(_cache(), about)


def shared_parameters() -> bytes | None:
    """Returns the description that the inserted parameters were published with; None if none are inserted."""
    return _native.about_shared_parameters(_cache())


def check_shared_parameters() -> None:
    """Checks that all published parameters were allocated here, so that they lie where the model looks for them.

    For parameters that were placed before their transfer, checks that those of one stream have the layout of the last
    transfer. While a transfer goes on its layout is not known; that is no error.

    Raises
    ------
    tenure.Error
        Some were not allocated, the layouts differ (the error names the first difference), or nothing was transferred.
    """
    _native.check_shared_parameters(_cache())


def clear_shared_cache() -> None:
    """Removes the ranges from the allocator, so that others can insert them. Waits for the device.

    Parameters that the owner wrote and did not publish are transferred by this to the processes that placed theirs for
    it.

    Raises
    ------
    tenure.Error
        Tensors live in one of the ranges: delete them first. That range stays inserted.
    """
    cache = _cache()
    import torch

    # cuBLAS's workspaces may lie in the range; it allocates new ones when it next needs them.
    torch._C._cuda_clearCublasWorkspaces()
    _native.clear_shared_cache(cache)


def own_bytes() -> int:
    """Returns the physical bytes that this process itself got from the current device, without shared ones."""
    return _native.own_bytes(_device())


def share_module(module: torch.nn.Module) -> torch.nn.Module:
    """Moves a module's parameters and buffers into the cache, and publishes them.

    From then on they are read-only, in this process too: the module is for inference. They are allocated on a stream of
    their own, so that allocations of other threads are not taken for the module's.

    Parameters
    ----------
    module
        The module, on the host, with the values that it is to have in all processes.

    Returns
    -------
    torch.nn.Module
        The same module, on the current device.

    Raises
    ------
    tenure.Error
        The range for parameters is too small; a tensor has no values yet, or is sparse or quantized; or as
        `insert_shared_cache_for_parameter` and `publish_shared_parameters`. After any error the module is as it was,
        and nothing is inserted.
    """
    device, slots = _cache(), _slots(module, needs_values=True)
    about, layouts = _described(slots), [_layout(tensor) for tensor in _tensors(slots)]
    sizes = [layout.untyped_storage().nbytes() for layout in layouts]
    _native.check_room_for_parameters(device, [size for size in sizes if size > 0], about)
    with _alone(device) as stream:
        _native.insert_shared_parameters(device, stream, "write")
        _place(device, slots, lambda: _native.publish_shared_parameters(device, about), fill=True)
    return module


def attach_module(module: torch.nn.Module) -> torch.nn.Module:
    """Puts a module on the parameters and buffers that another process has shared with `share_module`. Copies nothing.

    A write to one of them is a device error, after which this process cannot use the device any more. Other processes
    are not affected.

    Parameters
    ----------
    module
        A module made as in the process that shared it. Its own values do not matter, and it may lie on the device
        ``meta``.

    Returns
    -------
    torch.nn.Module
        The same module, on the current device, with no gradients.

    Raises
    ------
    tenure.Error
        Nothing is shared, or another module is: the error names the first tensor that differs. A tensor has no shape
        yet, or is sparse or quantized. This process has inserted the range for parameters already. After any error the
        module is as it was, and nothing is inserted.
    """
    device, slots = _cache(), _slots(module, needs_values=False)
    about = _described(slots)
    with _alone(device) as stream:
        published = _native.attach_shared_parameters(device, stream, about)
        if published is not None:
            raise Error(_difference(published, about))
        _place(device, slots, lambda: _native.check_shared_parameters(device), fill=False)
    return module


@contextmanager
def _alone(device: int) -> Iterator[int]:
    """Switches to a stream that no other thread allocates on, ordered between the current stream's past and later
    work."""
    import torch

    current, alone = torch.cuda.current_stream(), torch.cuda.ExternalStream(_native.module_stream(device))
    alone.wait_stream(current)
    with torch.cuda.stream(alone):
        yield int(alone.cuda_stream)
    current.wait_stream(alone)


def _make_workspaces() -> None:
    """Makes cuBLAS allocate its workspace for this thread and the current stream now, outside of all inserted
    ranges."""
    import torch

    # Without cuBLAS, as on a simulated device, there is no workspace.
    with suppress(RuntimeError), torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        matrix = torch.zeros(8, 8, device="cuda")
        torch.addmm(matrix[0], matrix, matrix)


class _Slot(NamedTuple):
    """A place where a module holds a parameter or a buffer."""

    name: str
    part: torch.nn.Module
    attribute: str
    tensor: torch.Tensor


def _slots(module: torch.nn.Module, *, needs_values: bool) -> list[_Slot]:
    """Returns the slots of a module and all its submodules. A tied tensor has one for each place."""
    slots = [
        _Slot(f"{prefix}.{attribute}" if prefix else attribute, part, attribute, tensor)
        for prefix, part in module.named_modules()
        for held in (part._parameters, part._buffers)
        for attribute, tensor in held.items()
        if tensor is not None
    ]
    for slot in slots:
        if why := _unshareable(slot.tensor, needs_values):
            raise Error(f"{slot.name} {why}")
    return slots


def _unshareable(tensor: torch.Tensor, needs_values: bool) -> str | None:
    """Returns why a tensor cannot lie in the cache; None if it can."""
    import torch

    if torch.nn.parameter.is_lazy(tensor):
        return "has no shape yet: call the module once first"
    if tensor.is_meta and needs_values:
        return "has no values, as it lies on the device meta: fill it first, on the host"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return "is sparse or quantized, and only dense tensors can be shared: leave it out of the module, or convert it"
    return None


def _tensors(slots: list[_Slot]) -> list[torch.Tensor]:
    """Returns the tensors of all slots, each once."""
    return list({id(slot.tensor): slot.tensor for slot in slots}.values())


#: The prefix of a module's description.
_MODULE = b"module "


def _described(slots: list[_Slot]) -> bytes:
    """Returns a module's description. It is equal in two processes if they mean the same module."""
    first: dict[int, str] = {}
    tensors = [
        [name, str(tensor.dtype), list(tensor.shape), list(tensor.stride()), first.setdefault(id(tensor), name)]
        for name, _, _, tensor in slots
    ]
    return _MODULE + json.dumps(tensors, separators=(",", ":")).encode()


def _difference(published: bytes, described: bytes) -> str:
    """Returns why a module with this description does not fit the published parameters."""
    if not published.startswith(_MODULE):
        return "the shared parameters were not published by share_module(): allocate them as their publisher did"
    tensors = (json.loads(about.removeprefix(_MODULE)) for about in (published, described))
    theirs, ours = next(pair for pair in zip_longest(*tensors) if pair[0] != pair[1])
    return f"another module was shared: it has {_told(theirs)} where this one has {_told(ours)}"


def _told(tensor: list[Any] | None) -> str:
    if tensor is None:
        return "nothing more"
    name, dtype, shape, strides, first = tensor
    return f"{name} ({dtype}, shape {shape}, strides {strides}{'' if name == first else f', the same as {first}'})"


def _place(device: int, slots: list[_Slot], finish: Callable[[], None], *, fill: bool) -> None:
    """Places all tensors of a module in the inserted range for parameters, then calls `finish`.

    If anything fails, the range is removed again, and the module is as it was.
    """
    placed: dict[int, torch.Tensor] = {}
    try:
        for tensor in _tensors(slots):
            placed[id(tensor)] = _placed(device, tensor, fill=fill)
        for _, part, attribute, tensor in slots:
            # Set through the module: some, such as recurrent layers, keep lists of their parameters.
            setattr(part, attribute, placed[id(tensor)])
        finish()
    except BaseException as error:
        _put_back(slots)
        # The range is removed only if no tensor lives in it, so tensors in the error's frames are freed first.
        placed.clear()
        traceback.clear_frames(error.__traceback__)
        try:
            _native.clear_shared_parameters(device)
        except Error as stays:
            error.add_note(f"the range for parameters stays inserted: {stays}")
        raise


def _put_back(slots: list[_Slot]) -> None:
    for _, part, attribute, tensor in slots:
        # A module that does not let its tensors be set may be the cause of the error.
        with suppress(Exception):
            setattr(part, attribute, tensor)
        (part._parameters if attribute in part._parameters else part._buffers)[attribute] = tensor


def _placed(device: int, tensor: torch.Tensor, *, fill: bool) -> torch.Tensor:
    """Returns a tensor like another in the range for parameters, with its values if `fill`, else unwritten.

    `torch.empty` would write under deterministic algorithms, but published memory can only be read.
    """
    import torch

    layout = _layout(tensor)
    storage = torch.UntypedStorage(layout.untyped_storage().nbytes(), device="cuda")
    start, size = _native.shared_parameter_range(device)
    if storage.nbytes() > 0 and not start <= storage.data_ptr() < start + size:
        raise Error(
            "PyTorch did not allocate the module's tensors in the shared cache: share and attach modules outside of "
            "torch.cuda.use_mem_pool() and of captures"
        )
    placed = torch.empty(0, dtype=tensor.dtype, device="cuda").set_(storage, 0, layout.shape, layout.stride())
    if fill:
        placed.copy_(tensor.detach())
    return torch.nn.Parameter(placed, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else placed


def _layout(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory layout of a tensor, as one without memory."""
    import torch

    return torch.empty_like(tensor, device="meta")


def _given(**changes: Any) -> SharedCacheSettings:
    """Returns the settings with the given changes."""
    return replace(_settings, **{name: value for name, value in changes.items() if value is not None})


def _cache() -> int:
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
