"""Steps of an optimizer in pieces: state in host memory passes through the device's memory while it is stepped.

An optimizer that uses such state in place reads and writes it several times over the link. In pieces, each byte comes
once and goes once, while other pieces are on their way, and the memory that the step itself takes is that of a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from tenure.torch.budgets.moving import Mover, address_and_bytes

__all__ = ["PieceStepper", "can_step_in_pieces", "pieces_of", "step_only"]

#: The optimizers that step each parameter by itself, and so compute the same bits in pieces.
_BY_PARAMETER = (
    optim.ASGD,
    optim.Adadelta,
    optim.Adagrad,
    optim.Adam,
    optim.AdamW,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.RMSprop,
    optim.Rprop,
    optim.SGD,
)

#: The most bytes of state that a piece has, unless one parameter has more: enough for the bandwidth of a link.
_MOST_BYTES = 128 << 20

#: One slot for the piece that comes, one for the piece that is stepped, and one for the piece that goes.
_SLOTS = 3

#: The slots, and what the step of a piece itself takes, in pieces.
_PIECES_AT_ONCE = _SLOTS + 1

#: The alignment of a tensor in a slot.
_ALIGNMENT = 512

#: For each group of an optimizer, some of its parameters.
Piece = list[list[Tensor]]


def can_step_in_pieces(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether a step with these arguments does the same in pieces."""
    # A subclass may do anything, a closure computes the gradients anew, and hooks of its own may change them or look at
    # the parameters.
    is_known = type(optimizer) in _BY_PARAMETER and getattr(type(optimizer).step, "hooked", False)
    has_closure = any(each is not None for each in (*args[1:], *kwargs.values()))
    return (
        is_known
        and not has_closure
        and not (optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
        and not optimizer.defaults.get("differentiable")
        and not torch.compiler.is_compiling()
    )


def pieces_of(optimizer: Optimizer, bytes_of: Callable[[Tensor], int], most: int) -> Iterator[Piece]:
    """Divides the parameters that have gradients into pieces of at most `most` bytes, or of one parameter."""
    piece: Piece = [[] for _ in optimizer.param_groups]
    size = 0
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            own = bytes_of(parameter)
            if size > 0 and size + own > most:
                yield piece
                piece, size = [[] for _ in optimizer.param_groups], 0
            piece[number].append(parameter)
            size += own
    yield piece


@contextmanager
def step_only(optimizer: Optimizer) -> Iterator[Callable[[Piece], None]]:
    """Provides a function that steps a piece of an optimizer's parameters. Calls no hook."""
    step: Callable[[Optimizer], Any] = type(optimizer).step.__wrapped__
    groups = optimizer.param_groups
    parameters = [group["params"] for group in groups]

    def step_piece(piece: Piece) -> None:
        for group, some in zip(groups, piece, strict=True):
            group["params"] = some
        step(optimizer)

    try:
        yield step_piece
    finally:
        for group, own in zip(groups, parameters, strict=True):
            group["params"] = own


class PieceStepper:
    """Steps optimizers of a device in pieces."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._inward = torch.cuda.Stream(mover.device)
        self._outward = torch.cuda.Stream(mover.device)

    def step(self, optimizer: Optimizer, host_state: Callable[[Tensor], list[Tensor]], room: int) -> None:
        """Steps all parameters. `host_state` returns the tensors of a parameter's state that lie in host memory.

        The step may take `room` bytes of the device's memory. State that is too large for this is used in place.
        """

        def used_by(parameter: Tensor) -> list[Tensor]:
            gradient = parameter.grad
            has_host_gradient = gradient is not None and self._mover.is_on_host(gradient)
            return [*host_state(parameter), *([gradient] if has_host_gradient else [])]

        def bytes_of(parameter: Tensor) -> int:
            return sum(map(_slot_bytes, used_by(parameter))) or parameter.nbytes

        size = min(_MOST_BYTES, room // _PIECES_AT_ONCE)
        pieces = list(pieces_of(optimizer, bytes_of, size))
        states = [[each for group in piece for one in group for each in used_by(one)] for piece in pieces]
        states = [state if sum(map(_slot_bytes, state)) <= size else [] for state in states]
        # Without staged state, no slot is used.
        slots = [torch.empty(size * any(states), dtype=torch.uint8, device=self._mover.device) for _ in range(_SLOTS)]
        freed: list[torch.cuda.Event | None] = [None] * _SLOTS
        now = torch.cuda.current_stream(self._mover.device)
        self._inward.wait_stream(now)
        with step_only(optimizer) as step_piece:
            for number, (piece, state) in enumerate(zip(pieces, states, strict=True)):
                turn = number % _SLOTS
                addresses = [address_and_bytes(each)[0] for each in state]
                places = list(zip(addresses, _places(state, slots[turn]), strict=True))
                # A step only reads gradients.
                gradients = {one.grad for group in piece for one in group}
                written = [place for place, each in zip(places, state, strict=True) if each not in gradients]
                with torch.cuda.stream(self._inward):
                    if (event := freed[turn]) is not None:
                        self._inward.wait_event(event)
                    for there, here in places:
                        self._mover.native.copy_to_device(there, here.data_ptr())
                now.wait_stream(self._inward)
                with _replaced(state, [here for _, here in places]):
                    step_piece(piece)
                self._outward.wait_stream(now)
                with torch.cuda.stream(self._outward):
                    for there, here in written:
                        self._mover.native.copy_from_device(there, here.data_ptr())
                    freed[turn] = self._outward.record_event()
        now.wait_stream(self._outward)


def _slot_bytes(tensor: Tensor) -> int:
    return -(-address_and_bytes(tensor)[1] // _ALIGNMENT) * _ALIGNMENT


def _places(state: list[Tensor], slot: Tensor) -> Iterator[Tensor]:
    """Yields the bytes of a slot for each tensor's storage."""
    begin = 0
    for tensor in state:
        yield slot[begin : begin + address_and_bytes(tensor)[1]]
        begin += _slot_bytes(tensor)


@contextmanager
def _replaced(state: list[Tensor], places: list[Tensor]) -> Iterator[None]:
    """Makes tensors have the bytes of these places for a while."""
    own = [tensor.detach() for tensor in state]
    try:
        for tensor, place in zip(state, places, strict=True):
            here = place.view(tensor.dtype)
            offset = here.storage_offset() + tensor.storage_offset()
            tensor.data = here.as_strided(tensor.shape, tensor.stride(), offset)
        yield
    finally:
        for tensor, data in zip(state, own, strict=True):
            tensor.data = data
