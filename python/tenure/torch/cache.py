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
        Where the cache is sent and received; by default where `tenure memory daemon` serves the device. A relative path
        is one from the folder that the process is in when it is given.
    wait
        Seconds to wait for a cache to be sent.
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
        socket=socket and os.path.abspath(socket),
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
        Nobody has sent one in time; it can not be mapped; parameters would share a chunk with what others write; ranges
        of another are inserted.
    """
    given = _given(parameter_bytes=parameter_bytes, computation_bytes=computation_bytes, wait=wait)
    device = _device()
    _native.recv_shared_cache(device, _socket(device, socket), given.wait, parameter_bytes, computation_bytes)


def insert_shared_cache_for_parameter(access: Literal["read", "write"] | None = None) -> None:
    """Places every tensor that the current stream allocates from now on in the cache's range for parameters.

    For writing, until `publish_shared_parameters` or `insert_shared_cache_for_computation`; ``module.cuda()`` writes.
    For reading, until all that was published is allocated, in the order in which it was published. What is read can not
    be written: ``module.cuda()`` would copy to it, and so lose the process its device. What allocates alone is
    ``module.to_empty(device="cuda")``; `attach_module` also compares the modules, and knows tied parameters.

    Parameters
    ----------
    access
        By default, the cache's owner writes and others read.

    Raises
    ------
    tenure.Error
        This process has inserted the range already. To be read: nothing is published yet, or somebody writes; or
        PyTorch is set to fill new tensors. To be written: somebody reads or writes.
    """
    if access not in (None, "read", "write"):
        raise Error(f"access = {access!r}: expected 'read' or 'write'")
    device = _cache()
    import torch

    writes = _native.owns_shared_cache(device) if access is None else access == "write"
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
        This process has inserted the range already, or another computes in it; or parameters are read that were not
        all allocated.
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
        The range for parameters is too small; or as `insert_shared_cache_for_parameter` and
        `publish_shared_parameters`. Whatever is raised, the module is as it was, and nothing is inserted.
    """
    device, slots = _cache(), _slots(module)
    about, layouts = _described(slots), [_layout(tensor) for tensor in _tensors(slots)]
    sizes = [layout.untyped_storage().nbytes() for layout in layouts]
    _native.check_room_for_parameters(device, [size for size in sizes if size > 0], about)
    with _alone(device) as stream:
        _native.insert_shared_parameters(device, stream, True)
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
        Nothing is shared, or another module: the error names the first tensor that differs. This process has inserted
        the range for parameters already. Whatever is raised, the module is as it was, and nothing is inserted.
    """
    device, slots = _cache(), _slots(module)
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


class _Slot(NamedTuple):
    """Where a module holds a parameter or a buffer."""

    name: str
    part: torch.nn.Module
    attribute: str
    tensor: torch.Tensor


def _slots(module: torch.nn.Module) -> list[_Slot]:
    """Those of all its parts; tensors that are tied come once for each place."""
    return [
        _Slot(f"{prefix}.{attribute}" if prefix else attribute, part, attribute, tensor)
        for prefix, part in module.named_modules()
        for held in (part._parameters, part._buffers)
        for attribute, tensor in held.items()
        if tensor is not None
    ]


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
    _native.join_own_shared_cache(device, _socket(device, None))
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
    return os.path.abspath(socket or _settings.socket or _native.shared_cache_socket(device))
