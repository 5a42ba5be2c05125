"""Gradients' norms, and parameters as one vector. `torch.nn.utils`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tenure import _operations as _ops
from tenure._native import Tensor
from tenure.autograd import no_grad
from tenure.nn import init
from tenure.nn.module import Module

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "parameters_to_vector",
    "skip_init",
    "vector_to_parameters",
]

_M = TypeVar("_M", bound=Module)
_Tensors = Tensor | Iterable[Tensor]


def _listed(tensors: _Tensors) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _gradients(parameters: _Tensors) -> list[Tensor]:
    return [parameter.grad for parameter in _listed(parameters) if parameter.grad is not None]


def get_total_norm(
    tensors: _Tensors, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """Returns the norm of all elements of several tensors.

    Raises
    ------
    RuntimeError
        The norm is infinite or NaN, and `error_if_nonfinite`.
    """
    with no_grad():
        # Norms are computed on the devices of their tensors and joined on the first one's.
        norms = [_ops.vector_norm(tensor, float(norm_type)) for tensor in _listed(tensors)]
        if not norms:
            return _ops.zeros(())
        joined = _ops.stack([norm.to(device=norms[0].device) for norm in norms])
        total = _ops.vector_norm(joined, float(norm_type))
    if error_if_nonfinite and not total.isfinite().item():
        raise RuntimeError(
            f"The total norm of order {float(norm_type)} for gradients from `parameters` is non-finite, so it cannot "
            "be clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    return total


def clip_grads_with_norm_(
    parameters: _Tensors, max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scales gradients of the norm `total_norm` to a norm of at most `max_norm`."""
    with no_grad():
        factor = _ops.clamp_max(float(max_norm) / (total_norm + 1e-6), 1.0)
        for grad in _gradients(parameters):
            grad.mul_(factor.to(device=grad.device))


def clip_grad_norm_(
    parameters: _Tensors,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scales gradients so that their norm is at most `max_norm`, and returns the norm before.

    Parameters
    ----------
    parameters : Tensor or iterable of Tensor
    max_norm : float
    norm_type : float, default 2.0
    error_if_nonfinite : bool, default False
        Whether an infinite norm or NaN is an error.
    foreach : bool, default None
        Accepted for PyTorch's programs.
    """
    listed = _listed(parameters)
    total = get_total_norm(_gradients(listed), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(listed, max_norm, total)
    return total


def clip_grad_value_(parameters: _Tensors, clip_value: float, foreach: bool | None = None) -> None:
    """Limits the elements of gradients to the range from -`clip_value` to `clip_value`."""
    with no_grad():
        for grad in _gradients(parameters):
            grad.clamp_(-float(clip_value), float(clip_value))


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Returns the elements of all parameters in one dimension."""
    return _ops.cat([parameter.reshape((-1,)) for parameter in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copies the elements of a vector to parameters."""
    start = 0
    with no_grad():
        for parameter in parameters:
            count = parameter.numel()
            parameter.copy_(vec.narrow(0, start, count).reshape(tuple(parameter.shape)))
            start += count


def skip_init(module_cls: Callable[..., _M], *args: Any, **kwargs: Any) -> _M:
    """Makes a module whose parameters have no initial values yet, and draws no random numbers.

    Examples
    --------
    >>> from tenure import nn
    >>> layer = nn.utils.skip_init(nn.Linear, 4, 2)
    >>> layer.weight = nn.Parameter(nn.init.normal_(layer.weight.detach(), std=0.02))
    """
    with init._skipped():
        return module_cls(*args, **kwargs)
