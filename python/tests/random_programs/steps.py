"""Steps of random programs that record no graph: creation, views, writes in place, masks, exchange and errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, cast

import numpy

import tenure
from tenure import Tensor

from .pool import DTYPES, Entry, Export, Memory, Pool

Step = Callable[[Pool], None]

#: The exceptions that a mistaken call may raise.
MISTAKES = (tenure.Error, AttributeError, IndexError, RuntimeError, TypeError, ValueError)


def create(pool: Pool) -> None:
    dtype, kind = pool.random.choice(DTYPES)
    shape = pool.shape()
    array = pool.values(shape, kind)
    match pool.random.randrange(4):
        case 0:
            pool.add(tenure.zeros(shape, dtype=dtype), numpy.zeros(shape, dtype=kind))
        case 1:
            pool.add(tenure.full(shape, 3, dtype=dtype), numpy.full(shape, 3, dtype=kind))
        case 2 if array.size:
            # Numbers of Python come in memory of their own, which host memory does not count, if their dtype fits.
            memory = Memory(array.nbytes if kind == "float32" else 0)
            pool.add(tenure.tensor(array.tolist(), dtype=dtype), array, memory)
        case _:
            pool.add(tenure.tensor(array, dtype=dtype), array)


def a_slice(pool: Pool, size: int) -> slice:
    start = pool.random.randint(0, size)
    return slice(start, pool.random.randint(start, size), pool.random.choice([1, 1, 2]))


def viewed(pool: Pool, tensor: Tensor, arrays: list[Any]) -> tuple[Tensor, list[Any]]:
    """Returns a random view of a tensor, and the same views of arrays of its shape."""
    shape = tensor.shape
    kind = pool.random.randrange(8)
    if kind == 0 and shape:
        index = tuple(a_slice(pool, size) for size in shape[: pool.random.randint(1, len(shape))])
        return tensor[index], [array[index] for array in arrays]
    if kind == 1 and len(shape) > 1:
        first, second = pool.random.sample(range(len(shape)), 2)
        return tensor.transpose(first, second), [array.swapaxes(first, second) for array in arrays]
    if kind == 2:
        new = (pool.random.randint(1, 3), *shape)
        return tensor.expand(new), [numpy.broadcast_to(array, new) for array in arrays]
    if kind == 3 and tensor.is_contiguous() and tensor.numel():
        return tensor.view(-1), [array.reshape(-1) for array in arrays]
    if kind == 4 and shape and shape[0]:
        place = pool.random.randrange(shape[0])
        return tensor.unbind(0)[place], [array[place, ...] for array in arrays]
    if kind == 5 and shape and shape[-1]:
        place = pool.random.randrange(shape[-1])
        return tensor[..., place], [array[..., place] for array in arrays]
    if kind == 6 and len(shape) > 1:
        return tensor.T, [array.T for array in arrays]
    return tensor.unsqueeze(0), [array[None] for array in arrays]


def view(pool: Pool) -> None:
    entry = pool.entry()
    tensor, (array,) = viewed(pool, entry.tensor, [entry.array])
    pool.add(tensor, array, entry.memory)


def compute(pool: Pool) -> None:
    one, other = pool.entry(), pool.entry()
    try:
        numpy.broadcast_shapes(one.array.shape, other.array.shape)
    except ValueError:
        other = one
    if one.array.dtype != other.array.dtype or one.array.size > 10_000 or other.array.size > 10_000:
        other = one
    if one.array.size * other.array.size > 100_000 and one.array.shape != other.array.shape:
        return
    tensor = (one.tensor * other.tensor + one.tensor).clamp(-64, 64)
    pool.add(tensor, numpy.clip(one.array * other.array + one.array, -64, 64))


def write(pool: Pool) -> None:
    entry = pool.writable()
    if entry is None:
        return
    tensor, array = entry.tensor, entry.array
    match pool.random.randrange(7):
        case 0:
            tensor.add_(1)
            array += 1
        case 1:
            tensor.mul_(2)
            tensor.clamp_(-64, 64)
            array *= 2
            numpy.clip(array, -64, 64, out=array)
        case 2:
            tensor.zero_()
            array[...] = 0
        case 3 if array.ndim and array.shape[0]:
            index = a_slice(pool, array.shape[0])
            tensor[index] = 5
            array[index] = 5
        case 4:
            mask = array > 0
            tensor[tensor > 0] = -1
            array[mask] = -1
        case 5:
            tensor.sub_(3)
            array -= 3
        case _:
            values = pool.values(array.shape, str(array.dtype))
            tensor.copy_(tenure.tensor(values))
            array[...] = values


def select(pool: Pool) -> None:
    entry = pool.entry()
    if entry.array.ndim and entry.array.shape[0] and pool.random.random() < 0.5:
        places = [pool.random.randrange(entry.array.shape[0]) for _ in range(3)]
        pool.add(entry.tensor[tenure.tensor(places)], entry.array[places])
    else:
        pool.add(entry.tensor[entry.tensor >= 0], entry.array[entry.array >= 0])


def duplicate(pool: Pool) -> None:
    entry = pool.entry()
    match pool.random.randrange(4):
        case 0:
            pool.add(pickle.loads(pickle.dumps(entry.tensor)), entry.array.copy())
        case 1:
            pool.add(copy.deepcopy(entry.tensor), entry.array.copy())
        case 2:
            pool.add(entry.tensor.detach(), entry.array, entry.memory)
        case _:
            pool.add(entry.tensor.clone(), entry.array.copy())


def exchange(pool: Pool) -> None:
    entry = pool.entry()
    # An import without elements keeps no memory.
    has_elements = entry.array.size > 0
    match pool.random.randrange(6):
        case 0 if has_elements:
            pool.exports.append(Export(numpy.from_dlpack(entry.tensor), entry.array, entry.memory))
        case 1:
            pool.exports.append(Export(memoryview(cast(Any, entry.tensor)), entry.array, entry.memory))
        case 2:
            # The consumer never takes it.
            entry.tensor.__dlpack__(max_version=(1, 0))
        case 3 if has_elements:
            pool.add(tenure.from_dlpack(entry.tensor), entry.array, entry.memory)
        case 4 if has_elements:
            given = pool.values(entry.array.shape)
            tensor = tenure.from_numpy(given)
            tensor.add_(1)
            memory, array = Memory(0), given.copy()
            pool.add(tensor, array, memory)
            if pool.random.random() < 0.5:
                pool.exports.append(Export(given, array, memory))
        case _:
            given = bytearray(range(16))
            array = numpy.frombuffer(given, dtype="int16").astype("int64")
            pool.add(tenure.frombuffer(given, dtype=tenure.int16).to(tenure.int64), array)


def mistake(pool: Pool) -> None:
    entry = pool.entry()
    tensor, shape = entry.tensor, entry.array.shape
    calls: list[Callable[[], Any]] = [
        lambda: tensor.view(tensor.numel() + 1),
        lambda: tensor[len(shape) * (0,) + (0,)],
        lambda: tensor.unbind(len(shape) + 1),
        lambda: tenure.zeros(2, 3) + tenure.zeros(2),
        lambda: tenure.zeros((2, 3)).matmul(tenure.zeros((2, 3))),
        lambda: tensor.reshape(-1, -1),
        lambda: tenure.tensor([[1, 2], [3]]),
        lambda: tenure.zeros(1).expand(3).add_(tenure.ones(4)),
        lambda: tensor.add_(cast(Any, object())),
        lambda: tenure.cat([tensor, cast(Any, object())]),
        lambda: tensor.transpose(0, 9),
        lambda: tensor.backward(),
        lambda: pickle.loads(pickle.dumps(tenure.zeros(3) * tenure.ones(3, requires_grad=True))),
        lambda: tenure.from_dlpack(object()),
        lambda: tenure.frombuffer(b"12345", dtype=tenure.float64),
    ]
    call = pool.random.choice(calls)
    try:
        call()
    except MISTAKES:
        return
    raise AssertionError(f"mistake {calls.index(call)} raised nothing for {shape}")


def drop(pool: Pool) -> None:
    pool.drop()


def row_of(entry: Entry, row: int) -> Entry:
    return Entry(entry.tensor[row], entry.array[row], entry.memory)


STEPS: list[Step] = [
    create,
    create,
    view,
    view,
    view,
    compute,
    write,
    write,
    select,
    duplicate,
    exchange,
    mistake,
    drop,
]
