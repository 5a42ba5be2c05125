"""The tensors of a random program, each with an array of NumPy that must have the same values."""

from __future__ import annotations

import random
import weakref
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy

import tenure
from tenure import Tensor

DTYPES: list[tuple[tenure.dtype, str]] = [
    (tenure.float64, "float64"),
    (tenure.float32, "float32"),
    (tenure.int64, "int64"),
]


def live_bytes() -> int:
    """Returns the bytes of all tensors on the CPU, other libraries' memory apart."""
    live = tenure.memory.stats("cpu")["requested_bytes.all.current"]
    assert live is not None
    return live


def check_close(tensor: Tensor, array: Any) -> None:
    """Compares results whose last bits depend on the order of sums."""
    assert tensor.shape == array.shape, (tensor.shape, array.shape)
    numbers = numpy.array(tensor.tolist()).reshape(array.shape)
    assert numpy.allclose(numbers, array, rtol=1e-9, atol=1e-9), (numbers, array)


@dataclass(eq=False)
class Memory:
    """Stands for the memory of one storage. It lives as long as an entry, a view or an export is on the storage."""

    nbytes: int


@dataclass(eq=False)
class Entry:
    """A tensor, and an array with the same values. Arrays are views of each other where the tensors are."""

    tensor: Tensor
    array: Any
    memory: Memory

    def check(self) -> None:
        assert self.tensor.shape == self.array.shape, (self.tensor.shape, self.array.shape)
        assert self.tensor.tolist() == self.array.tolist(), (self.tensor, self.array)


@dataclass(eq=False)
class Export:
    """Another library's object on a tensor's memory, and the array of the tensor."""

    buffer: Any
    array: Any
    memory: Memory

    def check(self) -> None:
        assert numpy.asarray(self.buffer).tolist() == self.array.tolist(), (self.buffer, self.array)


@dataclass(eq=False)
class Leaf:
    """A tensor that requires a gradient, its values, and the gradient that it must have."""

    tensor: Tensor
    array: Any
    gradient: Any = None
    #: The number of times that the values were written to.
    writes: int = 0

    def add(self, gradient: Any) -> None:
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def check(self) -> None:
        check_close(self.tensor, self.array)
        gradient = self.tensor.grad
        assert (gradient is None) == (self.gradient is None)
        if gradient is not None:
            check_close(gradient, self.gradient)


@dataclass(eq=False)
class Origin:
    """The part that graphs from one leaf share. After a backward pass that frees it, they may have no gradient."""

    leaf: Leaf
    writes: int
    is_freed: bool = False
    #: Whether a checkpoint is in a graph: a backward pass may read the leaf as it is now.
    has_checkpoint: bool = False


@dataclass(eq=False)
class Graph:
    """A result of operations on a leaf. Element by element, it depends on element `index` of the leaf by `slope`."""

    tensor: Tensor
    array: Any
    index: Any
    slope: Any
    origin: Origin

    def check(self) -> None:
        # A view of the leaf has values that were written to the leaf since.
        if self.origin.writes == self.origin.leaf.writes:
            check_close(self.tensor, self.array)

    def gradient(self, of_result: Any) -> Any:
        """Returns the gradient of the leaf from that of the result."""
        leaf = self.origin.leaf.array
        sums = numpy.zeros(leaf.size)
        numpy.add.at(sums, self.index.ravel(), (of_result * self.slope).ravel())
        return sums.reshape(leaf.shape)


@dataclass(eq=False)
class Pool:
    """All that a program, or a thread of one, refers to."""

    random: random.Random
    entries: list[Entry] = field(default_factory=list)
    exports: list[Export] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)
    #: Whether the program made reference cycles, which the garbage collector has to free.
    has_cycles: bool = False
    #: Whether other threads allocate and free too.
    is_shared: bool = False

    def values(self, shape: tuple[int, ...], kind: str = "float64") -> Any:
        """Returns an array of small multiples of 1/8, whose sums and products are exact."""
        numbers = [self.random.randint(-16, 16) for _ in range(int(numpy.prod(shape)))]
        array = numpy.array(numbers, dtype=kind).reshape(shape)
        return array if kind == "int64" else numpy.asarray(array / numpy.array(8, dtype=kind))

    def shape(self) -> tuple[int, ...]:
        if self.random.random() < 0.01:
            # Large blocks come from pages.
            return (self.random.choice([8192, 9000]),)
        return tuple(self.random.choice([0, 1, 2, 2, 3, 3, 4, 5]) for _ in range(self.random.randint(0, 3)))

    def add(self, tensor: Tensor, array: Any, memory: Memory | None = None) -> None:
        if memory is None:
            memory = Memory(tensor.nbytes)
        # NumPy computes numbers rather than arrays of no dimension.
        self.entries.append(Entry(tensor, numpy.asarray(array), memory))

    def entry(self) -> Entry:
        return self.random.choice(self.entries)

    def writable(self) -> Entry | None:
        entries = [entry for entry in self.entries if entry.array.flags.writeable]
        return self.random.choice(entries) if entries else None

    def check(self) -> None:
        kinds: list[list[Any]] = [self.entries, self.exports, self.leaves, self.graphs]
        for part in chain(*kinds):
            part.check()

    def drop(self) -> None:
        """Drops a random reference. Memory that nothing refers to any more must be free at once."""
        kinds: list[list[Any]] = [self.entries, self.exports, self.leaves, self.graphs]
        of_kind = self.random.choice([kind for kind in kinds if kind])
        memory = None
        before = live_bytes()
        dropped = of_kind.pop(self.random.randrange(len(of_kind)))
        if isinstance(dropped, (Entry, Export)):
            memory, nbytes = weakref.ref(dropped.memory), dropped.memory.nbytes
        del dropped
        if memory is not None and not self.is_shared:
            expected = before - (nbytes if memory() is None else 0)
            assert live_bytes() == expected, f"{live_bytes()} bytes live after a reference was dropped, not {expected}"

    def clear(self) -> None:
        while self.entries or self.exports or self.leaves or self.graphs:
            self.drop()
