"""More models than fit on a device, each computed with while its weights come."""

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
from tenure.torch.attributes import foreign_class
from tenure.torch.gates import restorer
from tenure.torch.graphs import GraphPool
from tenure.torch.images import Contents, contents_of
from tenure.torch.installation import installed
from tenure.torch.switched import SwitchedModel, SwitchedModelReport

__all__ = ["Switcher", "SwitcherReport"]

_MIB = 1 << 20

#: By what layers are divided into groups.
Grouping = Literal["searched", "per_layer", "whole"]

#: Inputs of a call: one, several, or some by their names.
Example: TypeAlias = "Tensor | tuple[Any, ...] | dict[str, Any]"


@dataclass(frozen=True)
class SwitcherReport:
    """What a `Switcher` did so far, and what it has now."""

    #: How many there are.
    models: int
    #: How many of them are on the device, whole.
    resident_models: int
    #: The most that weights take of the device, and what they take now, in whole chunks.
    device_bytes: int
    resident_bytes: int
    #: The most that images take of the host's memory, and what they take now.
    host_bytes: int
    image_bytes: int
    #: Calls and loads that found a model there, and those that did not.
    hits: int
    switches: int
    #: What was copied to the device, and how long that took.
    copied_bytes: int
    copy_ms: float
    #: What chunks take of the device now, also those that no model has, and the most that they took at once.
    taken_bytes: int
    peak_bytes: int
    #: The same of each model, in the order in which they were added.
    per_model: tuple[SwitchedModelReport, ...]


class Switcher:
    """Keeps many models for one device, which need not have room for all of them.

    Each is a plain ``nn.Module``, called as before. Its weights lie once in pinned memory of the host, where nobody
    writes them; a model that is not on the device when it is called comes while it is computed with, group by group of
    its layers, and those that are worth least make room: they are called seldom, are soon brought again, and have a low
    priority; of equals, those that were added last. That copies nothing. Answers are the same, bit for bit.

    Parameters
    ----------
    device
        A GPU. Where `tenure.torch.install` was not called, weights lie beside what PyTorch's own allocator has.
    device_bytes
        The device's memory for weights, taken in whole chunks and never exceeded. What models compute has its place
        beside that.
    host_bytes
        The host's memory for images. Those that were read from files leave when there is no room, and are read again.
    grouping
        How layers are divided into groups that come together: so that the model's last kernel ends earliest by what was
        measured (``searched``), each alone (``per_layer``), or all at once (``whole``).
    chunk_bytes
        The size of a chunk, a multiple of 2 MiB. A model takes whole chunks, so that smaller ones waste less of
        ``device_bytes``; larger ones take less time to map.
    graphs
        Whether calls are captured in CUDA graphs, and replayed (see the notes); by default those of models all of whose
        modules are of PyTorch, torchvision, timm, transformers, sentence-transformers or PEFT.

    Raises
    ------
    tenure.Error
        There is no such device.

    Notes
    -----
    The first two calls of a model have the device wait until all of it is there. The second is measured: in which
    order layers are used, and how long each computes. Then the image is made anew in that order, and copied once to see
    how long that takes; the host waits. Later calls wait for nothing on the host. One whose layers are used in another
    order than was learned is right, too, and waits longer. A model whose answers are views of its weights is not
    learned.

    Outside of calls and of blocks of `use` a module refuses to give its parameters and buffers, to load a state or to
    be converted. Weights that are written to or replaced all the same, by the forward, in a block or through what was
    let out, are found at the end of a call or at the begin of the next, which raises an error, and come anew from the
    host; writing through ``.data`` is not found.
    What a forward let out and is held, such as a view of a weight, keeps its model on the device: if that leaves no
    room, the error says so.

    Calls and blocks of all threads take turns, as each may make room by others' models. A forward that computes on
    streams of its own has to fork them after it has taken the weights that they use, or to call
    `torch.cuda.synchronize` first.

    Ctrl-C leaves all models right, wherever it comes. While a file is read for an image, it is raised after that.

    A call whose tensors have sizes, strides and types that were called before, and whose other inputs are equal to
    those of that call, is captured in a CUDA graph once the order is known, and replayed from then on. A replay waits
    on the device for each group where the graph uses it first. All graphs share memory, as much as the largest needs.
    A model has at most eight; those that were used longest ago go. The call that captures runs the module three times,
    and compares the answers of the first replay bit for bit.

    A module that cannot be captured is computed plainly, and `report` says why: it is in training mode or has hooks; it
    has inputs or answers other than tensors and plain values, such as a cache; its forward reads values on the host
    that depend on its inputs, such as those of a mask, uses tensors of the host, writes to its inputs, changes
    attributes of its modules, or draws random numbers. Changes that a program makes to attributes between calls are
    found, and the module is captured anew. A replay does not run the module's Python code: what that reads or does
    elsewhere, such as in a global, a class, a closure, a NumPy array or a line of output, is as it was in the call that
    was captured. So a module of a class of the program's own is captured only if ``graphs=True`` says that it goes by
    its inputs, weights and attributes alone. Blocks of `use` have no graphs. A
    thread that draws random numbers on the device just when another's call begins a capture may get an error from
    PyTorch.

    What takes weights past Tenure is refused where it can be seen: ``torch.compile`` of the whole model, TorchScript,
    captures of CUDA graphs by others, tensors that a module has in other attributes, too.

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
        #: Calls, blocks and loads of all models.
        self._uses = 0
        #: The task of asyncio that has called a model last.
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
        """Takes a model over: its weights move into an image, and are found in the module only while it is called.

        Without an example nothing is copied to the device yet. Weights that several modules share are there once, and
        those that lie in any order (``channels_last``) lie so on the device.

        Parameters
        ----------
        name
            What it is called in errors; no other has it.
        module
            The model, on the CPU or on ``meta``; as a rule after ``.eval()``, as nobody may write to its weights and
            buffers, not the forward either.
        weights
            A file of safetensors, or a folder of them, with the module's state: what is in it and not in the module is
            left out. By default, the values that the module has. A tensor, a tuple or a dictionary here is an example.
        example
            An input, a tuple of inputs, or a dictionary of inputs by their names: the model is called with it until the
            order of its layers is learned, so that the first call of the program need not be measured. Tensors on the
            CPU are copied to the device.
        pinned
            Whether it stays on the device once it is there.
        priority
            How much its calls matter beside those of other models, from -10 to 10: each unit doubles what it is worth
            to keep it on the device.
        graphs
            Whether it is captured in CUDA graphs; by default, as the switcher says.

        Returns
        -------
        SwitchedModel
            To be called instead of the module.

        Raises
        ------
        tenure.Error
            A tensor is of a kind or in a place that Tenure does not know, the file does not have it, or there is no
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
        """Lets go of a model, its image and its memory. Its module has no weights any more.

        Memory of tensors that are held outside of the module goes when they do.

        Parameters
        ----------
        name
            What it was added by.

        Raises
        ------
        tenure.Error
            There is none, or it is being called.
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
        """Calls the model of that name: ``switcher(name, x)`` is ``switcher[name](x)``."""
        return self[name](*inputs, **kwargs)

    def use(self, name: str) -> AbstractContextManager[nn.Module]:
        """Opens a model for a ``with`` block, which has the module itself, all of it on the device.

        In the block the module's parameters can be read and any of its methods called, such as ``generate``. Calls of
        the model, and blocks within the block, work too. After the block the module refuses again.

        Weights stay read only: the end of the block raises an error if they were written to, and they come anew. The
        block holds the switcher: calls of other threads wait until it ends.

        The block is in inference mode, as calls are, so that nothing keeps weights for a backward pass. The
        ``no_grad`` of transformers' ``generate`` changes nothing in it. ``clone()`` an answer after the block to
        differentiate through it.

        Work on other streams must be forked from the stream that is current at the begin of the block, and joined
        before its end; calls of the model see to that themselves.

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
        """Has a model leave the device, or all of them, and gives memory that no model has back to the driver.

        Nothing is copied; the host waits for work that uses that memory. Other processes, and
        ``torch.cuda.mem_get_info``, find it free. A model that sleeps comes back when it is called.

        Parameters
        ----------
        name
            The model; by default all of them, pinned ones too.

        Raises
        ------
        tenure.Error
            There is no such model, one is being called, or one of its tensors is held outside of it. No model has left
            then.
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
        """Brings a model to the device, as `SwitchedModel.load` does, or as many as have room.

        Copies are under way then.

        Parameters
        ----------
        name
            The model, for which others make room. By default those that were used last come first, and none leaves.

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
        """Gives memory that no model has back to the driver; the host waits for work that uses it, and for copies.

        Models that are on the device stay there. Other processes, and ``torch.cuda.mem_get_info``, find the rest free.
        """
        with self._lock:
            self._native.trim()

    def report(self) -> SwitcherReport:
        """What it did so far; waits for copies that are under way.

        Returns
        -------
        SwitcherReport
            Its figures.
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
        """Removes all models. Again, that does nothing."""
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
        """Raises an error in a task of asyncio while another of this thread has a block: they would end crosswise."""
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
        """All that the order of a model's layers, and their division, depends on."""
        settings = ["pytorch", torch.__version__, torch.cuda.get_device_name(self.device), self._grouping]
        return settings, [f"{name}: {size}" for name, size, _ in contents.entries]

    def _load(self, model: SwitchedModel) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """Brings what is missing of a model. Copies are under way then, between two events."""
        self._make_room(model)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(self._copies)
        try:
            model._native.load()
        except OutOfMemoryError:
            # PyTorch may keep enough that nothing uses, and graphs may.
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
        """Lets go of models' graphs, and gives back memory that no other graph needs."""
        dropped = [model for model in models if model._drop_graphs()]
        if dropped and not len(self._graph_pool):
            torch.cuda.empty_cache()

    def _load_or_trim(self, model: SwitchedModel) -> None:
        """Brings what is missing of a model, or else keeps no memory that it would have had."""
        try:
            model._native.load()
        except OutOfMemoryError:
            self._native.trim()
            raise

    def _make_room(self, model: SwitchedModel) -> None:
        """Evicts what is worth least. If that is not enough, loading says so."""
        # Of equals, what was added last.
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
    """A device, with Tenure's memory on it if Tenure is installed."""
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
        # Opened with its first block.
        torch.empty(1, device=f"cuda:{index}")
    return torch.device("cuda", index)
