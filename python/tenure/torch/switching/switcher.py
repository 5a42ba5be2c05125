"""More models than fit on a device, each computed with while its weights arrive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, overload

import torch
from torch import Tensor, nn

from tenure import Error, OutOfMemoryError, _native
from tenure._arguments import whole_number
from tenure.torch.installation import installed
from tenure.torch.switching.attributes import foreign_class
from tenure.torch.switching.contents import Contents, contents_of
from tenure.torch.switching.gates import restorer
from tenure.torch.switching.graphs import GraphPool
from tenure.torch.switching.model import SwitchedModel, SwitchedModelReport

__all__ = ["Switcher", "SwitcherReport"]

_MIB = 1 << 20

#: The way in which layers are divided into groups.
Grouping = Literal["searched", "per_layer", "whole"]

#: The inputs of a call: one, several, or some by their names.
Example: TypeAlias = "Tensor | tuple[Any, ...] | dict[str, Any]"


@dataclass(frozen=True)
class SwitcherReport:
    """The history of a `Switcher` and its present state."""

    #: The number of models.
    models: int
    #: The number of models that are entirely on the device.
    resident_models: int
    #: The limit of the device memory for weights, and the bytes of weights there now, in whole chunks.
    device_bytes: int
    resident_bytes: int
    #: The limit of the host memory for images, and the bytes of images there now.
    host_bytes: int
    image_bytes: int
    #: The number of calls and loads that found their model on the device, and of those that did not.
    hits: int
    switches: int
    #: The bytes that were copied to the device, and the time that took.
    copied_bytes: int
    copy_ms: float
    #: The bytes of all chunks on the device now, including those that no model uses, and their peak.
    taken_bytes: int
    peak_bytes: int
    #: The report of each model, in the order in which they were added.
    per_model: tuple[SwitchedModelReport, ...]


class Switcher:
    """Keeps many models for one device, which need not have room for all of them.

    Each is a plain ``nn.Module``, called as before. Its weights lie once in pinned host memory, which is never written.
    A model that is not on the device when it is called arrives while it is computed with, one group of layers after the
    other. The models of the least worth make room: they are called seldom, are quickly brought again, and have a low
    priority; among equals, the last added goes first. Eviction copies nothing. Answers are the same, bit for bit.

    Parameters
    ----------
    device
        A GPU. If `tenure.torch.install` was not called, weights lie beside the memory of PyTorch's own allocator.
    device_bytes
        The device memory for weights, taken in whole chunks and never exceeded. The models' activations lie beside it.
    host_bytes
        The host memory for images. Images read from files are dropped when there is no room, and read again.
    grouping
        The way in which layers are divided into groups that are copied together: so that the model's last kernel ends
        earliest by measured times (``searched``), each layer alone (``per_layer``), or all at once (``whole``).
    chunk_bytes
        The size of a chunk in bytes, a multiple of 2 MiB. A model takes whole chunks: smaller ones waste less of
        ``device_bytes``, larger ones take less time to map.
    graphs
        Whether calls are captured in CUDA graphs and replayed (see the notes). By default, only models whose modules
        are all from PyTorch, torchvision, timm, transformers, sentence-transformers or PEFT.

    Raises
    ------
    tenure.Error
        There is no such device.

    Notes
    -----
    In the first two calls of a model the device waits until all of it is there. The second call is measured: the order
    in which layers are used, and the time each computes. Then the image is made anew in that order and copied once to
    time the copy; the host waits for this. Later calls do not wait on the host. A call that uses the layers in another
    order than was learned is right, too, but waits longer. The order of a model whose answers are views of its weights
    is not learned.

    Outside of calls and of blocks of `use`, a module refuses to give its parameters and buffers, to load a state or to
    be converted. The forward, a block or code that holds a tensor of the module may still write to or replace weights.
    That is found at the end of the call or at the beginning of the next, which raises an error; the weights are then
    copied anew from the host. Writes through ``.data`` are not found. A tensor that the program got from a forward and
    holds, such as a view of a weight, keeps its model on the device; if that leaves no room, the error says so.

    Calls and blocks of all threads take turns, because each may evict other threads' models. A forward that computes on
    streams of its own must fork them after it has taken the weights that they use, or call `torch.cuda.synchronize`
    first.

    Ctrl-C leaves all models right at any time. While a file is read for an image, it takes effect after the read.

    A call is captured in a CUDA graph if an earlier call had tensors of the same sizes, strides and types and equal
    other inputs, and the order of layers is known. Later such calls replay the graph. A replay waits on the device for
    each group where the graph first uses it. All graphs share memory, as much as the largest needs. A model has at most
    eight; the least recently used go. The call that captures runs the module three times and compares the answers of
    the first replay bit for bit.

    A module that cannot be captured runs without graphs, and `report` says why: it is in training mode or has hooks; it
    has inputs or answers other than tensors and plain values, such as a cache; or its forward reads values on the host
    that depend on its inputs (such as those of a mask), uses host tensors, writes to its inputs, changes attributes of
    its modules, or draws random numbers. If a program changes attributes between calls, the change is found and the
    module captured anew. A replay does not run the module's Python code: anything that code reads or does elsewhere,
    such as in a global, a class, a closure, a NumPy array or a line of output, is as it was in the captured call.
    Therefore a module of a class of the program's own is captured only with ``graphs=True``, which promises that it
    depends on its inputs, weights and attributes alone. Blocks of `use` have no graphs. A thread that draws random
    numbers on the device just when another thread's call begins a capture may get an error from PyTorch.

    Code that would use weights without Tenure's knowledge is refused where it can be seen: ``torch.compile`` of the
    whole model, TorchScript, captures of CUDA graphs by the program, and tensors that a module has in other attributes.

    Examples
    --------
    >>> tenure.torch.install()  # doctest: +SKIP
    >>> with tenure.torch.Switcher(device_bytes=32 << 20, host_bytes=1 << 30) as switcher:  # doctest: +SKIP
    ...     models = [switcher.add(f"model {n}", nn.Linear(1024, 2500)) for n in range(3)]
    ...     for model in models:
    ...         answer = model(torch.ones(8, 1024, device="cuda"))
    ...     print(answer.shape, [model.is_resident for model in models])
    torch.Size([8, 2500]) [True, False, True]
    """

    def __init__(
        self,
        device: int | str | torch.device = "cuda",
        *,
        device_bytes: int,
        host_bytes: int,
        grouping: Grouping = "searched",
        chunk_bytes: int = 16 * _MIB,
        graphs: bool | None = None,
    ) -> None:
        self.device = _opened(device)
        self._device_bytes = whole_number("device_bytes", device_bytes, 1, (1 << 63) - 1)
        self._host_bytes = whole_number("host_bytes", host_bytes, 1, (1 << 63) - 1)
        if whole_number("chunk_bytes", chunk_bytes, 2 * _MIB, 1 << 40) % (2 * _MIB):
            raise ValueError(f"chunk_bytes={chunk_bytes!r}: expected a multiple of 2 MiB")
        _native.divide_layers([], 1.0, grouping)
        self._grouping = grouping
        self._native = _native.Switcher(self.device.index, self._device_bytes, self._host_bytes, chunk_bytes)
        self._copies = torch.cuda.ExternalStream(self._native.copies, device=self.device)
        self._has_graphs = graphs if graphs is None else bool(graphs)
        self._graph_pool = GraphPool(self.device)
        self._models: dict[str, SwitchedModel] = {}
        self._lock = threading.RLock()
        #: The number of calls, blocks and loads of all models.
        self._uses = 0
        #: The asyncio task that called a model last.
        self._task: asyncio.Task[Any] | None = None
        self._hits = self._switches = 0
        self._copy_ms = 0.0
        self._timed: list[tuple[torch.cuda.Event, torch.cuda.Event, SwitchedModel]] = []

    @overload
    def add(
        self,
        name: str,
        module: nn.Module,
        weights: str | PathLike[str] | None = None,
        *,
        example: Example | None = None,
        pinned: bool = False,
        priority: int = 0,
        graphs: bool | None = None,
    ) -> SwitchedModel: ...

    @overload
    def add(
        self,
        name: str,
        module: nn.Module,
        example: Example,
        /,
        *,
        pinned: bool = False,
        priority: int = 0,
        graphs: bool | None = None,
    ) -> SwitchedModel: ...

    def add(
        self,
        name: str,
        module: nn.Module,
        weights: str | PathLike[str] | Example | None = None,
        *,
        example: Example | None = None,
        pinned: bool = False,
        priority: int = 0,
        graphs: bool | None = None,
    ) -> SwitchedModel:
        """Adds a model: its weights move into an image, and the module has them only while it is called.

        Without an example nothing is copied to the device yet. Weights that several modules share are stored once.
        Weights of any memory order (``channels_last``) keep it on the device.

        Parameters
        ----------
        name
            The model's name in errors, unique in the switcher.
        module
            The model, on the CPU or on ``meta``; usually after ``.eval()``, as its weights and buffers may not be
            written to, not even by the forward.
        weights
            A safetensors file, or a folder of them, with the module's state. Entries that the module does not have are
            ignored. By default, the module's own values. A tensor, a tuple or a dictionary here is an example.
        example
            An input, a tuple of inputs, or a dictionary of inputs by their names. The model is called with it until the
            order of its layers is learned, so that the program's first call need not be measured. CPU tensors are
            copied to the device.
        pinned
            Whether the model stays on the device once it is there.
        priority
            The importance of its calls beside those of other models, from -10 to 10: each unit doubles the worth of
            keeping it on the device.
        graphs
            Whether calls are captured in CUDA graphs; by default, as the switcher's setting.

        Returns
        -------
        SwitchedModel
            The model, to be called instead of the module.

        Raises
        ------
        tenure.Error
            A tensor is of a kind or in a place that Tenure does not support, the file does not have it, or there is no
            room. The module is as it was, also after any error of a call with the example.
        """
        if isinstance(weights, Tensor | tuple | dict):
            if example is not None:
                raise TypeError("the example is given twice: as the third argument and by its name")
            weights, example = None, weights
        if not isinstance(module, nn.Module):
            raise TypeError(f"module={module!r}: expected an nn.Module")
        if hasattr(module, "_orig_mod"):
            raise Error(f"{name}: it is compiled, which takes weights past Tenure: add the module that was compiled")
        with self._lock:
            self._check_open()
            if name in self._models:
                raise Error(f"there is a model {name!r} already: remove() it first, or choose another name")
            contents = contents_of(name, module, weights)
            restore = restorer(module)
            key = self._order_key(contents)
            known = _native.known_order(*key)
            order, ends = known or (list(range(len(contents.entries))), [len(contents.entries)])
            native = self._native.add(name, contents.entries, order, ends)
            contents.tensors.clear()
            wanted = self._has_graphs if graphs is None else bool(graphs)
            foreign = foreign_class(module) if wanted is None else None
            has_graphs = foreign is None if wanted is None else wanted
            model = SwitchedModel(self, name, module, contents, native, key, known is not None, has_graphs)
            if foreign is not None:
                model._graph_refusal = f"{foreign} may go by what graphs do not see: if it does not, say graphs=True"
            try:
                self._models[name] = model
                model.pinned, model.priority = pinned, priority
                model._place()
                if example is not None:
                    model._learn_by(example)
            except BaseException:
                try:
                    self.remove(name)
                finally:
                    restore()
                raise
        return model

    def remove(self, name: str) -> None:
        """Removes a model, its image and its memory. Its module has no weights any more.

        Memory of tensors that are held outside of the module is freed when they are.

        Parameters
        ----------
        name
            The name that the model was added by.

        Raises
        ------
        tenure.Error
            There is no such model, or it is being called.
        """
        with self._lock:
            model = self[name]
            model._check_idle()
            self._drop_graphs([model])
            model._close()
            del self._models[name], model._native
            self._native.trim()

    def __getitem__(self, name: str) -> SwitchedModel:
        try:
            return self._models[name]
        except KeyError:
            raise Error(f"there is no model {name!r}: there are {', '.join(self._models) or 'none'}") from None

    def __call__(self, name: str, /, *inputs: Any, **kwargs: Any) -> Any:
        """Calls the model with this name: ``switcher(name, x)`` is ``switcher[name](x)``."""
        return self[name](*inputs, **kwargs)

    def use(self, name: str) -> AbstractContextManager[nn.Module]:
        """Opens a model for a ``with`` block. The block gets the module itself, all of it on the device.

        In the block the module's parameters can be read and any of its methods called, such as ``generate``. Calls of
        the model, and blocks within the block, work too. After the block the module refuses access again.

        Weights stay read-only: if they were written to, the end of the block raises an error and they are copied anew.
        The block holds the switcher: calls of other threads wait until it ends.

        The block runs in inference mode, as calls do, so that no backward pass keeps weights. The ``no_grad`` of
        transformers' ``generate`` changes nothing in it. ``clone()`` an answer after the block to differentiate through
        it.

        Work on other streams must be forked from the stream that is current at the beginning of the block, and joined
        before its end; calls of the model do that themselves.

        Parameters
        ----------
        name
            The name that the model was added by.

        Returns
        -------
        AbstractContextManager[nn.Module]
            Enter it to get the module.

        Raises
        ------
        tenure.Error
            There is no such model, or no room for it.

        Examples
        --------
        >>> with switcher.use("gpt2") as module:  # doctest: +SKIP
        ...     tokens = module.generate(prompt, max_new_tokens=20)
        """
        return self[name].use()

    def sleep(self, name: str | None = None) -> None:
        """Evicts a model or all of them from the device, and gives memory that no model uses back to the driver.

        Nothing is copied; the host waits for work that uses that memory. Other processes, and
        ``torch.cuda.mem_get_info``, see it as free. A model that sleeps comes back when it is called.

        Parameters
        ----------
        name
            The model; by default all of them, pinned ones too.

        Raises
        ------
        tenure.Error
            There is no such model, one is being called, or one of its tensors is held outside of it. No model is
            evicted then.
        """
        with self._lock:
            models = list(self._models.values()) if name is None else [self[name]]
            for model in models:
                model._check_can_leave()
            for model in models:
                model.evict()
            self._drop_graphs(models)
            self._native.trim()

    def wake(self, name: str | None = None) -> None:
        """Brings a model to the device, as `SwitchedModel.load` does, or as many as there is room for.

        Returns while copies are still under way.

        Parameters
        ----------
        name
            The model; others make room for it. By default the most recently used models, and none makes room.

        Raises
        ------
        tenure.Error
            There is no such model, there is no room for it, or the device has no memory left.
        """
        with self._lock:
            if name is not None:
                self[name].load()
                return
            for model in sorted(self._models.values(), key=lambda model: model._used_at, reverse=True):
                if 0 < model._native.missing_bytes <= self._native.free_bytes:
                    model._load()

    def trim(self) -> None:
        """Gives memory that no model uses back to the driver. The host waits for work that uses it, and for copies.

        Models that are on the device stay there. Other processes, and ``torch.cuda.mem_get_info``, see the rest as
        free.
        """
        with self._lock:
            self._native.trim()

    def report(self) -> SwitcherReport:
        """Returns the switcher's report. Waits for copies that are under way.

        Returns
        -------
        SwitcherReport
            The figures.
        """
        with self._lock:
            self._note_times(waits=True)
            models = self._models.values()
            return SwitcherReport(
                models=len(models),
                resident_models=sum(model.is_resident for model in models),
                device_bytes=self._device_bytes,
                resident_bytes=sum(model._native.resident_bytes for model in models),
                host_bytes=self._host_bytes,
                image_bytes=self._native.image_bytes,
                hits=self._hits,
                switches=self._switches,
                copied_bytes=self._native.copied_bytes,
                copy_ms=self._copy_ms,
                taken_bytes=self._native.taken_bytes,
                peak_bytes=self._native.peak_bytes,
                per_model=tuple(model._report() for model in models),
            )

    def close(self) -> None:
        """Removes all models. A second call does nothing."""
        with self._lock:
            for name in list(self._models):
                self.remove(name)
            self._is_open = False

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    _is_open = True

    def _check_task(self) -> None:
        """Raises an error if another asyncio task of this thread has a block open: the blocks would not nest."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        if task is not self._task and any(model._depth for model in self._models.values()):
            raise Error("another task of this thread has a block of use() open: give each its turn by an asyncio.Lock")
        self._task = task

    def _check_open(self) -> None:
        if not self._is_open:
            raise Error("this switcher is closed: make another")

    def _order_key(self, contents: Contents) -> tuple[list[str], list[str]]:
        """Returns all that the order of a model's layers, and their division into groups, depends on."""
        settings = ["pytorch", torch.__version__, torch.cuda.get_device_name(self.device), self._grouping]
        return settings, [f"{name}: {size}" for name, size, _ in contents.entries]

    def _load(self, model: SwitchedModel) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """Starts the copies of what a model lacks. Returns an event before the copies and one after them."""
        self._make_room(model)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(self._copies)
        try:
            model._native.load()
        except OutOfMemoryError:
            # PyTorch may cache enough free memory, and so may graphs.
            self._drop_graphs(self._models.values())
            torch.cuda.empty_cache()
            self._load_or_trim(model)
        end.record(self._copies)
        self._timed.append((start, end, model))
        self._switches += 1
        model._switches += 1
        self._note_times(waits=False)
        return start, end

    def _drop_graphs(self, models: Iterable[SwitchedModel]) -> None:
        """Drops models' graphs, and gives back memory that no other graph needs."""
        dropped = [model for model in models if model._drop_graphs()]
        if dropped and not len(self._graph_pool):
            torch.cuda.empty_cache()

    def _load_or_trim(self, model: SwitchedModel) -> None:
        """Starts the copies of what a model lacks. If that fails, gives back the memory that was meant for it."""
        try:
            model._native.load()
        except OutOfMemoryError:
            self._native.trim()
            raise

    def _make_room(self, model: SwitchedModel) -> None:
        """Evicts the models of the least worth. If that is not enough, loading raises the error."""
        # Among equals, the last added first.
        newest = list(reversed(self._models.values()))
        others = sorted(newest, key=lambda other: other._native.worth(self._uses, other.priority))
        held: str | None = None
        for other in others:
            lacking = model._native.missing_bytes - self._native.free_bytes
            if lacking <= 0:
                return
            if other is model or other.pinned or other._depth or other._native.resident_bytes == 0:
                continue
            reason = other._held()
            if reason is None:
                other._native.evict(lacking)
            held = held or reason
        if held is not None and model._native.missing_bytes > self._native.free_bytes:
            raise Error(f"there is no room for {model.name!r}: {held}")

    def _note_times(self, *, waits: bool) -> None:
        while self._timed and (waits or self._timed[0][1].query()):
            start, end, model = self._timed[0]
            end.synchronize()
            taken_ms = start.elapsed_time(end)
            del self._timed[0]
            self._copy_ms += taken_ms
            model._copies_ms += taken_ms
            model._last_copy_ms = taken_ms


def _opened(device: int | str | torch.device) -> torch.device:
    """Returns a device, with Tenure's memory opened on it if Tenure is installed."""
    given = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if given.type != "cuda":
        raise Error(f"device={str(given)!r}: expected one of CUDA's")
    if not torch.cuda.is_available():
        raise Error(f"device={str(given)!r}: PyTorch finds no GPU")
    torch.cuda.init()
    index = torch.cuda.current_device() if given.index is None else given.index
    if not index < torch.cuda.device_count():
        raise Error(f"device {index}: PyTorch sees {torch.cuda.device_count() or 'no'} CUDA devices")
    if installed() is not None and index not in _native.installed():
        # The first block opens the device.
        torch.empty(1, device=f"cuda:{index}")
    return torch.device("cuda", index)
