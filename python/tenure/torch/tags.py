"""Tags and keys for what PyTorch allocates.

A block of memory has a *tag*, what it is for, and a *key*, which one it is. Hooks give them: around the forward call of
each module, before the gradients of its outputs are used, when a parameter's gradient is there, and around the
optimizer's step. The hooks change no result, no graph and no memory. Backward is told by hooks on the nodes of the
graph: module backward hooks would forbid operations in place on the outputs of modules.

What hooks cannot see:

- Inside code that `torch.compile` compiled, memory belongs to the module at which that code was entered: hooks run
  around it, do not run in it, and break no graph. It belongs to nothing where compiled code was entered outside of the
  tagged model: at a function that calls the model; or at what ``torch.compile(model)`` returned for a model whose class
  is PyTorch's own, such as ``nn.Sequential``, if `tag` was given the model and not that.
- A compiled ``optimizer.step`` has a purpose if it was compiled after `tag`; what it made before, a report tags.
- A generator's body runs after the module's call: it belongs to whoever iterates.
- TorchScript modules belong to the module that calls them.
- Gradients of what follows the model, such as the loss, have the tag of nothing until backward reaches the model.
- Hooks are not told of the end of a call that Ctrl-C ends: what the thread allocates after it belongs to the module
  that was interrupted, until the model is called again or the tagging removed.

``torch.jit.script`` and ``torch.cuda.make_graphed_callables`` take no module that has hooks: give them the model before
it is tagged, or after `Tagging.remove`.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from tenure import _native
from tenure.torch.backward import tell_in_backward
from tenure.torch.dynamo import runs_beside_compiled_code
from tenure.torch.holdings import OptimizerStates, Parameters, named_parameters, path_of, tensors_in
from tenure.torch.optimizers import Steps
from tenure.torch.placement import is_installed
from tenure.torch.purpose import Span, new_token, number_of_key, number_of_tag, retag
from tenure.torch.state import status

__all__ = ["Hook", "Tagging", "tag"]

_LOG = logging.getLogger("tenure")

_ACTIVATION = number_of_tag("activation")
_GRADIENT = number_of_tag("gradient")


class _Removable(Protocol):
    def remove(self) -> None: ...


class Tagging:
    """The tagging of a model, until `remove` is called or a ``with`` block ends. Made by `tag`."""

    def __init__(self) -> None:
        self._hooks: list[_Removable] = []
        self._span = Span()

    def remove(self) -> None:
        """Ends the tagging, also in calls that run. What is tagged stays so."""
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
    """Tags what a model allocates: parameters, activations, gradients, optimizer state.

    Parameters and buffers are tagged at once, and again when a call of the model finds that one has moved; optimizer
    state when a step has made it. `tenure.torch.report` looks at all of them once more. A key is the path of a module
    and the name of what it holds; the report adds memory up along these paths.

    Parameters
    ----------
    module
        The model. May be compiled, wrapped, or checkpointed.
    optimizer
        Its optimizer; of several, call this for each.
    name
        What paths begin with, to tell several models apart.

    Returns
    -------
    Tagging
        Ends the tagging by ``remove()``, or as a context manager.

    Raises
    ------
    TypeError
        ``optimizer`` is none of PyTorch's.

    Notes
    -----
    Copies of the model, also in files, are not tagged.

    If Tenure is not installed under PyTorch, nothing is done, and one line in the log says so.

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


class Hook:
    """A hook of a module. In copies of the module, and in files that it is saved to, there is one that does nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Takes anything, returns None, and can be loaded where there is no Tenure.
        return getattr, (nullcontext(), "__exit__")


class _Before(Hook):
    """Is called before each call of a module."""

    def __init__(self, token: int, path: str, span: Span) -> None:
        self._token = token
        self._span = span
        self._key = number_of_key(path, "forward", "out")

    @runs_beside_compiled_code
    def __call__(self, module: nn.Module, args: Any) -> None:
        if not is_compiling():
            _native.enter_purpose(self._token, _ACTIVATION, self._key, self._span.number)


class _BeforeProgram(_Before):
    """Is called before each call of the model itself, and watches over its parameters."""

    def __init__(self, token: int, path: str, span: Span, parameters: Parameters) -> None:
        super().__init__(token, path, span)
        self._parameters = parameters

    @runs_beside_compiled_code
    def __call__(self, module: nn.Module, args: Any) -> None:
        if is_compiling():
            return
        # A call that was interrupted has left its purpose behind.
        _native.leave_purpose(self._token)
        self._parameters.tag_if_moved()
        super().__call__(module, args)


class _After(Hook):
    """Is called after each call of a module, also if it failed."""

    def __init__(self, token: int, path: str) -> None:
        self._token = token
        self._backward_key = number_of_key(path, "backward", "out")

    @runs_beside_compiled_code
    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if is_compiling():
            return
        _native.leave_purpose(self._token)
        # Most modules return a tensor, and this is on the path of every call.
        for tensor in (output,) if isinstance(output, Tensor) else tensors_in(output):
            # On the device, backward runs on a thread of its own, whose purpose is nobody else's; on the CPU it runs on
            # the one that asks for it.
            if tensor.is_cuda or _native.placed_in():
                tell_in_backward(tensor, self._backward_key)


class _Accumulated:
    """Is called when a parameter's gradient is there, and tags it."""

    def __init__(self, key: int) -> None:
        self._key = key

    @runs_beside_compiled_code
    def __call__(self, parameter: Tensor) -> None:
        if not is_compiling() and parameter.grad is not None:
            retag(parameter.grad, _GRADIENT, self._key)
