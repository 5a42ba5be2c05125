"""Functions on Tenure's tensors as functions on PyTorch's, with their gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils import _pytree

import tenure

__all__ = ["function"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def function(f: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes a function on Tenure's tensors one on PyTorch's, without a copy of inputs or results.

    PyTorch's tensors among the arguments, also within tuples, lists and dicts, become Tenure's, and Tenure's tensors
    among the results become PyTorch's. PyTorch's gradients pass through the function by Tenure's formulas, once:
    second derivatives raise an error.

    Parameters
    ----------
    f : callable

    Returns
    -------
    callable

    Examples
    --------
    >>> import tenure
    >>> import torch
    >>> square = tenure.torch.function(lambda x: x * x)
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> square(x).sum().backward()
    >>> x.grad
    tensor([2., 4.])
    """

    @functools.wraps(f)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        leaves, arguments = _pytree.tree_flatten((args, kwargs))
        places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        structures: list[Any] = []
        is_grad_enabled = torch.is_grad_enabled()

        def run(tensors: Sequence[tenure.Tensor]) -> list[object]:
            for place, tensor in zip(places, tensors, strict=True):
                leaves[place] = tensor
            own_args, own_kwargs = _pytree.tree_unflatten(leaves, arguments)
            needs_grad = is_grad_enabled and any(tensor.requires_grad for tensor in tensors)
            with tenure.set_grad_enabled(needs_grad):
                results, structure = _pytree.tree_flatten(f(*own_args, **own_kwargs))
            structures.append(structure)
            return results

        results = _Call.apply(run, *[leaves[place] for place in places])
        result: _R = _pytree.tree_unflatten(results, structures[0])
        return result

    return wrapped


class _Call(torch.autograd.Function):
    """A call of a function on Tenure's tensors."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Sequence[tenure.Tensor]], list[object]], *tensors: torch.Tensor) -> Any:
        needed = ctx.needs_input_grad[1:]
        inputs = [
            tenure.from_dlpack(tensor.detach()).requires_grad_(is_needed)
            for tensor, is_needed in zip(tensors, needed, strict=True)
        ]
        versions = [tensor._version for tensor in inputs]
        results = run(inputs)
        for tensor, source, version in zip(tensors, inputs, versions, strict=True):
            if source._version != version:
                torch.autograd.graph.increment_version(tensor)
        # Reading them in `backward` raises an error if PyTorch has written to them meanwhile.
        ctx.save_for_backward(*tensors)
        ctx.inputs, ctx.results = inputs, results
        exported = [_exported(result, inputs) if isinstance(result, tenure.Tensor) else result for result in results]
        ctx.mark_non_differentiable(
            *(
                tensor
                for tensor, result in zip(exported, results, strict=True)
                if isinstance(result, tenure.Tensor) and not result.requires_grad
            )
        )
        ctx.set_materialize_grads(False)
        return tuple(exported)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        _ = ctx.saved_tensors
        given = [
            (result, tenure.from_dlpack(gradient))
            for result, gradient in zip(ctx.results, gradients, strict=True)
            if gradient is not None
        ]
        inputs = ctx.inputs
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        found: Sequence[tenure.Tensor | None] = [None] * len(wanted)
        is_kept = torch._C._autograd._get_current_graph_task_keep_graph()
        if given:
            outputs, gradients_of_outputs = zip(*given, strict=True)
            found = tenure.autograd.grad(outputs, wanted, gradients_of_outputs, retain_graph=is_kept, allow_unused=True)
        if not is_kept:
            del ctx.inputs, ctx.results
        remaining = iter(found)
        return None, *(_imported(next(remaining)) if tensor.requires_grad else None for tensor in inputs)


def _exported(result: tenure.Tensor, inputs: Sequence[tenure.Tensor]) -> torch.Tensor:
    """Returns a result as a tensor of PyTorch, which does not know of results on the memory of inputs."""
    result = result.detach()
    if any(result.shares_storage_with(tensor) for tensor in inputs):
        result = result.clone()
    return torch.from_dlpack(result)


def _imported(gradient: tenure.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None else torch.from_dlpack(gradient.detach())
