"""Many threads in the extension module at once, also on a Python without the global lock."""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

import tenure
from tenure import _native

THREADS = 8
ROUNDS = 200

T = TypeVar("T")


def at_once(function: Callable[[int], T], threads: int = THREADS) -> list[T]:
    """Returns the results of a function on threads that begin together, by the threads' numbers."""
    begin = threading.Barrier(threads)

    def run(number: int) -> T:
        begin.wait()
        return function(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python is not free-threaded")
def test_the_extension_module_leaves_pythons_lock_off() -> None:
    """Python turns the lock on for the whole process when it imports a module that does not declare to work without."""
    assert not sys._is_gil_enabled()  # type: ignore[attr-defined, unused-ignore]


def test_threads_have_purposes_of_their_own() -> None:
    tags = len(_native.tags())

    def nest(number: int) -> tuple[int, int]:
        key = _native.intern_key(f"layer{number}", "linear", "output", 0)
        seen = []
        for level in range(1, ROUNDS):
            _native.enter_purpose(level, (number + level) % tags, key)
        for level in reversed(range(1, ROUNDS)):
            seen.append(_native.current_purpose())
            _native.leave_purpose(level)
        assert seen == [((number + level) % tags, key) for level in reversed(range(1, ROUNDS))]
        return _native.current_purpose()

    assert at_once(nest) == [(0, 0)] * THREADS


def test_equal_keys_have_one_number_whichever_threads_intern_them() -> None:
    def intern(_: int) -> list[int]:
        return [_native.intern_key("threads", "op", "role", occurrence) for occurrence in range(ROUNDS)]

    first, *others = at_once(intern)
    assert len(set(first)) == ROUNDS
    assert all(other == first for other in others)


def test_no_two_spans_have_a_number() -> None:
    # Spans beyond 255 at a time have no number.
    spans = at_once(lambda _: [_native.begin_span() for _ in range(16)])
    numbers = [span for of_thread in spans for span in of_thread]
    assert len(set(numbers)) == THREADS * 16

    def end(number: int) -> None:
        for span in spans[number]:
            _native.end_span(span)

    at_once(end)


def test_threads_replay_one_trace_as_one_thread_does(sample: Path) -> None:
    trace = tenure.trace.load(sample)

    def replay(_: int) -> list[tuple[int, tenure.trace.DriverCalls]]:
        outcomes = tenure.trace.replay(trace, ["native", "paged"])
        return [(outcome.peak_reserved_bytes, outcome.driver_calls) for outcome in outcomes]

    assert at_once(replay, 4) == [replay(0)] * 4


def test_threads_load_and_save_traces(sample: Path, tmp_path: Path) -> None:
    def copy(number: int) -> tuple[int, int]:
        path = tmp_path / f"{number}.ttrace"
        tenure.trace.load(sample).save(path)
        loaded = tenure.trace.load(path)
        return len(loaded), loaded.peak_requested_bytes

    trace = tenure.trace.load(sample)
    assert at_once(copy, 4) == [(len(trace), trace.peak_requested_bytes)] * 4


def test_errors_are_raised_in_the_thread_that_made_them(tmp_path: Path) -> None:
    def fail(number: int) -> str:
        with pytest.raises(tenure.TraceError) as raised:
            tenure.trace.load(tmp_path / f"missing{number}.pickle")
        return str(raised.value)

    for number, words in enumerate(at_once(fail)):
        assert f"missing{number}.pickle" in words


def test_threads_ask_for_devices() -> None:
    first, *others = at_once(lambda _: tenure.devices().cpu.name)
    assert others == [first] * (THREADS - 1)
