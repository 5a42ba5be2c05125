"""Device memory that processes share, under PyTorch: PipeSwitch's calls, on an unpatched PyTorch.

One process takes a cache of device memory and sends it; others receive it. Each inserts ranges of it into the allocator
under its PyTorch, for the current stream:

- the range for *parameters* takes every tensor of the stream, one behind the other. One process writes them; any number
  of others read them, mapped for reading only: they allocate the same tensors in the same order, at no copy.
- the range for *computation* takes the large tensors of the stream. Any number of processes and streams have it
  inserted; it is used by one at a time, from its first large tensor to its last. Who allocates meanwhile waits, in the
  order of processes, and gets an error that names the process after `SharedCacheSettings.wait` seconds.

There are two orders of calls. In **Tenure's own** parameters are published once and then read:

========================================  ======================================================
in the owner                              `allocate_shared_cache`, `send_shared_cache`
in a worker                               `recv_shared_cache`
in whoever writes parameters              `share_module`; or `insert_shared_cache_for_parameter`,
                                          allocate and fill, `publish_shared_parameters`
in whoever reads them                     `attach_module`; or `insert_shared_cache_for_parameter`
                                          ``("read")``, allocate
in both, then                             `insert_shared_cache_for_computation`
at the end                                `clear_shared_cache`
========================================  ======================================================

Only what was published can be read, any other allocation there is an error, and nobody writes while anybody reads:
nobody computes with somebody else's weights.

In **PipeSwitch's** they come and go, request by request; it runs with its calls as they are:

========================================  ======================================================
in the owner, who schedules               `allocate_shared_cache`; for each worker `send_shared_cache`
in a worker                               `recv_shared_cache`; then for each model, on two streams of
                                          its own: `insert_shared_cache_for_parameter` on the one,
                                          `insert_shared_cache_for_computation` on the other, and
                                          its parameters allocated on the first
in the owner, for each request            `insert_shared_cache_for_parameter`, the model's parameters
                                          ``.cuda()`` in the same order, `clear_shared_cache`
in the worker that it is for, told by     computes on the model's second stream; deletes what it
the owner through a pipe of the program   computed
========================================  ======================================================

Workers have allocated before anything is written, and may compute with the first layers while the last are on their
way. So there it is for the program to say who computes when with what, and Tenure can not see it if a worker computes
too early or too long. What it sees to: a worker writes no parameters by mistake. Two never compute in the same memory.
And a computation, with its first large tensor, waits until its parameters are transferred or being so, and fails if
their writer died at it, or what was transferred last is not laid out as the parameters for which its process inserted
the range last before that for the computation; one that began during a transfer is checked with its first large tensor
after it. Two models of the same layout are not told apart, nor do sizes that fill the same 512 bytes differ where the
owner transfers many parameters as one tensor, as PipeSwitch does. A computation of small tensors alone is not seen at
all.

What survives what: memory that a process has mapped stays valid and unchanged whoever else dies, the owner of the cache
among them. New processes can receive the cache while its owner lives. Who computes when the owner has died does so in
memory of its own. With the owner in a process of its own (`tenure memory daemon`), published parameters outlive the
process that wrote them for new readers too.
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


#: Ten years, in seconds.
_LONGEST_WAIT = 315_360_000


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
        Where the cache is sent and received; by default where `tenure memory daemon` serves the device, by this
        process's count: give it where processes have different ``CUDA_VISIBLE_DEVICES``. A relative path is one from
        the folder that the process is in when it is given.
    wait
        Seconds to wait for a cache to be sent; and with a tensor, for others to end their computation, or for
        parameters to be transferred. A cache keeps what was set when it was received.
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
    """Sets how calls without arguments behave; what is not given stays as it is.

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
        One of them is negative, or no number. Nothing is set then.
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
    sizes = _given(pool_bytes=pool_bytes, parameter_bytes=parameter_bytes, computation_bytes=computation_bytes)
    _native.allocate_shared_cache(_device(), sizes.pool_bytes, sizes.parameter_bytes, sizes.computation_bytes)


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
        There is no cache; or another process sends one there, and this one can be sent elsewhere.
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

    Of another cache, as of an owner that has died, nothing may be inserted any more: `clear_shared_cache`.

    Parameters
    ----------
    socket, wait
        As in `SharedCacheSettings`.
    parameter_bytes, computation_bytes
        Needed only where the sender's cache has more chunks than one for each, as ``tenure memory daemon --chunks`` may
        serve it. Parameters are whole chunks: what others may write of a chunk, they may write all of it.

    Raises
    ------
    tenure.Error
        Nobody has sent one in time; it lies on another device; it can not be mapped; parameters would share a chunk
        with what others write; ranges of another are inserted.
    """
    given = _given(parameter_bytes=parameter_bytes, computation_bytes=computation_bytes, wait=wait)
    device = _device()
    _native.recv_shared_cache(device, _socket(device, socket), given.wait, parameter_bytes, computation_bytes)


def insert_shared_cache_for_parameter(access: Literal["read", "write"] | None = None) -> None:
    """Places every tensor that the current stream allocates from now on in the cache's range for parameters.

    For writing, until `publish_shared_parameters`, `clear_shared_cache` or `insert_shared_cache_for_computation`;
    ``module.cuda()`` writes. For reading, until all that was published is allocated, in the order in which it was
    published. What is read can not be written: ``module.cuda()`` would copy to it, and so lose the process its device.
    What allocates alone is ``module.to_empty(device="cuda")``; `attach_module` also compares the modules, and knows
    tied parameters.

    Parameters
    ----------
    access
        By default as in PipeSwitch. The cache's owner writes; if it publishes nothing, `clear_shared_cache` tells
        readers what it wrote. Others read what is published; if nothing is, they place their tensors for what the owner
        is to write later, on any number of streams, until `insert_shared_cache_for_computation` on the same stream if
        that is called. ``"write"`` says nothing to readers before it is published, and ``"read"`` reads what is
        published only.

    Raises
    ------
    tenure.Error
        The stream has the range already; or this process has, unless it placed tensors for later. PyTorch is set to
        fill new tensors, which are to be read. With ``"read"``, nothing is published yet, or somebody writes. To be
        written: somebody reads or writes.
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

    It is the stream's alone from the first of them, which waits for others to end, to the last. That one's deletion
    waits for the device: a program that keeps one alive between its steps saves the time. Deleted while any thread is
    inside of ``torch.cuda.use_mem_pool`` or captures a graph, when the device can not be waited for, it keeps the range
    until that ends.

    What cuBLAS keeps for the stream, for as long as the process lives, is made before, in other memory. It keeps more
    for each other thread that computes on the stream, as a backward pass does: then the range stays this process's
    until `clear_shared_cache`.

    Raises
    ------
    tenure.Error
        The stream has the range already; or published parameters are read that were not all allocated.
    """
    device = _cache()
    _make_workspaces()
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

    Of parameters that were placed before they were transferred, that those of one stream lie as what was transferred
    last. While a transfer goes on, that is not known, and no error.

    Raises
    ------
    tenure.Error
        Some were not, or the first that differs; nothing was transferred.
    """
    _native.check_shared_parameters(_cache())


def clear_shared_cache() -> None:
    """Takes the ranges out of the allocator again and gives them back, for others to insert. Waits for the device.

    What the owner wrote and did not publish is told to those who have placed their parameters for it.

    Raises
    ------
    tenure.Error
        Tensors live in one of them: delete them first. That one stays inserted.
    """
    cache = _cache()
    import torch

    # What cuBLAS keeps for itself may lie there; it gets more when it next needs it.
    torch._C._cuda_clearCublasWorkspaces()
    _native.clear_shared_cache(cache)


def own_bytes() -> int:
    """Physical bytes that this process's allocator itself got from the current device, shared ones not counted."""
    return _native.own_bytes(_device())


def share_module(module: torch.nn.Module) -> torch.nn.Module:
    """Moves a module's parameters and buffers into the cache, and publishes them.

    They can only be read after that, here too: the module is for inference. They are allocated on a stream of their
    own, so that what other threads allocate meanwhile is not taken for the module's.

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
        The range for parameters is too small; a tensor has no values yet, or is sparse or quantized; or as
        `insert_shared_cache_for_parameter` and `publish_shared_parameters`. Whatever is raised, the module is as it
        was, and nothing is inserted.
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
        Nothing is shared, or another module: the error names the first tensor that differs. A tensor has no shape yet,
        or is sparse or quantized. This process has inserted the range for parameters already. Whatever is raised, the
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
    """Allocates on a stream that no other thread allocates on, after what is on the current stream and before what
    comes there next."""
    import torch

    current, alone = torch.cuda.current_stream(), torch.cuda.ExternalStream(_native.module_stream(device))
    alone.wait_stream(current)
    with torch.cuda.stream(alone):
        yield int(alone.cuda_stream)
    current.wait_stream(alone)


def _make_workspaces() -> None:
    """Lets cuBLAS have now what it keeps for this thread and the current stream, outside of every inserted range."""
    import torch

    # Without cuBLAS, as on a simulated device, there is nothing to keep.
    with suppress(RuntimeError), torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        matrix = torch.zeros(8, 8, device="cuda")
        torch.addmm(matrix[0], matrix, matrix)


class _Slot(NamedTuple):
    """Where a module holds a parameter or a buffer."""

    name: str
    part: torch.nn.Module
    attribute: str
    tensor: torch.Tensor


def _slots(module: torch.nn.Module, *, needs_values: bool) -> list[_Slot]:
    """Those of all its parts; tensors that are tied come once for each place."""
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
    """Why a tensor can not lie in the cache, if it can not."""
    import torch

    if torch.nn.parameter.is_lazy(tensor):
        return "has no shape yet: call the module once first"
    if tensor.is_meta and needs_values:
        return "has no values, as it lies on the device meta: fill it first, on the host"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return "is sparse or quantized, and only dense tensors can be shared: leave it out of the module, or convert it"
    return None


def _tensors(slots: list[_Slot]) -> list[torch.Tensor]:
    """Each once."""
    return list({id(slot.tensor): slot.tensor for slot in slots}.values())


#: What the description of a module begins with.
_MODULE = b"module "


def _described(slots: list[_Slot]) -> bytes:
    """What must agree for two processes to mean the same module."""
    first: dict[int, str] = {}
    tensors = [
        [name, str(tensor.dtype), list(tensor.shape), list(tensor.stride()), first.setdefault(id(tensor), name)]
        for name, _, _, tensor in slots
    ]
    return _MODULE + json.dumps(tensors, separators=(",", ":")).encode()


def _difference(published: bytes, described: bytes) -> str:
    """Why a module that is described so can not be put on what is published."""
    if not published.startswith(_MODULE):
        return "the shared parameters were not published by share_module(): allocate them as whoever published them did"
    tensors = (json.loads(about.removeprefix(_MODULE)) for about in (published, described))
    theirs, ours = next(pair for pair in zip_longest(*tensors) if pair[0] != pair[1])
    return f"another module was shared: it has {_told(theirs)} where this one has {_told(ours)}"


def _told(tensor: list[Any] | None) -> str:
    if tensor is None:
        return "nothing more"
    name, dtype, shape, strides, first = tensor
    return f"{name} ({dtype}, shape {shape}, strides {strides}{'' if name == first else f', the same as {first}'})"


def _place(device: int, slots: list[_Slot], finish: Callable[[], None], *, fill: bool) -> None:
    """Gives all tensors of a module their places in the range for parameters, which is inserted, and finishes that.

    If anything fails, the range is taken out again, and the module is as it was.
    """
    placed: dict[int, torch.Tensor] = {}
    try:
        for tensor in _tensors(slots):
            placed[id(tensor)] = _placed(device, tensor, fill=fill)
        for _, part, attribute, tensor in slots:
            # Not past the module: some keep lists of their parameters, as those of recurrent layers do.
            setattr(part, attribute, placed[id(tensor)])
        finish()
    except BaseException as error:
        _put_back(slots)
        # The range is taken out only if nothing lives in it, be it held by the frames of the error.
        placed.clear()
        traceback.clear_frames(error.__traceback__)
        try:
            _native.clear_shared_parameters(device)
        except Error as stays:
            error.add_note(f"the range for parameters stays inserted: {stays}")
        raise


def _put_back(slots: list[_Slot]) -> None:
    for _, part, attribute, tensor in slots:
        # One that does not let its tensors be set may have been what failed.
        with suppress(Exception):
            setattr(part, attribute, tensor)
        (part._parameters if attribute in part._parameters else part._buffers)[attribute] = tensor


def _placed(device: int, tensor: torch.Tensor, *, fill: bool) -> torch.Tensor:
    """A tensor like another in the range for parameters, with its values if it is to be filled, else unwritten.

    `torch.empty` writes under deterministic algorithms, and memory that others have published can only be read.
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
    """How a tensor like another lies in memory, without the memory."""
    import torch

    return torch.empty_like(tensor, device="meta")


def _given(**changes: Any) -> SharedCacheSettings:
    """The settings, but for what is given."""
    return replace(_settings, **{name: value for name, value in changes.items() if value is not None})


def _cache() -> int:
    """The current device; its cache is this process's own, if it has one and has received none."""
    device = _device()
    _native.join_own_shared_cache(device, _socket(device, None), _settings.wait)
    return device


def _device() -> int:
    """The current device, with Tenure's memory on it."""
    if installed() is None:
        raise Error(
            "Tenure is not installed under PyTorch: call tenure.torch.install() before the first tensor on a GPU"
        )
    import torch

    device = torch.cuda.current_device()
    if device not in _native.installed():
        # Opened with its first block.
        torch.empty(1, device=f"cuda:{device}")
    return device


def _stream(device: int) -> int:
    import torch

    return int(torch.cuda.current_stream(device).cuda_stream)


def _socket(device: int, socket: str | os.PathLike[str] | None) -> str:
    """Where to send or receive, wherever the process goes later."""
    if socket is not None:
        return _path(socket)
    return os.path.abspath(_settings.socket or _native.shared_cache_socket(device))


def _path(socket: str | os.PathLike[str]) -> str:
    path = os.fspath(socket)
    if not isinstance(path, str) or not path:
        raise Error(f"socket = {socket!r}: expected a path as text")
    return os.path.abspath(path)
