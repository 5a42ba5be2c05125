"""Tests of `tenure.data`: data sets, samplers, collation, and the loader with and without workers."""

from __future__ import annotations

import collections
import gc
import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
    get_worker_info,
    random_split,
)

from . import loader_datasets as sets

Point = collections.namedtuple("Point", ["x", "y"])


def batches(loader: Any) -> list[Any]:
    """Returns the squares and names of each batch."""
    return [(batch["square"].tolist(), batch["name"]) for batch in loader]


def mappings() -> list[str]:
    """Returns the loaders' memory that this process maps."""
    gc.collect()
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "tenure-data" in line]


def workers() -> list[multiprocessing.process.BaseProcess]:
    """Returns the workers of iterators that are in use. Exceptions of earlier tests may hold iterators until now."""
    gc.collect()
    return multiprocessing.active_children()


def test_concatenated_data_sets_count_indices_on() -> None:
    both = TensorDataset(tenure.arange(3)) + TensorDataset(tenure.arange(10, 12))
    assert [both[index][0].item() for index in range(len(both))] == [0, 1, 2, 10, 11]
    assert both[-1][0].item() == 11
    with pytest.raises(IndexError, match="5"):
        both[5]
    with pytest.raises(TypeError, match="ChainDataset"):
        ConcatDataset([sets.Counting()])


def test_chained_data_sets_follow_one_another() -> None:
    chain = sets.Counting() + sets.Counting()
    assert isinstance(chain, ChainDataset)
    assert list(chain) == [*range(10), *range(10)]
    assert len(chain) == 20


def test_tensors_of_a_data_set_must_have_equally_many_entries() -> None:
    with pytest.raises(ValueError, match=r"\[3, 4\]"):
        TensorDataset(tenure.ones(3), tenure.ones(4))


@pytest.mark.parametrize(
    ("lengths", "counts"), [([3, 7], [3, 7]), ([0.33, 0.33, 0.34], [4, 3, 3]), ([0.5, 0.5], [5, 5])]
)
def test_a_random_split_has_every_sample_once(lengths: list[float], counts: list[int]) -> None:
    parts = random_split(range(10), lengths, generator=tenure.Generator().manual_seed(3))  # type: ignore[arg-type,var-annotated]
    assert [len(part) for part in parts] == counts
    assert sorted(part[i] for part in parts for i in range(len(part))) == list(range(10))
    again = random_split(range(10), lengths, generator=tenure.Generator().manual_seed(3))  # type: ignore[arg-type,var-annotated]
    assert [part.indices for part in parts] == [part.indices for part in again]


def test_a_split_of_other_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="10 samples"):
        random_split(range(10), [3, 3])  # type: ignore[arg-type]


def test_samplers_draw_what_their_names_say() -> None:
    ten = range(10)
    assert list(SequentialSampler(ten)) == list(ten)
    drawn = list(RandomSampler(ten, generator=tenure.Generator().manual_seed(1)))
    assert sorted(drawn) == list(ten) and drawn != list(ten)
    assert Counter(RandomSampler(ten, num_samples=20)) == dict.fromkeys(ten, 2)
    repeated = list(RandomSampler(ten, replacement=True, num_samples=5000))
    assert len(repeated) == 5000 and set(repeated) == set(ten)
    assert sorted(SubsetRandomSampler([5, 7, 9])) == [5, 7, 9]
    assert list(BatchSampler(ten, 4, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(BatchSampler(ten, 4, drop_last=True)) == 2 and len(BatchSampler(ten, 4, drop_last=False)) == 3


def test_weights_decide_how_often_an_index_is_drawn() -> None:
    counts = Counter(WeightedRandomSampler([1, 0, 3], 40_000, generator=tenure.Generator().manual_seed(5)))
    assert counts[1] == 0
    assert abs(counts[2] / 40_000 - 0.75) < 0.02
    assert sorted(WeightedRandomSampler([1, 0, 3], 2, replacement=False)) == [0, 2]
    firsts = Counter(
        next(iter(WeightedRandomSampler([1, 3], 1, replacement=False, generator=tenure.Generator().manual_seed(seed))))
        for seed in range(4000)
    )
    assert abs(firsts[1] / 4000 - 0.75) < 0.05
    with pytest.raises(ValueError, match="without replacement"):
        WeightedRandomSampler([1, 0, 3], 3, replacement=False)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_distributed_samplers_divide_the_samples(drop_last: bool, shuffle: bool) -> None:
    samplers = [DistributedSampler(range(11), 4, rank, shuffle=shuffle, drop_last=drop_last) for rank in range(4)]
    parts = [list(sampler) for sampler in samplers]
    assert {len(part) for part in parts} == {2 if drop_last else 3}
    assert len({index for part in parts for index in part}) == (8 if drop_last else 11)
    samplers[0].set_epoch(1)
    assert (list(samplers[0]) != parts[0]) == shuffle


def test_unshuffled_distributed_samplers_agree_with_pytorch() -> None:
    data = pytest.importorskip("torch.utils.data")
    for rank in range(4):
        for drop_last in (False, True):
            theirs = data.DistributedSampler(range(11), 4, rank, shuffle=False, drop_last=drop_last)
            assert list(DistributedSampler(range(11), 4, rank, shuffle=False, drop_last=drop_last)) == list(theirs)


def plain(value: Any) -> Any:
    """Returns a structure with its tensors as dtypes and lists."""
    if hasattr(value, "tolist"):
        return str(value.dtype).split(".")[-1], value.tolist()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [plain(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


@pytest.mark.parametrize("convert", [False, True])
def test_collation_agrees_with_pytorch(convert: bool) -> None:
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch.utils.data")

    def samples(library: Any) -> list[Any]:
        return [
            {
                "tensor": library.tensor([1.0, number]),
                "array": numpy.array([number, 2], dtype=numpy.int16),
                "scalar": numpy.float32(number),
                "pair": (number, float(number)),
                "flags": [True, "text", b"bytes"],
                "point": Point(number, [1.5]),
            }
            for number in range(3)
        ]

    ours, theirs = (default_convert, data.default_convert) if convert else (default_collate, data.default_collate)
    assert plain(ours(samples(tenure))) == plain(theirs(samples(torch)))


def test_samples_of_different_lengths_are_refused() -> None:
    with pytest.raises(RuntimeError, match="collate_fn"):
        default_collate([[1, 2], [1]])
    with pytest.raises(TypeError, match="object"):
        default_collate([object()])


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_order_however_many_workers_make_them(workers: int) -> None:
    found = batches(DataLoader(sets.Squares(), batch_size=3, num_workers=workers))
    numbers = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]
    assert found == [([[i * i, i * i] for i in batch], [str(i) for i in batch]) for batch in numbers]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_seed_decides_the_order_and_not_the_workers(workers: int) -> None:
    def names(seed: int) -> list[Any]:
        loader = DataLoader(
            sets.Squares(),
            batch_size=4,
            shuffle=True,
            num_workers=workers,
            generator=tenure.Generator().manual_seed(seed),
        )
        return [batch["name"] for batch in loader]

    expected = [
        batch["name"] for batch in DataLoader(sets.Squares(), 4, True, generator=tenure.Generator().manual_seed(7))
    ]
    assert names(7) == expected
    assert names(8) != expected


def test_batches_of_workers_are_on_shared_memory_which_goes_with_them() -> None:
    assert mappings() == []
    (batch,) = DataLoader(sets.Squares(), batch_size=11, num_workers=1)
    address = batch["square"].data_ptr()
    ranges = [[int(part, 16) for part in line.split()[0].split("-")] for line in mappings()]
    assert any(begin <= address < end for begin, end in ranges)
    batch["square"] += 1
    del batch
    assert mappings() == []


def test_arrays_of_workers_are_writable_and_shared() -> None:
    pytest.importorskip("numpy")
    loader = DataLoader(sets.Arrays(), batch_size=2, num_workers=1, collate_fn=sets.as_they_are)
    first = next(iter(loader))
    first[1][0] = 5
    assert first[1].tolist() == [5, 1, 1]


def test_samples_come_alone_without_a_batch_size() -> None:
    assert [batch["name"] for batch in DataLoader(sets.Squares(), batch_size=None, num_workers=2)] == [
        str(number) for number in range(11)
    ]


@pytest.mark.parametrize(("workers", "drop_last"), [(0, False), (0, True), (2, False), (2, True), (3, False)])
def test_iterable_data_sets_give_the_batches_of_pytorch(workers: int, drop_last: bool) -> None:
    data = pytest.importorskip("torch.utils.data")

    class Theirs(data.IterableDataset):  # type: ignore[name-defined,misc]
        def __iter__(self) -> Any:
            info = data.get_worker_info()
            return iter(range(0, 10, 1) if info is None else range(info.id, 10, info.num_workers))

    context = "fork" if workers else None
    theirs = data.DataLoader(Theirs(), 3, num_workers=workers, drop_last=drop_last, multiprocessing_context=context)
    ours = DataLoader(sets.Counting(), 3, num_workers=workers, drop_last=drop_last)
    assert [batch.tolist() for batch in ours] == [batch.tolist() for batch in theirs]


def test_a_workers_exception_is_raised_with_its_traceback_and_the_others_go_on() -> None:
    iterator = iter(DataLoader(sets.Failing(), batch_size=3, num_workers=2))
    assert next(iterator)["name"] == ["0", "1", "2"]
    with pytest.raises(KeyError, match="no sample three") as caught:
        next(iterator)
    assert "DataLoader worker process 1" in str(caught.value)
    assert "loader_datasets.py" in str(caught.value)
    assert next(iterator)["name"] == ["6", "7", "8"]


def test_an_initialiser_that_fails_is_reported() -> None:
    with pytest.raises(ValueError, match="no second worker"):
        list(DataLoader(sets.Squares(), num_workers=2, worker_init_fn=sets.refuse))


def test_a_killed_worker_is_reported() -> None:
    with pytest.raises(RuntimeError, match="killed by signal 9"):
        list(DataLoader(sets.Dying(), num_workers=2))
    assert workers() == []


def test_a_worker_that_makes_no_batch_in_time_is_reported() -> None:
    iterator = iter(DataLoader(sets.Stuck(), sampler=[3], num_workers=1, timeout=0.05))
    with pytest.raises(RuntimeError, match="timed out after 0.05 seconds"):
        next(iterator)
    iterator._workers.stop(grace_s=0)  # type: ignore[attr-defined]
    assert workers() == []


def test_workers_have_numbers_and_seeds_of_their_own() -> None:
    assert get_worker_info() is None

    def rows() -> list[Any]:
        tenure.manual_seed(4)
        return list(DataLoader(sets.Seeds(), batch_size=None, sampler=[0, 1], num_workers=2))

    first, second = rows()
    assert (first[0], second[0]) == (0, 1) and first[1] == 2
    assert first[2] != second[2] and first[3] != second[3] and first[4] != second[4]
    assert [row[3:] for row in rows()] == [first[3:], second[3:]]


def test_persistent_workers_stay_for_the_next_epoch() -> None:
    loader = DataLoader(sets.Seeds(), batch_size=None, num_workers=2, persistent_workers=True)
    next(iter(loader))
    processes = [{row[2] for row in loader} for _ in range(2)]
    assert processes[0] == processes[1] and len(processes[0]) == 2
    abandoned = iter(loader)
    list(loader)
    with pytest.raises(RuntimeError, match="another epoch"):
        next(abandoned)
    del loader, abandoned
    gc.collect()
    assert workers() == []


def test_an_abandoned_iterator_leaves_nothing() -> None:
    iterator = iter(DataLoader(sets.Squares(), num_workers=2))
    next(iterator)
    del iterator
    assert workers() == []
    assert mappings() == []


INTERRUPTED = """
import multiprocessing, os, signal, threading
from tests import loader_datasets as sets
from tenure.data import DataLoader

if __name__ == "__main__":
    iterator = iter(DataLoader(sets.Stuck(), num_workers=2, sampler=[0, 3]))
    next(iterator)
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    try:
        # It comes while `next` waits, or before: then the end of the iterator ends the workers.
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        next(iterator)
    except KeyboardInterrupt:
        del iterator
        print(len(multiprocessing.active_children()))
"""


def test_an_interruption_ends_the_workers(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    pids, left = done.stdout.splitlines()
    assert left == "0"
    assert len(pids.split()) == 2 and not any(os.path.exists(f"/proc/{pid}") for pid in pids.split())


def test_a_data_set_that_cannot_be_pickled_is_refused_with_advice() -> None:
    with pytest.raises(RuntimeError, match="top level"):
        iter(DataLoader(sets.Squares(), num_workers=1, collate_fn=lambda samples: samples))
    assert workers() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampler": [0], "shuffle": True}, "excludes shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler excludes"),
        ({"batch_size": None, "drop_last": True}, "excludes drop_last"),
        ({"num_workers": -1}, "negative"),
        ({"prefetch_factor": 2}, "need num_workers"),
        ({"persistent_workers": True}, "need num_workers"),
    ],
)
def test_contradictory_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataLoader(sets.Squares(), **arguments)


def test_the_length_counts_batches() -> None:
    assert len(DataLoader(sets.Squares(), 3)) == 4
    assert len(DataLoader(sets.Squares(), 3, drop_last=True)) == 3
    assert len(DataLoader(sets.Counting(), 4)) == 3
    assert len(DataLoader(Subset(sets.Squares(), [1, 2]))) == 2
