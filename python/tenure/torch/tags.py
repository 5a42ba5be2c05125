"""Tags and keys for what PyTorch allocates.

A block of memory has a *tag*, what it is for, and a *key*, which one it is. Hooks give them: around the forward call of
each module, before the gradients of its outputs are used, when a parameter's gradient is there, and around the
optimizer's step. The hooks change no result, no graph and no memory. Backward is told by hooks on the nodes of the
graph: module backward hooks would forbid operations in place on the outputs of modules.

What hooks cannot see:

- Inside code that `torch.compile` compiled, memory belongs to the module at which that code was entered. Hooks do not
  run there, and break no graph.
- A generator's body runs after the module's call: it belongs to whoever iterates.
- TorchScript modules belong to the module that calls them.
- Gradients of what follows the model, such as the loss, have the tag of nothing until backward reaches the model.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from tenure import _native
from tenure.torch.backward import tell_in_backward
from tenure.torch.purpose import address_of, new_token, number_of_key, number_of_tag, retag
from tenure.torch.state import status

__all__ = ["Tagging", "tag"]

_LOG = logging.getLogger("tenure")

_WEIGHT = number_of_tag("weight")
_ACTIVATION = number_of_tag("activation")
_GRADIENT = number_of_tag("gradient")
_OPTIMIZER_STATE = number_of_tag("optimizer_state")
_WORKSPACE = number_of_tag("workspace")

#: Names that wrappers put into the paths of the modules that they wrap.
_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})


class _Removable(Protocol):
    def remove(self) -> None: ...


class Tagging:
    """The tagging of a model, until `remove` is called or a ``with`` block ends. Made by `tag`."""

    def __init__(self) -> None:
        self._hooks: list[_Removable] = []

    def remove(self) -> None:
        """Ends the tagging. What is tagged stays so."""
        while self._hooks:
            self._hooks.pop().remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


def tag(module: nn.Module, optimizer: Optimizer | None = None, *, name: str = "") -> Tagging:
    """Tags what a model allocates: parameters, activations, gradients, optimizer state.

    Parameters and buffers are tagged at once, and again when a call finds that they have moved. A key is the path of a
    module and the name of what it holds; `tenure.torch.report` adds memory up along these paths.

    Parameters
    ----------
    module
        The model. May be compiled, wrapped, or checkpointed.
    optimizer
        Its optimizer.
    name
        What paths begin with, to tell several models apart.

    Returns
    -------
    Tagging
        Ends the tagging by ``remove()``, or as a context manager.

    Notes
    -----
    If Tenure is not installed under PyTorch, nothing is done, and one line in the log says so.

    Examples
    --------
    >>> with tenure.torch.tag(model, optimizer):  # doctest: +SKIP
    ...     train(model, optimizer)
    ...     tenure.torch.report("memory.html")
    """
    tagging = Tagging()
    if status().mode == "not installed":
        _LOG.warning("tags have no effect: call tenure.torch.install() before the program first uses CUDA")
        return tagging
    paths = {child: _path(name, path) for path, child in module.named_modules()}
    for child, path in paths.items():
        if not isinstance(child, torch.jit.ScriptModule):
            calls = _ProgramCalls(path, name) if child is module else _Calls(path)
            tagging._hooks += [
                child.register_forward_pre_hook(calls.before),
                child.register_forward_hook(calls.after, always_call=True),
            ]
    for path, parameter_name, parameter in _parameters(module, name):
        if parameter.requires_grad and parameter.is_leaf and not is_lazy(parameter):
            key = number_of_key(path, "backward", parameter_name)
            tagging._hooks.append(parameter.register_post_accumulate_grad_hook(_Accumulated(key)))
    _tag_parameters(module, name)
    if optimizer is not None:
        keys = {id(parameter): (path, role) for path, role, parameter in _parameters(module, name)}
        steps = _Steps(optimizer, keys)
        steps.tag_states(optimizer)
        tagging._hooks += [
            optimizer.register_step_pre_hook(steps.before),
            optimizer.register_step_post_hook(steps.after),
            optimizer.register_load_state_dict_post_hook(steps.tag_states),
        ]
    return tagging


class _Calls:
    """What happens around the calls of one module. It can be pickled with the module."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._token = new_token()
        self._forward_key = number_of_key(path, "forward", "out")
        self._backward_key = number_of_key(path, "backward", "out")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path,)

    def before(self, module: nn.Module, args: Any) -> None:
        if not is_compiling():
            _native.enter_purpose(self._token, _ACTIVATION, self._forward_key)

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        if is_compiling():
            return
        _native.leave_purpose(self._token)
        # Most modules return a tensor, and this is on the path of every call.
        for tensor in (output,) if isinstance(output, Tensor) else _tensors(output):
            # On the device, backward runs on a thread of its own, whose purpose is nobody else's.
            if tensor.is_cuda:
                tell_in_backward(tensor, self._backward_key)


class _ProgramCalls(_Calls):
    """The same around the calls of the model itself, which also watch over its parameters."""

    def __init__(self, path: str, name: str) -> None:
        super().__init__(path)
        self._name = name
        self._tagged_at: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path, self._name)

    def before(self, module: nn.Module, args: Any) -> None:
        if is_compiling():
            return
        # A call that was interrupted has left its purpose behind.
        _native.leave_purpose(self._token)
        first = next(module.parameters(), None)
        if first is not None and (address := address_of(first)) != self._tagged_at:
            self._tagged_at = address
            _tag_parameters(module, self._name)
        super().before(module, args)


class _Accumulated:
    """Tags a parameter's gradient when it is there."""

    def __init__(self, key: int) -> None:
        self._key = key

    def __call__(self, parameter: Tensor) -> None:
        if not is_compiling() and parameter.grad is not None:
            retag(parameter.grad, _GRADIENT, self._key)


class _Steps:
    """What happens around the steps of an optimizer."""

    def __init__(self, optimizer: Optimizer, keys: Mapping[int, tuple[str, str]]) -> None:
        self._token = new_token()
        self._op = type(optimizer).__name__
        self._key = number_of_key("", self._op, "")
        self._keys = keys
        self._known = 0

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        # A step that failed has left its purpose behind.
        _native.leave_purpose(self._token)
        # The first step makes the state; what later ones allocate, they give back.
        _native.enter_purpose(self._token, _WORKSPACE if self._known else _OPTIMIZER_STATE, self._key)

    def after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        _native.leave_purpose(self._token)
        if len(optimizer.state) != self._known:
            self.tag_states(optimizer)

    def tag_states(self, optimizer: Optimizer) -> None:
        self._known = len(optimizer.state)
        for parameter, state in optimizer.state.items():
            path, parameter_name = self._keys.get(id(parameter), ("", ""))
            for name, value in state.items():
                for tensor in _tensors(value):
                    role = f"{parameter_name}.{name}" if parameter_name else name
                    retag(tensor, _OPTIMIZER_STATE, number_of_key(path, self._op, role))


def _tag_parameters(module: nn.Module, name: str) -> None:
    for path, role, parameter in _parameters(module, name):
        retag(parameter, _WEIGHT, number_of_key(path, "parameter", role))
        if parameter.grad is not None:
            retag(parameter.grad, _GRADIENT, number_of_key(path, "backward", role))
    for prefix, child in module.named_modules():
        for role, buffer in child.named_buffers(recurse=False):
            retag(buffer, _WEIGHT, number_of_key(_path(name, prefix), "buffer", role))


def _parameters(module: nn.Module, name: str) -> Iterator[tuple[str, str, nn.Parameter]]:
    """The path of the module, the name in it, and the parameter: each parameter once."""
    for full_name, parameter in module.named_parameters():
        path, _, role = full_name.rpartition(".")
        yield _path(name, path), role, parameter


def _path(name: str, path: str) -> str:
    """The path of a module, without the names of wrappers."""
    return ".".join(part for part in (name, *path.split(".")) if part and part not in _WRAPPERS)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in an output or a state, however they are nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
