"""Modules in the shared cache: one process shares a module, others attach theirs to its parameters and buffers.

`share_module` copies a module's tensors into the range for parameters of the cache (`tenure.torch.shared_cache`) and
publishes them with a description: the name, type, shape and strides of each. `attach_module` compares that description
with its own module before it inserts anything. Both change a module last, when all its tensors have their places.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from tenure import Error, _native
from tenure.torch.shared_cache import cache_device

if TYPE_CHECKING:
    import torch

#: The prefix of a module's description.
_MODULE = b"module "


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
    device, slots = cache_device(), _slots(module, needs_values=True)
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
    device, slots = cache_device(), _slots(module, needs_values=False)
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
    return f"another module was shared: it has {_in_words(theirs)} where this one has {_in_words(ours)}"


def _in_words(tensor: list[Any] | None) -> str:
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
