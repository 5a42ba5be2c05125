"""Gradients: where graphs are recorded, the backward pass, and operations whose formulas are written in Python."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from tenure import _native
from tenure._native import Node, RemovableHandle, Tensor, is_grad_enabled

__all__ = [
    "Function",
    "FunctionContext",
    "Node",
    "RemovableHandle",
    "backward",
    "checkpoint",
    "detect_anomaly",
    "enable_grad",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "is_grad_enabled",
    "no_grad",
    "once_differentiable",
    "saved_tensors_hooks",
    "set_grad_enabled",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_NO_CODE = (lambda: None).__code__
#: The flag of code that makes a generator. `inspect`, which has it too, takes long to import.
_GENERATOR = 0x20


class _Setting:
    """A setting of the thread: a context manager, and a decorator of functions that run in it."""

    def __init__(self) -> None:
        self._entered: list[int] = []

    def _enter(self) -> int:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._entered.append(self._enter())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _native.leave_setting(self._entered.pop())

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def decorated(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            number = self._enter()
            try:
                return function(*args, **kwargs)
            finally:
                _native.leave_setting(number)

        if getattr(function, "__code__", _NO_CODE).co_flags & _GENERATOR:
            raise TypeError("a generator cannot be decorated: use the setting within it")
        return decorated


class no_grad(_Setting):
    """Operations record no graph: their results require no gradient.

    Examples
    --------
    >>> import tenure
    >>> x = tenure.ones(2, requires_grad=True)
    >>> with tenure.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    def _enter(self) -> int:
        return _native.enter_gradient_mode(False)


class enable_grad(_Setting):
    """Operations record a graph, also within `no_grad`."""

    def _enter(self) -> int:
        return _native.enter_gradient_mode(True)


class set_grad_enabled(_Setting):
    """Operations record a graph if `mode`. Called as a function, it holds until the thread says otherwise.

    Parameters
    ----------
    mode : bool
    """

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._mode = mode
        # The mode to restore when this becomes a context manager or a decorator.
        self._before: bool | None = _native.is_grad_enabled()
        _native.set_gradient_mode(mode)

    def _enter(self) -> int:
        return _native.enter_gradient_mode(self._mode)

    def __enter__(self) -> Self:
        self._restore()
        return super().__enter__()

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        self._restore()
        return super().__call__(function)

    def _restore(self) -> None:
        if self._before is not None:
            _native.set_gradient_mode(self._before)
            self._before = None


class detect_anomaly(_Setting):
    """Backward passes raise an error when a gradient has a NaN. Slow."""

    def _enter(self) -> int:
        return _native.enter_anomaly_mode()


class saved_tensors_hooks(_Setting):
    """Tensors that backward needs are kept in the form that `pack_hook` returns.

    Parameters
    ----------
    pack_hook : callable
        Gets a tensor, and returns any object in its place. It must not modify the tensor.
    unpack_hook : callable
        Gets such an object, and returns the tensor. It may be called several times.
    """

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self._hooks = (pack_hook, unpack_hook)

    def _enter(self) -> int:
        return _native.enter_saved_tensors_hooks(*self._hooks)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs a function, and keeps its tensor arguments rather than the tensors that backward needs.

    Backward runs the function again, with the same random numbers, which takes time rather than memory. The function
    must do the same each time.

    Parameters
    ----------
    function : callable
    *args, **kwargs
        Its arguments. Gradients go to those of `args` that are tensors.

    Returns
    -------
    The function's result: a tensor, or a tuple of tensors.
    """
    is_tensor = [isinstance(arg, Tensor) for arg in args]
    is_tuple = False

    def run(*tensors: Tensor) -> Any:
        nonlocal is_tuple
        given = iter(tensors)
        result = function(*(next(given) if here else arg for here, arg in zip(is_tensor, args, strict=True)), **kwargs)
        is_tuple = not isinstance(result, Tensor)
        return result

    # The graph keeps the tensors; this function only has to keep the other arguments.
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    args = tuple(None if isinstance(arg, Tensor) else arg for arg in args)
    results = _native.checkpoint(run, tensors)
    return results if is_tuple else results[0]


def gradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Tensor],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
) -> bool:
    """Compares the gradients of a function with finite differences.

    Parameters
    ----------
    func : callable
        A function of the inputs that returns a tensor or a sequence of tensors.
    inputs : Tensor or sequence of Tensor
        Tensors of `float64`; those that require a gradient are checked.
    eps : float, default 1e-6
        The amount that is added to and subtracted from an element.
    atol, rtol : float
        The tolerances of a gradient: absolute, and relative to the finite difference.

    Raises
    ------
    Error
        A gradient and its finite difference differ; the message says which, and both values.
    """
    _native.check_gradients(func, _sequence(inputs), eps, atol, rtol, False)
    return True


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Tensor],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
) -> bool:
    """Compares the gradients of a function's gradients with finite differences, as `gradcheck` does."""
    _native.check_gradients(func, _sequence(inputs), eps, atol, rtol, True)
    return True


def _sequence(tensors: Tensor | Sequence[Any]) -> Sequence[Any]:
    return (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)


def _gradients(
    outputs: Sequence[Tensor], gradients: Tensor | Sequence[Tensor | None] | None
) -> Sequence[Tensor | None]:
    found = [None] * len(outputs) if gradients is None else _sequence(gradients)
    if len(found) != len(outputs):
        raise ValueError(f"{len(found)} gradients were given for {len(outputs)} tensors")
    return found


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Adds the gradients of `tensors` to the leaves that they were computed from.

    Parameters
    ----------
    tensors : Tensor or sequence of Tensor
    grad_tensors : Tensor or sequence of Tensor, default None
        The gradients of `tensors`; `None` stands for 1 if a tensor has one element.
    retain_graph : bool, default None
        Whether the graph can be gone through again; by default, if `create_graph`.
    create_graph : bool, default False
        Whether the gradients are differentiable themselves.
    inputs : Tensor or sequence of Tensor, default None
        The tensors whose gradients are added to; by default all leaves.

    Raises
    ------
    Error
        A tensor depends on nothing that requires a gradient; a gradient has other sizes; the graph was gone through
        before.
    """
    outputs = _sequence(tensors)
    retain = create_graph if retain_graph is None else retain_graph
    wanted = None if inputs is None else _sequence(inputs)
    _native.backward(outputs, _gradients(outputs, grad_tensors), retain, create_graph, wanted)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tensor, ...]:
    """Returns the gradients of `outputs` with respect to `inputs`, and changes no `grad`.

    Parameters
    ----------
    outputs : Tensor or sequence of Tensor
    inputs : Tensor or sequence of Tensor
    grad_outputs : Tensor or sequence of Tensor, default None
        The gradients of `outputs`; `None` stands for 1 if a tensor has one element.
    retain_graph : bool, default None
        Whether the graph can be gone through again; by default, if `create_graph`.
    create_graph : bool, default False
        Whether the gradients are differentiable themselves.
    allow_unused : bool, default False
        Whether the gradient of an input that no output depends on is `None`, rather than an error.
    """
    of = _sequence(outputs)
    retain = create_graph if retain_graph is None else retain_graph
    found = _native.grad(of, _sequence(inputs), _gradients(of, grad_outputs), retain, create_graph, allow_unused)
    return found


class FunctionContext:
    """The first argument of `Function.forward` and `Function.backward`: what the one keeps for the other.

    Attributes
    ----------
    needs_input_grad : tuple of bool
        Whether the gradient of each argument of `apply` is needed.
    """

    needs_input_grad: tuple[bool, ...]

    def __init__(self) -> None:
        self._to_save: tuple[Tensor | None, ...] = ()
        self._saved: Sequence[Tensor | None] | None = None
        self._non_differentiable: tuple[Tensor, ...] = ()
        self._materializes = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keeps arguments or results of `forward` for `backward`, which checks that they were not modified."""
        self._to_save = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Marks results that have no gradient."""
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Sets whether `backward` gets zeros, rather than `None`, for results that nothing depends on."""
        self._materializes = value

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors of `save_for_backward`."""
        if self._saved is None:
            raise RuntimeError("saved_tensors are there while backward runs")
        return tuple(self._saved)


class Function:
    """An operation whose gradient is written in Python. `apply` runs it.

    Examples
    --------
    >>> import tenure
    >>> class Cube(tenure.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x * x
    ...
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         (x,) = ctx.saved_tensors
    ...         return grad * 3 * x * x
    >>> x = tenure.tensor(2.0, requires_grad=True)
    >>> Cube.apply(x).backward()
    >>> x.grad
    tensor(12.)
    """

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Computes the results. The first argument is the context, unless the class has `setup_context`."""
        raise NotImplementedError("a Function needs a static method forward")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns a gradient, or `None`, for each argument of `forward`, from a gradient for each result."""
        raise NotImplementedError("a Function needs a static method backward, since its gradient is needed")

    #: If a class has it, `setup_context(ctx, inputs, output)` runs after `forward`, which then gets no context.
    setup_context: Callable[..., None] | None = None

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Runs the operation on tensors and other arguments, and records it."""
        context = FunctionContext()
        context.needs_input_grad = tuple(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
        with no_grad():
            if cls.setup_context is None:
                results = cls.forward(context, *args)
            else:
                results = cls.forward(*args)
                cls.setup_context(context, args, results)
        if not (is_grad_enabled() and any(context.needs_input_grad)):
            return results
        is_tuple = isinstance(results, (tuple, list))
        # A result that is an argument becomes another tensor, with the operation as its origin.
        made = [
            result.detach() if isinstance(result, Tensor) and any(result is arg for arg in args) else result
            for result in (results if is_tuple else (results,))
        ]
        cls._record(context, args, made)
        return tuple(made) if is_tuple else made[0]

    @classmethod
    def _record(cls, context: FunctionContext, args: Sequence[Any], results: Sequence[Any]) -> None:
        differentiable = [
            index
            for index, result in enumerate(results)
            if isinstance(result, Tensor)
            and result.is_floating_point()
            and not any(result is marked for marked in context._non_differentiable)
        ]
        inputs = [index for index, arg in enumerate(args) if isinstance(arg, Tensor)]
        shapes = [
            (result.shape, result.dtype, result.device) if isinstance(result, Tensor) else None for result in results
        ]

        def formula(saved: Sequence[Tensor | None], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
            given: list[Tensor | None] = [None] * len(shapes)
            for index, grad in zip(differentiable, grads, strict=True):
                given[index] = grad
            if context._materializes:
                given = [
                    _native_zeros(shape) if grad is None and shape is not None else grad
                    for grad, shape in zip(given, shapes, strict=True)
                ]
            context._saved = saved
            try:
                found = cls.backward(context, *given)
            finally:
                context._saved = None
            found = tuple(found) if isinstance(found, (tuple, list)) else (found,)
            # Arguments after the last that has a gradient may be left out.
            if len(found) > len(args) and any(grad is not None for grad in found[len(args) :]):
                raise RuntimeError(
                    f"{cls.__name__}.backward returned {len(found)} gradients for {len(args)} arguments of forward"
                )
            if len(found) < len(args):
                raise RuntimeError(
                    f"{cls.__name__}.backward returned {len(found)} gradients for {len(args)} arguments of forward: "
                    "return None for an argument that has none"
                )
            return [found[index] for index in inputs]

        _native.attach_function(
            cls.__name__ + "Backward",
            [results[index] for index in differentiable],
            [args[index] for index in inputs],
            list(context._to_save),
            formula,
        )


def _native_zeros(kind: tuple[Any, Any, Any]) -> Tensor:
    from tenure import zeros

    shape, dtype, device = kind
    return zeros(shape, dtype=dtype, device=device)


def once_differentiable(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorates a `Function.backward` whose operations are not differentiable themselves."""
    return no_grad()(function)
