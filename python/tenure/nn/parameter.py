"""Parameters: the tensors that a module learns."""

from __future__ import annotations

from typing import Any

from tenure._native import Tensor
from tenure._operations import empty

__all__ = ["Buffer", "Parameter"]


def _module_tensor(kind: type[Any], data: object) -> Any:
    return Tensor.__new__(kind, empty(0) if data is None else data)


class Parameter(Tensor):
    """A tensor that is learned. Assigned to an attribute of a module, it becomes one of the module's parameters.

    Parameters
    ----------
    data : Tensor, default None
        The initial values, on whose memory the parameter is; by default none.
    requires_grad : bool, default True

    Examples
    --------
    >>> import tenure
    >>> tenure.nn.Parameter(tenure.zeros(2))
    Parameter containing:
    tensor([0., 0.], requires_grad=True)
    """

    def __new__(cls, data: object = None, requires_grad: bool = True) -> Parameter:
        parameter: Parameter = _module_tensor(cls, data)
        return parameter.requires_grad_(requires_grad)

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


class Buffer(Tensor):
    """A tensor that belongs to a module's state but is not learned. Assigned to an attribute, it becomes a buffer.

    Parameters
    ----------
    data : Tensor, default None
    persistent : bool, default True
        Whether `state_dict` has it.
    """

    persistent: bool

    def __new__(cls, data: object = None, *, persistent: bool = True) -> Buffer:
        buffer: Buffer = _module_tensor(cls, data)
        buffer.persistent = persistent
        return buffer
