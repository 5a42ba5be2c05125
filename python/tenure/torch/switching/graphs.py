"""CUDA graphs of a switcher's models: captured once for inputs of a shape, and replayed from then on."""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.utils._device import DeviceContext
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from tenure.torch.switching.attributes import Attributes
from tenure.torch.switching.capture_modes import Probe, Refusal, told

__all__ = ["Call", "CapturedCall", "GraphPool", "ModelGraphs", "Shape", "Watch"]

#: The most graphs of a model, after which the least recently used go; and the most shapes of inputs that are
#: remembered.
MOST_GRAPHS = 8
_MOST_SHAPES = 64

#: The number of calls of a shape that may see random numbers drawn before the model itself is held to draw them; and
#: the number of times that a shape may lose its graph, to other shapes or to a change of the module, before it is not
#: captured again.
_MOST_DRAWS = 3
_MOST_LOSSES = 3

#: The most attributes that are compared at each replay.
_MOST_ATTRIBUTES = 1 << 17

#: The alignment that static inputs share with the call's own: kernels choose their loads by their operands' alignment.
_ALIGNMENT = 256

#: The types of inputs and answers that a graph has as constants.
_PLAIN = (
    *(int, float, bool, str, type(None), torch.Size),
    *(torch.dtype, torch.device, torch.memory_format, torch.layout),
)

#: A function that runs the module on a stream with given inputs.
Compute = Callable[[torch.cuda.Stream, tuple[Any, ...], dict[str, Any]], Any]


class Drawn(Refusal):
    """A refusal because random numbers were drawn during a model's call, by it or by another thread."""


@dataclass(frozen=True)
class Call:
    """The inputs of a call: their tensors, each once, and the key that inputs of the same graph share."""

    leaves: list[Any]
    spec: TreeSpec
    tensors: list[Tensor]
    key: tuple[Any, ...]

    @classmethod
    def of(cls, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Describes inputs.

        Raises
        ------
        Refusal
            A graph cannot have one of the inputs.
        """
        leaves, spec = tree_flatten((inputs, kwargs))
        numbers: dict[int, int] = {}
        tensors: list[Tensor] = []
        described: list[Any] = []
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                described.append(_plain("an input", leaf))
                continue
            number = numbers.setdefault(id(leaf), len(tensors))
            if number == len(tensors):
                tensors.append(leaf)
                _check_tensor("an input", leaf)
            at = leaf.data_ptr() % _ALIGNMENT
            described.append((number, type(leaf), leaf.dtype, leaf.device, leaf.shape, leaf.stride(), at))
        try:
            settings = _settings()
        except (AttributeError, RuntimeError) as error:
            raise Refusal(f"PyTorch does not tell its settings: {error}") from error
        return cls(leaves, spec, tensors, (described, spec, settings))

    def with_tensors(self, tensors: list[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the same inputs with other tensors."""
        others = {id(old): new for old, new in zip(self.tensors, tensors, strict=True)}
        leaves = [others[id(leaf)] if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        inputs, kwargs = tree_unflatten(leaves, self.spec)
        return inputs, kwargs


class Shape:
    """A shape of inputs that a model was called with, and its graph if there is one."""

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key
        self.captured: CapturedCall | None = None
        #: Whether a call with such inputs was watched and changed nothing that a replay would not change.
        self.was_watched = False
        #: Whether a capture failed because the module does something that no graph can contain.
        self.is_refused = False
        #: The number of calls that saw random numbers drawn, perhaps by other threads.
        self.draws = 0
        #: The number of graphs that were lost.
        self.losses = 0


class ModelGraphs:
    """The graphs of one model."""

    def __init__(self, pool: GraphPool, module: nn.Module) -> None:
        self._pool = pool
        self._module = module
        #: All known shapes, the most recently used last.
        self._shapes: list[Shape] = []
        #: Why the last capture failed.
        self.refusal: str | None = None

    def __len__(self) -> int:
        return sum(shape.captured is not None for shape in self._shapes)

    def shape_of(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Shape, Call] | None:
        """Returns the shape of a call's inputs; None if the call must run without graphs."""
        try:
            _check_modes()
            call = Call.of(inputs, kwargs)
        except Refusal as refusal:
            self.refusal = str(refusal)
            return None
        for at in reversed(range(len(self._shapes))):
            shape = self._shapes[at]
            if shape.key == call.key:
                self._shapes.append(self._shapes.pop(at))
                return None if shape.is_refused else (shape, call)
        if len(self._shapes) == _MOST_SHAPES:
            self._shapes.pop(0)
        self._shapes.append(shape := Shape(call.key))
        return shape, call

    def watch(self) -> Watch | None:
        """Starts to watch a call without a graph. Returns None if the module cannot be captured as it is now."""
        try:
            _check_module(self._module)
            watch = Watch(self._module, self._pool.generator)
            if len(watch.attributes) > _MOST_ATTRIBUTES:
                raise Refusal("its modules have too many attributes to compare them at each replay")
        except Refusal as refusal:
            self.refusal = str(refusal)
            return None
        return watch

    def watched(self, shape: Shape, watch: Watch, answers: Any) -> bool:
        """Ends the watch. Returns whether a graph may be captured now."""
        try:
            watch.check()
            for leaf in tree_flatten(answers)[0]:
                _check_answer(leaf)
        except Refusal as refusal:
            self._refuse(shape, refusal)
            return False
        was_watched, shape.was_watched = shape.was_watched, True
        return was_watched

    def capture(
        self, shape: Shape, call: Call, compute: Compute, answers: Any, is_weight: Callable[[Tensor], bool]
    ) -> None:
        """Captures the module and replays it once. The answers must equal those that were computed without a graph."""
        watch = Watch(self._module, self._pool.generator)
        try:
            with Probe(call.tensors, is_weight) as probe:
                inputs, kwargs = tree_unflatten(call.leaves, call.spec)
                compute(torch.cuda.current_stream(), inputs, kwargs)
            probe.check()
            captured = self._pool.capture(call, compute, probe.constants)
            # The graph reads these tensors, which other objects own and may free.
            captured.kept = (watch, list(probe.others.values()))
            watch.check()
            if not _are_equal(captured.replay(call), answers):
                raise Refusal("its graph's answers differ from those that are computed without one")
        except Exception as error:
            self._refuse(shape, error)
            return
        shape.captured = captured
        if len(self) > MOST_GRAPHS:
            longest_ago = next(shape for shape in self._shapes if shape.captured is not None)
            self._lose(longest_ago, "its inputs have more shapes than it has graphs")

    def is_current(self, captured: CapturedCall) -> bool:
        """Returns whether the module is as it was when it was captured."""
        watch, _ = captured.kept
        return watch.attributes.change() is None and not _has_global_hooks()

    def renew(self, shape: Shape) -> None:
        """Drops a graph because the module has changed. The next call is watched again."""
        self._lose(shape, "its attributes are changed between calls")

    def clear(self) -> None:
        """Drops all graphs. Refusals stay."""
        for shape in self._shapes:
            shape.captured = None

    def _lose(self, shape: Shape, reason: str) -> None:
        shape.captured, shape.was_watched = None, False
        shape.losses += 1
        if shape.losses == _MOST_LOSSES:
            self._refuse(shape, Refusal(f"{reason}, again and again"))

    def _refuse(self, shape: Shape, error: Exception) -> None:
        shape.was_watched = False
        shape.draws += isinstance(error, Drawn)
        shape.is_refused = shape.draws == _MOST_DRAWS or not isinstance(error, Drawn)
        reason = str(error) if isinstance(error, Refusal) else f"{type(error).__name__}: {error}"
        # CUDA's error messages go on with long explanations: only the first line is kept.
        self.refusal = reason.split("\n", 1)[0]


class GraphPool:
    """The graphs of all models of a switcher. One runs at a time, so they share as much memory as the largest needs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        #: An event after the last replay and the copies of its answers.
        self._done: torch.cuda.Event | None = None
        self._handle: Any = None
        self._alive: weakref.WeakSet[CapturedCall] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self._alive)

    @property
    def generator(self) -> torch.Generator:
        """The generator of random numbers on the device."""
        return torch.cuda.default_generators[self._device.index]

    def capture(self, call: Call, compute: Compute, constants: list[Any]) -> CapturedCall:
        """Captures a computation without running it. `constants` are the host values that it reads."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        stream, graph = self._stream, torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            with self._capturing(graph):
                # torch.empty is not used: it may fill its memory, in each replay.
                static = [_like(tensor, torch.UntypedStorage) for tensor in call.tensors]
                inputs, kwargs = call.with_tensors(static)
                with told(constants):
                    leaves, spec = tree_flatten(compute(stream, inputs, kwargs))
                for leaf in leaves:
                    _check_answer(leaf)
            # The memory that the capture allocated is free for the next one: each replay overwrites that of other
            # graphs.
            captured = CapturedCall(self, graph, [_alias(tensor) for tensor in static], _Answers(leaves, spec))
        self._alive.add(captured)
        return captured

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Orders a replay on the current stream after the last replay."""
        stream = torch.cuda.current_stream()
        if self._done is None:
            self._done = torch.cuda.Event()
        else:
            stream.wait_event(self._done)
        try:
            yield
        finally:
            self._done.record(stream)

    @contextlib.contextmanager
    def _capturing(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """Captures the current stream. After an error the capture has ended."""
        if self._handle is None or not self._alive:
            # PyTorch does not reuse a pool whose graphs are all gone.
            self._handle = torch.cuda.graph_pool_handle()
        try:
            self._begin(graph)
            yield
            self._end(graph)
        except BaseException:
            if torch._C._cuda_isCurrentStreamCapturing():
                with contextlib.suppress(Exception):
                    self._end(graph)
            raise

    def _begin(self, graph: torch.cuda.CUDAGraph) -> None:
        """Begins a capture that PyTorch's own generator takes no part in.

        A graph would draw the numbers that the generator draws during the capture, and a failed capture would leave the
        generator captured. So the capture gets a copy, from which drawing raises an error.
        """
        generator = self.generator
        own = generator.graphsafe_get_state()
        generator.graphsafe_set_state(generator.clone_state())
        try:
            graph.capture_begin(pool=self._handle, capture_error_mode="thread_local")
        except BaseException:
            self._handle = None
            raise
        finally:
            generator.graphsafe_set_state(own)

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        try:
            with warnings.catch_warnings():
                # The warning that the graph is empty.
                warnings.simplefilter("ignore")
                graph.capture_end()
        except BaseException:
            # PyTorch's allocators still count the capture as open. The host's allocator cannot be corrected, so the
            # pool is not used for another capture.
            with contextlib.suppress(Exception):
                _give_up(graph, self._device.index, self._handle)
            self._handle = None
            raise


def _give_up(graph: torch.cuda.CUDAGraph, device: int, handle: Any) -> None:
    """Ends a failed capture's use of its pool."""
    if torch.__version__ >= (2, 14):
        graph.reset()
        return
    # Graphs of earlier versions would leave the pool in use for good.
    torch._C._cuda_endAllocateToPool(device, handle)
    torch._C._cuda_releasePool(device, handle)


class CapturedCall:
    """A graph, the tensors that it reads its inputs from, and those that it leaves its answers in."""

    def __init__(self, pool: GraphPool, graph: torch.cuda.CUDAGraph, static: list[Tensor], answers: _Answers) -> None:
        self._pool = pool
        self._graph = graph
        self._static = static
        self._answers = answers
        #: The module's state at the capture, and tensors of other owners that the graph reads.
        self.kept: tuple[Watch, list[Tensor]]

    def replay(self, call: Call) -> Any:
        """Replays the graph on the current stream. The caller owns the answers."""
        with self._pool.turn():
            for static, tensor in zip(self._static, call.tensors, strict=True):
                _without_expanded(static).copy_(_without_expanded(tensor), non_blocking=True)
            self._graph.replay()
            return self._answers.copied()


class _Answers:
    """The answers in a graph's memory, without keeping that memory."""

    def __init__(self, leaves: list[Any], spec: TreeSpec) -> None:
        self._spec = spec
        self._leaves: list[Any] = []
        numbers: dict[int, int] = {}
        #: For each tensor, its memory as a flat tensor, its size and its strides.
        self._tensors: list[tuple[Tensor, torch.Size, tuple[int, ...]]] = []
        #: For each leaf, the number of its tensor, or None.
        self._numbers: list[int | None] = []
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                self._leaves.append(leaf)
                self._numbers.append(None)
                continue
            number = numbers.setdefault(id(leaf), len(self._tensors))
            if number == len(self._tensors):
                there = _alias(leaf)
                flat = there.as_strided((_reach(leaf),), (1,))
                self._tensors.append((flat, leaf.shape, leaf.stride()))
            self._leaves.append(None)
            self._numbers.append(number)

    def copied(self) -> Any:
        copies = [flat.clone().as_strided(size, stride) for flat, size, stride in self._tensors]
        leaves = [
            leaf if number is None else copies[number] for leaf, number in zip(self._leaves, self._numbers, strict=True)
        ]
        return tree_unflatten(leaves, self._spec)


class Watch:
    """The state that a call may change and a replay would not: attributes and random number generators."""

    def __init__(self, module: nn.Module, generator: torch.Generator) -> None:
        self.attributes = Attributes(module)
        self._generator = generator
        self._random = _random_states(generator)

    def check(self) -> None:
        """Raises a refusal if the state was changed."""
        changed = self.attributes.change()
        if changed is not None:
            raise Refusal(f"its forward changes {changed}, which a replay would not")
        for before, after in zip(self._random, _random_states(self._generator), strict=True):
            if not (torch.equal(before, after) if isinstance(before, Tensor) else before == after):
                raise Drawn("random numbers were drawn while it was computed")


def _check_modes() -> None:
    if torch._C._len_torch_dispatch_stack():
        raise Refusal("a mode of PyTorch's is on, which would not see a replay")
    for mode in torch.overrides._get_current_function_mode_stack() if torch._C._len_torch_function_stack() else ():
        if not isinstance(mode, DeviceContext):
            raise Refusal("a mode of PyTorch's is on, which would not see a replay")


def _check_module(module: nn.Module) -> None:
    if _has_global_hooks():
        raise Refusal("modules have global hooks, which a replay would not call")
    for path, child in module.named_modules():
        name = repr(path) if path else "the module"
        if child.training:
            raise Refusal(f"{name} is in training mode")
        own = 1 if isinstance(child, nn.RNNBase) and child._flat_weights_names else 0
        if child._forward_hooks or len(child._forward_pre_hooks) > own:
            raise Refusal(f"{name} has hooks, which a replay would not call")


def _has_global_hooks() -> bool:
    return bool(modules._global_forward_hooks or modules._global_forward_pre_hooks)


def _check_tensor(what: str, tensor: Tensor) -> None:
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
        raise Refusal(f"{what} is a {type(tensor).__name__} of {tensor.layout}, which a graph cannot have")
    if not tensor.is_cuda or tensor.is_conj() or tensor.is_neg() or tensor.requires_grad:
        raise Refusal(f"{what} is on the host, is conjugated or negated, or requires a gradient")


def _check_answer(leaf: Any) -> None:
    if isinstance(leaf, Tensor):
        _check_tensor("an answer", leaf)
    else:
        _plain("an answer", leaf)


def _plain(what: str, value: Any) -> Any:
    """Returns a value's key for comparisons. It tells the sign of zero, too."""
    if type(value) not in _PLAIN:
        raise Refusal(f"{what} is a {type(value).__name__}, of which a graph would not see changes")
    return type(value), value.hex() if type(value) is float else value


def _settings() -> tuple[Any, ...]:
    """Returns the settings by which PyTorch chooses kernels, beside their operands."""
    c = torch._C
    is_autocast = torch.is_autocast_enabled("cuda")
    modes = torch.overrides._get_current_function_mode_stack() if c._len_torch_function_stack() else ()
    return (
        is_autocast and torch.get_autocast_dtype("cuda"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        *(c._get_fp32_precision_getter("cuda", kind) for kind in ("matmul", "conv", "rnn")),
        c._get_cublas_allow_fp16_reduced_precision_reduction(),
        c._get_cublas_allow_bf16_reduced_precision_reduction(),
        c._get_cublas_allow_fp16_accumulation(),
        *(c._get_cudnn_enabled(), c._get_cudnn_benchmark(), c._get_cudnn_deterministic()),
        *(c._get_flash_sdp_enabled(), c._get_mem_efficient_sdp_enabled(), c._get_math_sdp_enabled()),
        *(c._get_cudnn_sdp_enabled(), c._get_blas_preferred_backend(), c._get_linalg_preferred_backend()),
        tuple(c._get_sdp_priority_order()),
        tuple(str(mode.device) for mode in modes),
    )


def _random_states(generator: torch.Generator) -> list[Any]:
    numpy = sys.modules.get("numpy")
    drawn = numpy.random.get_state(legacy=False)["state"] if numpy is not None else {}
    of_numpy = [value.tobytes() if hasattr(value, "tobytes") else value for value in drawn.values()]
    return [random.getstate(), torch.get_rng_state(), generator.get_offset(), of_numpy]


def _reach(tensor: Tensor) -> int:
    """Returns the number of elements from a tensor's first to its last in memory."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))


def _like(tensor: Tensor, storage: Any) -> Tensor:
    """Returns a tensor of the same size and strides, at an address of the same alignment."""
    begin = tensor.data_ptr() % _ALIGNMENT
    if begin % tensor.itemsize:
        raise Refusal("an input begins at an address that is not a multiple of its elements' size")
    made = storage(begin + _reach(tensor) * tensor.itemsize, device=tensor.device)
    offset = begin // tensor.itemsize
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(made, offset, tensor.shape, tensor.stride())


def _alias(tensor: Tensor) -> Tensor:
    """Returns a tensor at another's address that does not keep its memory."""
    there = torch._C._construct_storage_from_data_pointer(
        tensor.data_ptr(), tensor.device, _reach(tensor) * tensor.itemsize
    )
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(there, 0, tensor.shape, tensor.stride())


def _without_expanded(tensor: Tensor) -> Tensor:
    """Returns a tensor with each element in memory once, without the expanded dimensions."""
    for dim, (length, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if step == 0 and length > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _are_equal(one: Any, other: Any) -> bool:
    """Returns whether two answers are the same, bit for bit. The host waits for both."""
    (leaves, spec), (others, other_spec) = tree_flatten(one), tree_flatten(other)
    if spec != other_spec:
        return False
    for a, b in zip(leaves, others, strict=True):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            if (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
                return False
            if not torch.equal(_bytes(a), _bytes(b)):
                return False
        elif type(a) is not type(b) or _plain("an answer", a) != _plain("an answer", b):
            return False
    return True


def _bytes(tensor: Tensor) -> Tensor:
    reach = _reach(tensor)
    flat = tensor.as_strided((reach,), (1,)) if tensor.is_contiguous() else tensor.contiguous().flatten()
    return flat.cpu().view(torch.uint8)
