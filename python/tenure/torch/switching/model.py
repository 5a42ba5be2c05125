"""A model whose weights are brought to the device when it is called."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tenure import Error, _native
from tenure._arguments import whole_number
from tenure.torch.switching.contents import Contents
from tenure.torch.switching.gates import GatedLayer
from tenure.torch.switching.graphs import Call, CapturedCall, ModelGraphs, Shape, Watch
from tenure.torch.tagging.holdings import tensors_in

if TYPE_CHECKING:
    from tenure.torch.switching.switcher import Switcher

__all__ = ["SwitchedModel", "SwitchedModelReport"]

#: The calls of a model before the measured one: the first compiles kernels.
_PLAIN_CALLS = 1

#: A number of bytes that stands for the whole model.
_ALL = (1 << 63) - 1


@dataclass(frozen=True)
class SwitchedModelReport:
    """The history of a `SwitchedModel` and its present state."""

    name: str
    #: The bytes of its weights, with the padding between tensors.
    bytes: int
    #: The device bytes that it takes now, in whole chunks: 0 if all of it has been evicted.
    resident_bytes: int
    #: The number of groups that it is copied in.
    groups: int
    #: The number of its calls and blocks of `Switcher.use`, without those nested in others.
    calls: int
    #: The number of times it was brought to the device.
    switches: int
    #: The time of the last copy and the mean of all; None before the first.
    last_copy_ms: float | None
    mean_copy_ms: float | None
    #: The number of its CUDA graphs, one for inputs of each shape; and why the last capture failed, if one did.
    graphs: int
    graph_refusal: str | None


class SwitchedModel:
    """A model of a `Switcher`, called as its module was. `Switcher.add` makes it.

    It computes in inference mode: ``clone()`` an answer that is to be differentiated through.
    """

    def __init__(
        self,
        switcher: Switcher,
        name: str,
        module: nn.Module,
        contents: Contents,
        native: _native.SwitchedWeights,
        order_key: tuple[list[str], list[str]],
        is_learned: bool,
        has_graphs: bool,
    ) -> None:
        self.name = name
        #: Whether the model stays on the device once it is there.
        self.pinned = False
        self._priority = 0
        #: Why it has no graphs, unless the user turned them off.
        self._graph_refusal: str | None = None
        self._switcher = switcher
        self._module = module
        self._contents = contents
        self._used_at = 0
        self._calls = 0
        self._blocks = 0
        self._switches = 0
        #: The time of all its finished copies.
        self._copies_ms = 0.0
        self._last_copy_ms: float | None = None
        #: The depth of nested calls and blocks of `use`, and the stream of the outermost.
        self._depth = 0
        self._outermost = 0
        self._order_key = order_key
        self._is_learned = is_learned
        self._measured: _Measured | None = None
        #: The handle of the stream that waits where layers are taken; the number of groups that it waits for, and of
        #: layers that need no wait any more.
        self._stream = self._waited = self._opened = 0
        #: The stream on which all groups were waited for.
        self._ready: int | None = None
        self._layers: list[GatedLayer] = []
        self._tensors: list[weakref.ref[Tensor]] = []
        #: All bytes of the weights; None while the module does not have their tensors.
        self._image: Any = None
        #: Earlier images that may still be in use, since all tensors were made anew.
        self._former: list[Tensor] = []
        #: The version of the image: how often it was written to.
        self._version = 0
        self._graphs = ModelGraphs(switcher._graph_pool, module) if has_graphs else None
        self._native = native

    @property
    def priority(self) -> int:
        """The importance of its calls, from -10 to 10: each unit doubles the worth of keeping it on the device."""
        return self._priority

    @priority.setter
    def priority(self, priority: int) -> None:
        self._priority = whole_number("priority", priority, -10, 10)

    @property
    def is_resident(self) -> bool:
        """Whether all of it is on the device, or on its way there."""
        self._check_there()
        return self._native.missing_bytes == 0

    @property
    def group_bytes(self) -> list[int]:
        """The bytes of the groups that it is copied in, in their order; one group until its order is learned."""
        self._check_there()
        return self._native.group_bytes

    def load(self) -> None:
        """Brings it to the device, as a call would. Returns while copies are still under way.

        Raises
        ------
        tenure.Error
            There is no room for it.
        """
        with self._switcher._lock:
            self._check_there()
            self._start_copies()

    def evict(self, bytes: int | None = None) -> None:
        """Evicts it from the device, so that others have room. It comes back when it is called.

        Parameters
        ----------
        bytes
            The least number of bytes that leave, in whole chunks from its end: what is used last. By default all of it.

        Raises
        ------
        tenure.Error
            It is being called, or one of its tensors is held outside of it.
        """
        leaving = _ALL if bytes is None else whole_number("bytes", bytes, 0, _ALL)
        with self._switcher._lock:
            self._check_there()
            self._check_can_leave()
            self._native.evict(leaving)

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Calls the module, after starting the copies of what is missing on the device."""
        device = self._switcher.device
        for tensor in tensors_in((inputs, kwargs)):
            if tensor.device != device:
                raise Error(f"{self.name!r}: an input is on {tensor.device}: move it to {device}, where the model is")
        with self._turn() as stream:
            if self._depth == 0:
                return self._call(stream, inputs, kwargs)
            with self._within(stream):
                return self._module(*inputs, **kwargs)

    @contextmanager
    def use(self) -> Iterator[nn.Module]:
        """Opens it for a ``with`` block, as `Switcher.use` does."""
        with self._turn() as stream:
            if self._depth:
                with self._within(stream):
                    yield self._module
                return
            self._check_unwritten()
            self._start_copies()
            self._depth, self._outermost = 1, stream.cuda_stream
            try:
                self._open(stream.cuda_stream)
                self._blocks += 1
                yield self._module
                self._leave(stream.cuda_stream)
            except BaseException:
                self._leave_after_error(stream.cuda_stream)
                raise

    @contextmanager
    def _turn(self) -> Iterator[torch.cuda.Stream]:
        """Takes the turn of a call or a block, and gives the stream that it computes on."""
        with self._switcher._lock, torch.cuda.device(self._switcher.device), torch.inference_mode():
            self._check_there()
            self._switcher._check_task()
            # PyTorch's Python function is not used: a capture by this package may have replaced it.
            if torch._C._cuda_isCurrentStreamCapturing():
                raise Error(f"{self.name!r}: a CUDA graph would not wait for weights: call it outside of the capture")
            yield torch.cuda.current_stream()

    @contextmanager
    def _within(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """Runs a call or a block nested in another. A stream other than the outermost's waits for all weights, too."""
        handle = stream.cuda_stream
        if handle == self._outermost:
            yield
            return
        self._wait_for_all(handle)
        try:
            yield
        finally:
            self._native.used_by(handle)

    def _call(self, stream: torch.cuda.Stream, inputs: Any, kwargs: Any) -> Any:
        self._check_unwritten()
        self._start_copies()
        try:
            known = None if self._graphs is None else self._graphs.shape_of(inputs, kwargs)
            if self._graphs is None or known is None:
                return self._compute(stream, inputs, kwargs)
            shape, call = known
            if shape.captured is not None:
                answer = self._replay(stream, call, shape.captured)
                # The host checks this while the device computes.
                if self._graphs.is_current(shape.captured):
                    self._calls += 1
                    return answer
                del answer
                self._graphs.renew(shape)
            return self._compute(stream, inputs, kwargs, self._graphs.watch(), shape, call)
        except BaseException:
            try:
                self._leave_after_error(stream.cuda_stream)
            finally:
                self._drop_graphs()
            raise

    def _replay(self, stream: torch.cuda.Stream, call: Call, captured: CapturedCall) -> Any:
        try:
            return captured.replay(call)
        finally:
            self._native.used_by(stream.cuda_stream)

    def _compute(
        self,
        stream: torch.cuda.Stream,
        inputs: Any,
        kwargs: Any,
        watch: Watch | None = None,
        shape: Shape | None = None,
        call: Call | None = None,
    ) -> Any:
        """Calls the module. If the call is watched, captures a graph when that is possible."""
        is_measured = not self._is_learned and self._calls >= _PLAIN_CALLS
        self._depth, self._outermost = 1, stream.cuda_stream
        if self._ready != stream.cuda_stream or is_measured:
            self._wait_when_taken(stream.cuda_stream)
        else:
            for layer in self._layers:
                layer.open()
        measured = self._measured = _Measured(stream) if is_measured else None
        answer = self._module(*inputs, **kwargs)
        self._leave(stream.cuda_stream)
        self._calls += 1
        graphs, can_be_captured = self._graphs, False
        if graphs is not None and watch is not None and shape is not None:
            can_be_captured = graphs.watched(shape, watch, answer)
        if measured is not None and self._held() is None:
            self._learn(measured.times())
        elif graphs is not None and shape is not None and call is not None and can_be_captured and self._is_learned:
            try:
                graphs.capture(shape, call, self._compute_again, answer, self._is_weight)
            finally:
                self._native.used_by(stream.cuda_stream)
            self._check_unwritten()
        return answer

    def _compute_again(self, stream: torch.cuda.Stream, inputs: Any, kwargs: Any) -> Any:
        """Calls the module on a stream. If the stream is captured, each replay waits where layers are taken."""
        self._depth, self._outermost = 1, stream.cuda_stream
        try:
            self._wait_when_taken(stream.cuda_stream)
            return self._module(*inputs, **kwargs)
        finally:
            # A wait that was captured runs in replays only, so the stream itself has not waited.
            self._ready = None
            self._close_layers()
            self._depth = 0

    def _is_weight(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata == self._image.untyped_storage()._cdata

    def _drop_graphs(self) -> bool:
        """Drops its graphs. Returns whether it had one."""
        if self._graphs is None or not len(self._graphs):
            return False
        self._graphs.clear()
        return True

    def _learn_by(self, example: Any) -> None:
        """Calls it with example inputs until its order is learned."""
        inputs = _on(self._switcher.device, example)
        for _ in range(_PLAIN_CALLS + 1):
            if isinstance(inputs, dict):
                self(**inputs)
            else:
                self(*inputs) if isinstance(inputs, tuple) else self(inputs)

    def _leave(self, stream: int) -> None:
        """Ends a call or a block: the module refuses access again."""
        self._measured = None
        self._close_layers()
        try:
            self._native.used_by(stream)
        finally:
            self._depth = 0
        self._check_unwritten()

    def _leave_after_error(self, stream: int) -> None:
        """Ends a call or a block that an error interrupted, perhaps Ctrl-C while it was ending."""
        if self._depth:
            self._leave(stream)

    def _close_layers(self) -> None:
        for layer in self._layers:
            layer.leave()

    def _start_copies(self) -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
        """Starts the copies of what is missing, if anything. Returns an event before the copies and one after them."""
        self._switcher._uses += 1
        self._used_at = self._switcher._uses
        self._native.note_use(self._used_at)
        if self._native.missing_bytes == 0:
            self._switcher._hits += 1
            return None
        return self._load()

    def _load(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        self._ready = None
        return self._switcher._load(self)

    def _wait_when_taken(self, stream: int) -> None:
        """Makes a stream wait for layers when they are taken; for all of them now if their order is not known."""
        self._stream = stream
        self._waited = self._opened = 0
        for layer in self._layers:
            layer.come()
        if not self._is_learned:
            self._wait(len(self._native.group_bytes) - 1)

    def _open(self, stream: int) -> None:
        """Makes a stream's later work wait for all layers."""
        if self._ready != stream:
            self._wait_for_all(stream)
            self._ready = stream
        for layer in self._layers:
            layer.open()

    def _wait_for_all(self, stream: int) -> None:
        for group in range(len(self._native.group_bytes)):
            self._native.wait(group, stream)

    def _take(self, layer: GatedLayer) -> None:
        """Waits for a layer that is taken. Opens the layers whose groups have been waited for."""
        if self._measured is not None:
            self._measured.note(layer)
            layer.open()
            return
        self._wait(layer.group)
        while self._opened < len(self._layers) and self._layers[self._opened].group < self._waited:
            self._layers[self._opened].open()
            self._opened += 1
        if self._opened == len(self._layers):
            self._ready = self._stream

    def _wait(self, group: int) -> None:
        """Makes the device wait for all groups up to this one."""
        # The forward may compute on a stream of its own.
        current = torch.cuda.current_stream().cuda_stream
        while self._waited <= group:
            self._native.wait(self._waited, self._stream)
            if current != self._stream:
                self._native.wait(self._waited, current)
            self._waited += 1

    def _held(self) -> str | None:
        """Returns why the model cannot leave, if a tensor of it is held outside of the module; else None."""
        if self._image is None:
            return None
        self._former = [image for image in self._former if _uses(image) > self._uses_alone]
        counts = _counts(self._tensors)
        names = (self._contents.entries[shape.entry][0] for shape in self._contents.shapes)
        held = (name for name, now, usual in zip(names, counts, self._counts, strict=True) if now > usual)
        has_view = _uses(self._image) > self._uses or bool(self._former)
        name = next(held, "a view of a tensor" if has_view else None)
        if name is None:
            return None
        return f"{name} of {self.name!r} is held outside of its module: let go of it, or keep a clone() instead"

    def _check_can_leave(self) -> None:
        reason = f"{self.name!r} is being called" if self._depth else self._held()
        if reason is not None:
            raise Error(f"{self.name!r} cannot leave: {reason}")

    def _check_idle(self) -> None:
        if self._depth:
            raise Error(f"{self.name!r} is being called: remove it afterwards")

    def _check_there(self) -> None:
        if self._switcher._models.get(self.name) is not self:
            raise Error(f"{self.name!r} was removed from its switcher: add a module that is made anew")

    def _check_unwritten(self) -> None:
        """Raises an error if its weights were written to or replaced. They are then copied anew from the image."""
        if self._image is None:
            # An interrupt came before the module got its tensors.
            self._place()
        is_replaced = _uses(self._image) < self._uses
        is_written = self._image._version != self._version
        if is_replaced:
            self._former.append(self._image)
            self._drop_graphs()
            self._place()
        if is_written:
            # While one of its tensors is held, it cannot leave, and the next call raises the error again.
            self._version = -1
            if self._held() is None:
                self._native.evict(_ALL)
                self._version = self._image._version
        if is_replaced:
            raise Error(
                f"{self.name!r}: its forward or a block has replaced its weights or buffers, which are now as they "
                "were: remove() the model, and add a module that is made anew and replaces none"
            )
        if is_written:
            raise Error(
                f"{self.name!r}: its weights or buffers were written to, and they are read only: call eval() on the "
                "module, or have it write to copies"
            )

    def _place(self) -> None:
        """Gives the module tensors at the addresses of its weights."""
        contents, native = self._contents, self._native
        self._release()
        with torch.inference_mode(False), torch.no_grad():
            image: Tensor = torch.utils.dlpack.from_dlpack(native.bytes())
            self._uses_alone = _uses(image)
            tensors = [shape(image, native.begin(shape.entry)) for shape in contents.shapes]
        groups = [native.group_of(shape.entry) for shape in contents.shapes]
        # Added one by one, so that they can be closed if an interrupt comes.
        for layer in self._gated(tensors, groups):
            self._layers.append(layer)
        self._layers.sort(key=lambda layer: layer.group)
        # Only the module refers to them, so that a tensor that it replaces is freed.
        self._tensors = list(map(weakref.ref, tensors))
        del tensors
        self._ready = None
        self._version = image._version
        self._counts = _counts(self._tensors)
        self._uses: int = _uses(image)
        self._image = image

    def _gated(self, tensors: list[Tensor], groups: list[int]) -> Iterator[GatedLayer]:
        """Yields the layers with their tensors and their groups."""
        for number, layer in enumerate(self._contents.layers):
            parameters, buffers = (
                {name: None if of is None else tensors[of] for name, of in names.items()} for names in layer.tensors
            )
            reason = (
                f"{layer.path or 'the module'} of {self.name!r} has its weights only while the model is called, by "
                "what Switcher.add() returned"
            )
            group = max(groups[of] for of in layer.numbers())
            yield GatedLayer(layer.module, (parameters, buffers), group, number, self._take, reason)

    def _learn(self, times_us: dict[int, float]) -> None:
        """Arranges the image in the order in which layers are used, in groups by the time that each computes."""
        contents = self._contents
        # Unused layers come last.
        numbers = [*times_us, *(number for number in range(len(contents.layers)) if number not in times_us)]
        seen: dict[int, None] = {}
        ends, layers = [], []
        for number in numbers:
            new = {contents.shapes[of].entry: None for of in contents.layers[number].numbers()}.keys() - seen.keys()
            seen.update(dict.fromkeys(sorted(new)))
            ends.append(len(seen))
            layers.append((sum(contents.entries[entry][1] for entry in new), times_us.get(number, 0.0)))
        self._native.evict(_ALL)
        start, end = self._switcher._load(self)
        end.synchronize()
        copy_us = max(start.elapsed_time(end) * 1e3, 1e-3)
        bytes_per_us = max(sum(size for size, _ in layers) / copy_us, 1e-3)
        divided = _native.divide_layers(layers, bytes_per_us, self._switcher._grouping)
        order, ends = list(seen), [ends[end - 1] for end in divided]
        self._native.evict(_ALL)
        self._release()
        self._switcher._native.arrange(self._native, order, ends)
        self._place()
        self._is_learned = True
        _native.keep_order(*self._order_key, order, ends)
        self._switcher._load(self)

    def _report(self) -> SwitchedModelReport:
        group_bytes = self._native.group_bytes
        return SwitchedModelReport(
            name=self.name,
            bytes=sum(group_bytes),
            resident_bytes=self._native.resident_bytes,
            groups=len(group_bytes),
            calls=self._calls + self._blocks,
            switches=self._switches,
            last_copy_ms=self._last_copy_ms,
            mean_copy_ms=self._copies_ms / self._switches if self._last_copy_ms is not None else None,
            graphs=0 if self._graphs is None else len(self._graphs),
            graph_refusal=self._graph_refusal if self._graphs is None else self._graphs.refusal,
        )

    def _release(self) -> None:
        """Releases the model's tensors."""
        self._image = None
        for layer in self._layers:
            layer.close()
        self._layers, self._tensors = [], []

    def _close(self) -> None:
        """Releases everything."""
        self._check_idle()
        self._graphs = None
        self._release()
        self._former = []


class _Measured:
    """The order in which a call takes layers, and the times."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._taken: dict[int, torch.cuda.Event] = {}

    def note(self, layer: GatedLayer) -> None:
        """Records that a layer is taken."""
        if layer.number not in self._taken:
            self._taken[layer.number] = self._stream.record_event(torch.cuda.Event(enable_timing=True))

    def times(self) -> dict[int, float]:
        """Returns the time in µs from each layer to the next, and from the last one until now, in their order."""
        end = self._stream.record_event(torch.cuda.Event(enable_timing=True))
        end.synchronize()
        events = [*self._taken.values(), end]
        durations = (before.elapsed_time(after) * 1e3 for before, after in itertools.pairwise(events))
        return dict(zip(self._taken, durations, strict=True))


def _on(device: torch.device, value: Any) -> Any:
    """Returns inputs with their tensors moved to a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _on(device, item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_on(device, item) for item in value)
    return value


def _counts(tensors: list[weakref.ref[Tensor]]) -> list[int]:
    """Returns the reference count of each tensor."""
    return [sys.getrefcount(tensor()) for tensor in tensors]


def _uses(image: Tensor) -> int:
    """Returns the number of tensors of an image."""
    return torch._C._storage_Use_Count(image.untyped_storage()._cdata)
