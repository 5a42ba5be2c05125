"""How what was saved is computed again: by the operation that made it, of what that saved itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tenure import _native
from tenure.torch.held import Held, Layout

__all__ = ["Recipe", "recipe_of"]

#: What the engine is told: what it takes, and what computes it.
Recipe = tuple[list[_native.Saved], Callable[[list[torch.UntypedStorage], int], tuple[Tensor, int, int]]]

_Operation = Callable[..., Tensor]

#: Operations whose result is memory of their input.
_VIEWS = frozenset(
    f"{name}Backward0"
    for name in (
        *("Alias", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Split", "SplitWithSizes", "Squeeze", "T"),
        *("Transpose", "Unbind", "UnsafeView", "Unsqueeze", "View"),
    )
) | {"SqueezeBackward1"}


def _addmm(node: Any) -> _Operation | None:
    bias = _parameter(node, 0)
    alpha, beta = node._saved_alpha, node._saved_beta
    if bias is None:
        return None
    return lambda mat1, mat2: torch.addmm(bias(), mat1, mat2, beta=beta, alpha=alpha)


def _convolution(node: Any) -> _Operation | None:
    has_bias = node._saved_bias_sym_sizes_opt not in (None, (0,))
    bias = _parameter(node, 2) if has_bias else lambda: None
    how = (node._saved_stride, node._saved_padding, node._saved_dilation)
    rest = (node._saved_transposed, node._saved_output_padding, node._saved_groups)
    if bias is None:
        return None
    return lambda input, weight: torch.convolution(input, weight, bias(), *how, *rest)


def _parameter(node: Any, number: int) -> Callable[[], Tensor] | None:
    """Gives an input that is a parameter; none if it is something else, which may be gone."""
    parameter = getattr(node.next_functions[number][0], "variable", None)
    if parameter is None:
        return None
    version = parameter._version

    def same() -> Tensor:
        if parameter._version != version:
            raise RuntimeError("a parameter was written to")
        return parameter

    return same


#: By the name of an operation's node: what it saved that makes its result, and how to.
_OPERATIONS: dict[str, tuple[tuple[str, ...], Callable[[Any], _Operation | None]]] = {
    "AddmmBackward0": (("mat1", "mat2"), _addmm),
    "BmmBackward0": (("self", "mat2"), lambda _: torch.bmm),
    "ConvolutionBackward0": (("input", "weight"), _convolution),
    "CosBackward0": (("self",), lambda _: torch.cos),
    "GeluBackward0": (("self",), lambda node: partial(F.gelu, approximate=node._saved_approximate)),
    "MmBackward0": (("self", "mat2"), lambda _: torch.mm),
    "MulBackward0": (("self", "other"), lambda _: torch.mul),
    "SiluBackward0": (("self",), lambda _: F.silu),
    "SinBackward0": (("self",), lambda _: torch.sin),
}


def recipe_of(tensor: Tensor, stays: Callable[[Tensor], bool]) -> Recipe | None:
    """How the memory of a tensor is computed again; none if nobody knows, or what it is made of was not saved.

    What `stays` it is made of directly, and else of what is held.
    """
    node = tensor.grad_fn
    if node is None or tensor._version > 0:
        return None
    while node is not None and node.name() in _VIEWS:
        node = node.next_functions[0][0]
    if node is None or node.name() not in _OPERATIONS:
        return None
    names, make = _OPERATIONS[node.name()]
    operation, inputs = make(node), []
    arguments: list[Tensor | Layout] = []
    for name in names:
        packed = _packed(node, name)
        if isinstance(packed, Held):
            inputs.append(packed.saved)
            arguments.append(packed.layout)
        elif isinstance(packed, tuple) and stays(packed[0]):
            arguments.append(packed[0])
        else:
            return None
    return None if operation is None else (inputs, partial(_compute, operation, arguments, tensor.device))


def _packed(node: Any, name: str) -> object:
    """What the hooks made of something that an operation saved."""
    try:
        return getattr(node, f"_raw_saved_{name}").data
    except (AttributeError, RuntimeError):
        # Of a PyTorch that does not tell, or nobody needs it any more.
        return None


def _compute(
    operation: _Operation,
    arguments: list[Tensor | Layout],
    device: torch.device,
    storages: list[torch.UntypedStorage],
    stream: int,
) -> tuple[Tensor, int, int]:
    """What an operation made, with the address and the bytes of its memory."""
    left = iter(storages)
    there = (argument.of(next(left)) if isinstance(argument, Layout) else argument for argument in arguments)
    with torch.no_grad(), torch.autocast(device.type, enabled=False), _on(stream, device):
        result = operation(*there)
    storage = result.untyped_storage()
    return result, storage.data_ptr(), storage.nbytes()


def _on(stream: int, device: torch.device) -> AbstractContextManager[Any]:
    """Has a GPU compute on a stream."""
    if device.type == "cpu" or torch._C._cuda_getCurrentRawStream(device.index) == stream:
        return nullcontext()
    is_default = stream == 0
    other = torch.cuda.default_stream(device) if is_default else torch.cuda.ExternalStream(stream, device)
    return torch.cuda.stream(other)
