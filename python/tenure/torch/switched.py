"""A model whose weights come when it is called."""

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
from tenure.torch.gates import GatedLayer
from tenure.torch.graphs import Call, CapturedCall, ModelGraphs, Shape, Watch
from tenure.torch.holdings import tensors_in
from tenure.torch.images import Contents

if TYPE_CHECKING:
    from tenure.torch.switcher import Switcher

__all__ = ["SwitchedModel", "SwitchedModelReport"]

#: Calls of a model before its order is learned: one compiles kernels, the next is measured.
_PLAIN_CALLS = 1

#: Of a model's bytes.
_ALL = (1 << 63) - 1


@dataclass(frozen=True)
class SwitchedModelReport:
    """What a `SwitchedModel` did so far, and what it has now."""

    name: str
    #: Bytes of its weights, those between tensors included.
    bytes: int
    #: What they take of the device now, in whole chunks: nothing, if all of it has left.
    resident_bytes: int
    #: In how many groups it comes.
    groups: int
    #: Its calls and its blocks of `Switcher.use`, without those within others.
    calls: int
    #: How often it was brought.
    switches: int
    #: How long the last copy took, and each on average; None before there was one.
    last_copy_ms: float | None
    mean_copy_ms: float | None
    #: How many CUDA graphs it has, one for inputs of each shape; and why the last one was not made, if one was not.
    graphs: int
    graph_refusal: str | None


class SwitchedModel:
    """A model of a `Switcher`, called as its module was; made by `Switcher.add`.

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
        #: Whether it stays on the device once it is there.
        self.pinned = False
        self._priority = 0
        #: Why it has no graphs, if nobody said that it is to have none.
        self._graph_refusal: str | None = None
        self._switcher = switcher
        self._module = module
        self._contents = contents
        self._used_at = 0
        self._calls = 0
        self._blocks = 0
        self._switches = 0
        #: How long its copies took, as far as they are done.
        self._copies_ms = 0.0
        self._last_copy_ms: float | None = None
        #: How many calls and blocks of `use` go on, one within the other, and the stream of the outermost.
        self._depth = 0
        self._outermost = 0
        self._order_key = order_key
        self._is_learned = is_learned
        self._measured: _Measured | None = None
        #: The handle of the stream that waits where layers are taken; the groups that it waits for, and the layers that
        #: need it no more.
        self._stream = self._waited = self._opened = 0
        #: That on which all of it was waited for.
        self._ready: int | None = None
        self._layers: list[GatedLayer] = []
        self._tensors: list[weakref.ref[Tensor]] = []
        #: All bytes; None while tensors of it are not in the module.
        self._image: Any = None
        #: Images of which something may still be held since all tensors were made anew.
        self._former: list[Tensor] = []
        #: How often something was written to it.
        self._version = 0
        self._graphs = ModelGraphs(switcher._graph_pool, module) if has_graphs else None
        self._native = native

    @property
    def priority(self) -> int:
        """From -10 to 10: each unit doubles what it is worth to keep it on the device."""
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
        """Bytes of the groups in which it comes, in their order; one group until its order is learned."""
        self._check_there()
        return self._native.group_bytes

    def load(self) -> None:
        """Brings it to the device, as a call would: copies are under way then.

        Raises
        ------
        tenure.Error
            There is no room for it.
        """
        with self._switcher._lock:
            self._check_there()
            self._bring()

    def evict(self, bytes: int | None = None) -> None:
        """Has it leave the device, so that others have room. It comes back when it is called.

        Parameters
        ----------
        bytes
            How many bytes of it leave at least, in whole chunks from its end: what is used last. By default all of it.

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
        """Computes, having brought what is missing."""
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
        """Opens it for a block, as `Switcher.use` does."""
        with self._turn() as stream:
            if self._depth:
                with self._within(stream):
                    yield self._module
                return
            self._check_unwritten()
            self._bring()
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
        """The turn of a call or a block, and the stream that it computes on."""
        with self._switcher._lock, torch.cuda.device(self._switcher.device), torch.inference_mode():
            self._check_there()
            self._switcher._check_task()
            # Not by a function of Python's, which a capture of ours may have changed.
            if torch._C._cuda_isCurrentStreamCapturing():
                raise Error(f"{self.name!r}: a CUDA graph would not wait for weights: call it outside of the capture")
            yield torch.cuda.current_stream()

    @contextmanager
    def _within(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """A call or a block within another: if it is on a stream of its own, that waits for all weights, too."""
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
        self._bring()
        try:
            known = None if self._graphs is None else self._graphs.shape_of(inputs, kwargs)
            if self._graphs is None or known is None:
                return self._compute(stream, inputs, kwargs)
            shape, call = known
            if shape.captured is not None:
                answer = self._replay(stream, call, shape.captured)
                # The host looks while the device computes.
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
        """Calls the module. If that is watched, a graph is captured when it can be."""
        is_measured = not self._is_learned and self._calls >= _PLAIN_CALLS
        self._depth, self._outermost = 1, stream.cuda_stream
        if self._ready != stream.cuda_stream or is_measured:
            self._come(stream.cuda_stream)
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
        """Calls the module on a stream, which may be captured and then waits in each replay where layers are taken."""
        self._depth, self._outermost = 1, stream.cuda_stream
        try:
            self._come(stream.cuda_stream)
            return self._module(*inputs, **kwargs)
        finally:
            # What a stream waits for in replays, it has not waited for.
            self._ready = None
            self._shut()
            self._depth = 0

    def _is_weight(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata == self._image.untyped_storage()._cdata

    def _drop_graphs(self) -> bool:
        """Lets go of its graphs. Whether it had one."""
        if self._graphs is None or not len(self._graphs):
            return False
        self._graphs.clear()
        return True

    def _learn_by(self, example: Any) -> None:
        """Calls it with inputs until its order is learned."""
        inputs = _on(self._switcher.device, example)
        for _ in range(_PLAIN_CALLS + 1):
            if isinstance(inputs, dict):
                self(**inputs)
            else:
                self(*inputs) if isinstance(inputs, tuple) else self(inputs)

    def _leave(self, stream: int) -> None:
        """Ends a call or a block: the module refuses again."""
        self._measured = None
        self._shut()
        try:
            self._native.used_by(stream)
        finally:
            self._depth = 0
        self._check_unwritten()

    def _leave_after_error(self, stream: int) -> None:
        """Ends a call or a block that has not ended, also if Ctrl-C came while it did."""
        if self._depth:
            self._leave(stream)

    def _shut(self) -> None:
        for layer in self._layers:
            layer.leave()

    def _bring(self) -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
        """Brings what is missing, if something is: copies are under way then, between two events."""
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

    def _come(self, stream: int) -> None:
        """Layers are waited for on a stream when they are taken, or all of them now if nothing is known of them."""
        self._stream = stream
        self._waited = self._opened = 0
        for layer in self._layers:
            layer.come()
        if not self._is_learned:
            self._wait(len(self._native.group_bytes) - 1)

    def _open(self, stream: int) -> None:
        """All layers are there for what a stream does from now on."""
        if self._ready != stream:
            self._wait_for_all(stream)
            self._ready = stream
        for layer in self._layers:
            layer.open()

    def _wait_for_all(self, stream: int) -> None:
        for group in range(len(self._native.group_bytes)):
            self._native.wait(group, stream)

    def _take(self, layer: GatedLayer) -> None:
        """A layer is taken: it is waited for, and what came before it is there, too."""
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
        """Has the device wait for all groups up to one."""
        # The forward may compute on a stream of its own.
        current = torch.cuda.current_stream().cuda_stream
        while self._waited <= group:
            self._native.wait(self._waited, self._stream)
            if current != self._stream:
                self._native.wait(self._waited, current)
            self._waited += 1

    def _held(self) -> str | None:
        """Why it cannot leave: somebody has a tensor of it."""
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
        """Raises an error if its weights were written to or replaced, which come anew from the image."""
        if self._image is None:
            # What was to give the module its tensors was interrupted.
            self._place()
        is_replaced = _uses(self._image) < self._uses
        is_written = self._image._version != self._version
        if is_replaced:
            self._former.append(self._image)
            self._drop_graphs()
            self._place()
        if is_written:
            # While one of its tensors is held, it cannot leave, and the next call says so again.
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
        """Gives the module tensors at the addresses that its weights have."""
        contents, native = self._contents, self._native
        self._release()
        with torch.inference_mode(False), torch.no_grad():
            image: Tensor = torch.utils.dlpack.from_dlpack(native.bytes())
            self._uses_alone = _uses(image)
            tensors = [shape(image, native.begin(shape.entry)) for shape in contents.shapes]
        groups = [native.group_of(shape.entry) for shape in contents.shapes]
        # One by one: if that is interrupted, those that there are can be closed.
        for layer in self._gated(tensors, groups):
            self._layers.append(layer)
        self._layers.sort(key=lambda layer: layer.group)
        # Only the module has them, so that one that it replaces is gone.
        self._tensors = list(map(weakref.ref, tensors))
        del tensors
        self._ready = None
        self._version = image._version
        self._counts = _counts(self._tensors)
        self._uses: int = _uses(image)
        self._image = image

    def _gated(self, tensors: list[Tensor], groups: list[int]) -> Iterator[GatedLayer]:
        """The layers, with those of their tensors, which come in those groups."""
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
        """Arranges the image by the order in which layers are used, and by how long each computes."""
        contents = self._contents
        # What was not used comes last.
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
        """Has no tensors any more."""
        self._image = None
        for layer in self._layers:
            layer.close()
        self._layers, self._tensors = [], []

    def _close(self) -> None:
        """Lets go of all."""
        self._check_idle()
        self._graphs = None
        self._release()
        self._former = []


class _Measured:
    """In which order layers are taken in a call, and when."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._taken: dict[int, torch.cuda.Event] = {}

    def note(self, layer: GatedLayer) -> None:
        """A layer is taken."""
        if layer.number not in self._taken:
            self._taken[layer.number] = self._stream.record_event(torch.cuda.Event(enable_timing=True))

    def times(self) -> dict[int, float]:
        """How long each computes, up to the next and the last one until now, in µs, in their order."""
        end = self._stream.record_event(torch.cuda.Event(enable_timing=True))
        end.synchronize()
        events = [*self._taken.values(), end]
        durations = (before.elapsed_time(after) * 1e3 for before, after in itertools.pairwise(events))
        return dict(zip(self._taken, durations, strict=True))


def _on(device: torch.device, value: Any) -> Any:
    """Inputs whose tensors are on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _on(device, item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_on(device, item) for item in value)
    return value


def _counts(tensors: list[weakref.ref[Tensor]]) -> list[int]:
    """How many have each tensor."""
    return [sys.getrefcount(tensor()) for tensor in tensors]


def _uses(image: Tensor) -> int:
    """How many tensors there are of an image."""
    return torch._C._storage_Use_Count(image.untyped_storage()._cdata)
