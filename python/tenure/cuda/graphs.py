"""Graphs: work of a device that is captured once and replayed as one launch."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tenure import _native, autograd
from tenure._native import CUDAGraph, GraphPool, Stream, Tensor
from tenure.cuda._devices import synchronize
from tenure.cuda.streams import current_stream, stream

if TYPE_CHECKING:
    from tenure.nn import Module

__all__ = [
    "CUDAGraph",
    "GraphPool",
    "graph",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "make_graphed_callables",
]


def is_current_stream_capturing() -> bool:
    """Returns whether work that the thread puts on its current stream is captured."""
    return bool(_native.installed()) and _native.is_stream_capturing()


def graph_pool_handle() -> GraphPool:
    """Returns memory of the current device for several graphs, of which one runs at a time."""
    return GraphPool()


class graph:
    """Captures the work of a `with` block into a graph. The block's work does not run until the graph is replayed.

    Run the same work once before, so that kernels are compiled and state that is made at the first use exists. The
    block must not read a tensor from the device or wait for it.

    Parameters
    ----------
    cuda_graph : CUDAGraph
        The graph, which must be empty.
    pool : GraphPool, default None
        Memory that other graphs use too. Default: memory of its own.
    stream : Stream, default None
        The stream that is captured and current within the block. Default: one that only captures use.
    capture_error_mode : str, default "global"
        Accepted for PyTorch's programs: other threads may always use the device, as with ``"thread_local"``.

    Examples
    --------
    >>> import tenure
    >>> if tenure.cuda.is_available():
    ...     x = tenure.ones(3, device="cuda")
    ...     y = x * 2  # compiles the kernel
    ...     twice = tenure.cuda.CUDAGraph()
    ...     with tenure.cuda.graph(twice):
    ...         y = x * 2
    ...     _ = x.fill_(5)
    ...     twice.replay()
    ...     assert y.tolist() == [10, 10, 10]
    """

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: GraphPool | None = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.capture_stream = stream
        self.capture_error_mode = capture_error_mode

    def __enter__(self) -> None:
        self.cuda_graph._capture_on(self.pool, self.capture_stream, self.capture_error_mode)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.cuda_graph.capture_end()
        else:
            self.cuda_graph._abandon()


def make_graphed_callables(
    callables: Callable[..., Any] | tuple[Callable[..., Any], ...],
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: GraphPool | None = None,
) -> Any:
    """Returns callables whose forward and backward passes are each one launch of a graph.

    A result and a gradient of a graphed callable hold until its next call: copy what is needed longer.

    Parameters
    ----------
    callables : callable or tuple of callables
        Functions or modules of tensors that return a tensor or a tuple of tensors. A module is changed in place.
    sample_args : tuple of tensors, or tuple of tuples
        Arguments with the sizes, dtypes and `requires_grad` of those of later calls; for several callables, a tuple
        for each.
    num_warmup_iters : int, default 3
        How often each callable runs before it is captured.
    allow_unused_input : bool, default False
        Whether an argument may have no gradient.
    pool : GraphPool, default None
        Memory that other graphs use too.
    """
    if not isinstance(callables, tuple):
        return _graphed(callables, sample_args, num_warmup_iters, allow_unused_input, pool)
    if len(callables) != len(sample_args):
        raise ValueError(f"{len(callables)} callables need a tuple of arguments each, not {len(sample_args)}")
    # A pass of one callable must keep its results for the passes of the next: each has memory of its own.
    return tuple(
        _graphed(function, args, num_warmup_iters, allow_unused_input, pool)
        for function, args in zip(callables, sample_args, strict=True)
    )


def _tuple(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _graphed(
    function: Callable[..., Any], args: tuple[Tensor, ...], warmups: int, allow_unused: bool, pool: GraphPool | None
) -> Callable[..., Any]:
    from tenure.nn import Module

    if not all(isinstance(argument, Tensor) for argument in args):
        raise TypeError("the arguments of graphed callables must be tensors")
    module = function if isinstance(function, Module) else None
    parameters = tuple(module.parameters()) if module is not None else ()
    # The graph reads the arguments from these, and the parameters from where they are.
    static_args = tuple(argument.detach().clone().requires_grad_(argument.requires_grad) for argument in args)
    inputs = static_args + parameters
    differentiated = tuple(tensor for tensor in inputs if tensor.requires_grad)

    def gradients(outputs: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        wanted = tuple(output for output in outputs if output.requires_grad)
        return autograd.grad(wanted, differentiated, grads, allow_unused=allow_unused)

    # The backward pass runs on the streams of the forward pass: both captures must be of this one.
    side = Stream()
    side.wait_stream(current_stream())
    with stream(side):
        for _ in range(warmups):
            outputs = _tuple(function(*static_args))
            if differentiated:
                gradients(outputs, tuple(output.detach() for output in outputs if output.requires_grad))
        del outputs
    synchronize()

    forward, backward = CUDAGraph(), CUDAGraph()
    with graph(forward, pool, side):
        result = function(*static_args)
    static_outputs = _tuple(result)
    is_tensor = isinstance(result, Tensor)
    del result
    with stream(side):
        static_grads = tuple(output.detach().clone() for output in static_outputs if output.requires_grad)
    static_input_grads: tuple[Tensor | None, ...] = ()
    if differentiated:
        with graph(backward, forward.pool(), side):
            static_input_grads = gradients(static_outputs, static_grads)
    needs_grad = tuple(output.requires_grad for output in static_outputs)
    static_outputs = tuple(output.detach() for output in static_outputs)
    current_stream().wait_stream(side)
    has_grad = iter(static_input_grads)
    grads_by_input = tuple(next(has_grad) if tensor.requires_grad else None for tensor in inputs)

    class Graphed(autograd.Function):
        """The two graphs as a function with a gradient."""

        @staticmethod
        def forward(ctx: Any, *given: Tensor) -> tuple[Tensor, ...]:
            for static, argument in zip(static_args, given, strict=False):
                if static.data_ptr() != argument.data_ptr():
                    static.detach().copy_(argument)
            forward.replay()
            return tuple(output.detach() for output in static_outputs)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            wanted = (grad for grad, needed in zip(grads, needs_grad, strict=True) if needed)
            for static, grad in zip(static_grads, wanted, strict=True):
                if grad is None:
                    static.zero_()
                else:
                    static.copy_(grad)
            backward.replay()
            return tuple(None if grad is None else grad.detach() for grad in grads_by_input)

    def graphed(*given: Tensor) -> Any:
        if len(given) != len(static_args):
            raise TypeError(f"the graph was captured with {len(static_args)} arguments, not {len(given)}")
        results = _tuple(Graphed.apply(*given, *parameters))
        return results[0] if is_tensor else results

    if module is None:
        return graphed
    return _patched(module, graphed)


def _patched(module: Module, graphed: Callable[..., Any]) -> Module:
    """Makes a module run its graphs while it is in the mode, training or evaluation, in which it was captured."""
    original = module.forward
    mode = module.training

    def forward(*args: Any, **kwargs: Any) -> Any:
        return graphed(*args) if module.training == mode else original(*args, **kwargs)

    module.forward = forward
    return module
