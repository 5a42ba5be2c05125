"""Tags and keys of PyTorch's memory.

A block of memory has a *tag*, which says what it is for, and a *key*, which says which tensor it is. Hooks set them:
around the forward call of each module, before the gradients of its outputs are used, when a parameter's gradient is
ready, and around the optimizer's step. The hooks change no result, no graph and no memory. The hooks for backward are
on nodes of the graph: module backward hooks would forbid in-place operations on the outputs of modules.

Limits of the hooks:

- Inside code compiled by `torch.compile`, memory belongs to the module at which that code was entered: hooks run around
  it, not in it, and break no graph. It belongs to no module if compiled code was entered outside of the tagged model:
  at a function that calls the model; or, if `tag` was given the model instead, at the result of
  ``torch.compile(model)`` for a model whose class is PyTorch's own, such as ``nn.Sequential``.
- A compiled ``optimizer.step`` has a purpose if it was compiled after `tag`. A report tags the state that it made
  before.
- A generator's body runs after the module's call: its memory belongs to the code that iterates.
- TorchScript modules belong to the module that calls them.
- Gradients of operations after the model, such as the loss, have no tag until backward reaches the model.
- Ctrl-C in a call skips the hook at its end: later allocations of the thread belong to the interrupted module until the
  model is called again or the tagging removed.

``torch.jit.script`` and ``torch.cuda.make_graphed_callables`` accept no module with hooks: pass them the model before
it is tagged, or after `Tagging.remove`.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from tenure import _native
from tenure._entries import Hook
from tenure.torch.dynamo import runs_beside_compiled_code
from tenure.torch.installation import status
from tenure.torch.installation.cpu import is_installed
from tenure.torch.purpose import Span, new_token, number_of_key, number_of_tag, retag
from tenure.torch.tagging.backward import tell_in_backward
from tenure.torch.tagging.holdings import OptimizerStates, Parameters, named_parameters, path_of, tensors_in
from tenure.torch.tagging.optimizers import Steps

__all__ = ["Hook", "Tagging", "tag"]

_LOG = logging.getLogger("tenure")

_ACTIVATION = number_of_tag("activation")
_GRADIENT = number_of_tag("gradient")


class _Removable(Protocol):
    def remove(self) -> None: ...


class Tagging:
    """The tagging of a model, until `remove` is called or a ``with`` block ends. `tag` makes it."""

    def __init__(self) -> None:
        self._hooks: list[_Removable] = []
        self._span = Span()

    def remove(self) -> None:
        """Ends the tagging, also in calls that are running. Memory keeps its tags."""
        while self._hooks:
            self._hooks.pop().remove()
        self._span.end()

    def _add_module(self, module: nn.Module, name: str) -> None:
        parameters = Parameters(module, name)
        for prefix, child in module.named_modules():
            if not isinstance(child, torch.jit.ScriptModule):
                token, path = new_token(), path_of(name, prefix)
                before = _Before(token, path, self._span)
                if child is module:
                    before = _BeforeProgram(token, path, self._span, parameters)
                self._hooks += [
                    child.register_forward_pre_hook(before),
                    child.register_forward_hook(_After(token, path), always_call=True),
                ]
        for path, role, parameter in named_parameters(module, name):
            if parameter.requires_grad and parameter.is_leaf and not is_lazy(parameter):
                accumulated = _Accumulated(number_of_key(path, "backward", role))
                self._hooks.append(parameter.register_post_accumulate_grad_hook(accumulated))
        parameters.tag()

    def _add_optimizer(self, optimizer: Optimizer, module: nn.Module, name: str) -> None:
        states = OptimizerStates(optimizer, module, name)
        states.tag()
        self._hooks += [
            Steps(optimizer, states, self._span),
            optimizer.register_load_state_dict_post_hook(lambda _: states.tag()),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


def tag(module: nn.Module, optimizer: Optimizer | None = None, *, name: str = "") -> Tagging:
    """Tags a model's memory: parameters, activations, gradients, optimizer state.

    Parameters and buffers are tagged at once, and again when a call of the model finds that one has moved; optimizer
    state is tagged after the step that made it. `tenure.torch.report` tags all of them once more. A key is the path of
    a module and the name of the tensor in it; the report adds up memory along these paths.

    Parameters
    ----------
    module
        The model. It may be compiled, wrapped, or checkpointed.
    optimizer
        Its optimizer. If there are several, call this function for each.
    name
        A prefix of all paths, to tell several models apart.

    Returns
    -------
    Tagging
        The tagging. End it with ``remove()``, or use it as a context manager.

    Raises
    ------
    TypeError
        ``optimizer`` is not one of PyTorch's.

    Notes
    -----
    Copies of the model, also those in files, are not tagged.

    If Tenure is not installed under PyTorch, this does nothing but log one line that says so.

    Examples
    --------
    >>> with tenure.torch.tag(model, optimizer):  # doctest: +SKIP
    ...     train(model, optimizer)
    ...     tenure.torch.report("memory.html")
    """
    if not isinstance(optimizer, Optimizer | None):
        kind = type(optimizer).__name__
        raise TypeError(f"optimizer is a {kind}: expected one torch.optim.Optimizer; call tag() for each of several")
    tagging = Tagging()
    if status().mode == "not installed" and not is_installed():
        _LOG.warning("tags have no effect: call tenure.torch.install() before the program first uses CUDA")
        return tagging
    try:
        tagging._add_module(module, name)
        if optimizer is not None:
            tagging._add_optimizer(optimizer, module, name)
    except BaseException:
        tagging.remove()
        raise
    return tagging


class _Before(Hook):
    """A hook before each call of a module."""

    def __init__(self, token: int, path: str, span: Span) -> None:
        self._token = token
        self._span = span
        self._key = number_of_key(path, "forward", "out")

    @runs_beside_compiled_code
    def __call__(self, module: nn.Module, args: Any) -> None:
        if not is_compiling():
            _native.enter_purpose(self._token, _ACTIVATION, self._key, self._span.number)


class _BeforeProgram(_Before):
    """A hook before each call of the model itself, which also tags parameters that have moved."""

    def __init__(self, token: int, path: str, span: Span, parameters: Parameters) -> None:
        super().__init__(token, path, span)
        self._parameters = parameters

    @runs_beside_compiled_code
    def __call__(self, module: nn.Module, args: Any) -> None:
        if is_compiling():
            return
        # A call that was interrupted did not leave its purpose.
        _native.leave_purpose(self._token)
        self._parameters.tag_if_moved()
        super().__call__(module, args)


class _After(Hook):
    """A hook after each call of a module, even a failed one."""

    def __init__(self, token: int, path: str) -> None:
        self._token = token
        self._backward_key = number_of_key(path, "backward", "out")

    @runs_beside_compiled_code
    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if is_compiling():
            return
        _native.leave_purpose(self._token)
        # Most modules return a tensor, and this code runs at every call.
        for tensor in (output,) if isinstance(output, Tensor) else tensors_in(output):
            # On a GPU, backward runs on a thread of its own, which has its own purpose. On the CPU, it runs on the
            # thread that calls it.
            if tensor.is_cuda or _native.placed_in():
                tell_in_backward(tensor, self._backward_key)


class _Accumulated:
    """A hook that tags a parameter's gradient when it is ready."""

    def __init__(self, key: int) -> None:
        self._key = key

    @runs_beside_compiled_code
    def __call__(self, parameter: Tensor) -> None:
        if not is_compiling() and parameter.grad is not None:
            retag(parameter.grad, _GRADIENT, self._key)
