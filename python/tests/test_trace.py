"""Traces: reading, writing, replaying and reporting them; and Ctrl-C meanwhile."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tenure


class Hostile:
    """A class that would run a program if Python unpickled it."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


def test_a_trace_says_what_it_is(sample: Path) -> None:
    trace = tenure.trace.load(sample)
    assert trace.name == "resnet50_step"
    assert trace.device == 0
    assert trace.settings == ""
    assert len(trace) == 2914
    assert trace.allocations == 1259
    assert trace.peak_requested_bytes == 5_954_812_784
    assert trace.duration_us == 955_324
    assert trace.ooms == 0
    assert trace.segments > 0
    assert trace.streams


def test_events_are_a_structured_array(sample: Path) -> None:
    np = pytest.importorskip("numpy", reason="NumPy is not installed")
    trace = tenure.trace.load(sample)
    events = trace.events()
    assert len(events) == len(trace)
    assert events.dtype.names == ("time_us", "address", "bytes", "stream", "action")
    assert not events.flags.writeable
    assert (np.diff(events["time_us"].astype(np.int64)) >= 0).all()

    alloc, completed = (tenure.trace.ACTIONS.index(name) for name in ("alloc", "free_completed"))
    assert (events["action"] == alloc).sum() == trace.allocations
    change = np.where(events["action"] == alloc, 1, np.where(events["action"] == completed, -1, 0))
    live = np.cumsum(events["bytes"].astype(np.int64) * change)
    assert live.max() == trace.peak_requested_bytes
    assert live[-1] == trace.live_at_end_bytes


def test_events_are_those_of_the_pickle(sample: Path) -> None:
    pytest.importorskip("numpy", reason="NumPy is not installed")
    recorded = pickle.loads(lzma.decompress(sample.read_bytes()))["device_traces"][0]
    events = tenure.trace.load(sample).events()
    for event, entry in zip(events, recorded, strict=True):
        assert tenure.trace.ACTIONS[event["action"]] == entry["action"]
        assert (event["address"], event["bytes"], event["stream"]) == (entry["addr"], entry["size"], entry["stream"])


@pytest.mark.parametrize("name", ["a.ttrace", "a.pickle", "a.pickle.xz", "a.pickle.gz"])
def test_a_saved_trace_is_loaded(sample: Path, tmp_path: Path, name: str) -> None:
    trace = tenure.trace.load(sample)
    path = tmp_path / name
    trace.save(path)
    again = tenure.trace.load(os.fspath(path))
    assert again._native.events() == trace._native.events()


def test_a_file_that_lacks_something_is_warned_of(tmp_path: Path) -> None:
    snapshot = Path(__file__).parents[2] / "crates/tenure-plan/tests/data/with_stack.pickle"
    trace = tenure.trace.load(snapshot)
    trace.save(tmp_path / "a.pickle")
    with pytest.warns(UserWarning, match=r"a\.ttrace: .* it lacks 1 call stacks, 1 segments"):
        trace.save(tmp_path / "a.ttrace")


def test_the_format_is_told_by_the_content(sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(gzip.compress(lzma.decompress(sample.read_bytes())))
    assert len(tenure.trace.load(path)) == 2914


def test_paths_are_bytes_too(sample: Path, tmp_path: Path) -> None:
    trace = tenure.trace.load(os.fsencode(sample))
    trace.save(os.fsencode(tmp_path / "a.ttrace"))
    tenure.trace.report(trace, os.fsencode(tmp_path / "a.html"))
    assert {path.name for path in tmp_path.iterdir()} == {"a.ttrace", "a.html"}


@pytest.mark.parametrize(
    ("write", "without_folder", "of_a_folder"),
    [
        (tenure.trace.Trace.save, "there is no folder {folder}", "it is not a regular file"),
        (tenure.trace.report, "No such file or directory (os error 2)", "Is a directory (os error 21)"),
    ],
)
def test_a_file_that_can_not_be_written_is_named_and_nothing_is_left(
    sample: Path,
    tmp_path: Path,
    write: Callable[[tenure.trace.Trace, Path], None],
    without_folder: str,
    of_a_folder: str,
) -> None:
    trace, folder = tenure.trace.load(sample), tmp_path / "folder.ttrace"
    folder.mkdir()
    missing = tmp_path / "missing"
    reasons = {missing / "a.ttrace": without_folder.format(folder=missing), folder: of_a_folder}
    for path, reason in reasons.items():
        with pytest.raises(tenure.TraceError, match=f"^{re.escape(f'{path}: {reason}')}$"):
            write(trace, path)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_name_without_a_format_is_refused(sample: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must end in one of .ttrace, .pickle, .pickle.xz, .pickle.gz"):
        tenure.trace.load(sample).save(tmp_path / "trace")
    assert not any(tmp_path.iterdir())


def test_nothing_in_a_pickle_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hostile.pickle").write_bytes(pickle.dumps({"device_traces": [[Hostile()]], "segments": []}))
    with pytest.raises(tenure.TraceError, match="refused: the pickle"):
        tenure.trace.load("hostile.pickle")
    assert not Path("executed").exists()


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.pickle"
    path.write_bytes(b"\x80\x04")
    with pytest.raises(tenure.TraceError, match="broken.pickle: ") as caught:
        tenure.trace.load(path)
    assert isinstance(caught.value, tenure.Error)


def test_a_replay_has_the_figures_of_the_program(sample: Path) -> None:
    native, expandable, paged = tenure.trace.replay(sample)
    assert [native.allocator, expandable.allocator, paged.allocator] == list(tenure.trace.ALLOCATORS)
    assert native.mismatched_addresses == 0, "every block is where PyTorch put it"
    assert paged.mismatched_addresses is None
    for outcome in (native, expandable, paged):
        assert outcome.peak_requested_bytes == 5_954_812_784
        assert outcome.peak_requested_bytes <= outcome.peak_allocated_bytes <= outcome.peak_reserved_bytes
        assert outcome.device is None
    assert paged.peak_reserved_bytes < native.peak_reserved_bytes


def test_a_replay_can_be_repeated(sample: Path) -> None:
    once, thrice = (tenure.trace.replay(sample, "paged", repeat=times) for times in (1, 3))
    assert once.driver_calls == once.driver_calls_last_repeat
    assert sum(vars(thrice.driver_calls_last_repeat).values()) == 0, "the third pass asks the driver for nothing"


def test_a_lag_keeps_memory_from_other_streams(sample: Path) -> None:
    trace = tenure.trace.load(sample)
    prompt, late = (tenure.trace.replay(trace, "paged", lag_us=lag) for lag in (0, 1_000_000))
    assert prompt.peak_reserved_bytes <= late.peak_reserved_bytes


def test_an_allocator_that_is_not_known_is_named(sample: Path) -> None:
    with pytest.raises(ValueError, match='unknown allocator "best": expected one of "native", "expandable", "paged"'):
        tenure.trace.replay(sample, "best")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"repeat": 0}, "repeat=0: expected a whole number from 1 to 4294967295"),
        ({"repeat": -1}, "repeat=-1: expected a whole number from 1"),
        ({"lag_us": -1}, "lag_us=-1: expected a whole number from 0"),
        ({"lag_us": 1 << 64}, "lag_us=18446744073709551616: expected a whole number from 0"),
        ({"device": -1}, "device=-1: expected a whole number from 0"),
        ({"device": 1}, 'device is for driver="cuda"'),
    ],
)
def test_a_number_that_makes_no_sense_is_named(sample: Path, wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        tenure.trace.replay(sample, "paged", **wrong)


def test_a_device_below_0_is_no_device_of_a_file(sample: Path) -> None:
    with pytest.raises(ValueError, match="device=-1: expected a whole number from 0"):
        tenure.trace.load(sample, device=-1)


def test_a_value_that_is_not_a_number_is_named(sample: Path) -> None:
    with pytest.raises(TypeError, match="repeat=1.5: expected a whole number"):
        tenure.trace.replay(sample, "paged", repeat=1.5)  # type: ignore[call-overload]


def test_a_real_device_has_no_lag(sample: Path) -> None:
    with pytest.raises(ValueError, match="the work of a real device ends when it ends"):
        tenure.trace.replay(sample, "paged", driver="cuda", lag_us=1)


def test_a_device_that_is_not_there_is_named(sample: Path) -> None:
    devices = tenure.devices()
    for device in (len(devices), 300):
        with pytest.raises(tenure.DeviceError) as caught:
            tenure.trace.replay(sample, "paged", driver="cuda", device=device)
        assert str(caught.value) == devices.unavailable or f"no device {device}:" in str(caught.value)


def test_a_replay_on_the_gpu_says_what_the_device_counts(sample: Path) -> None:
    if unavailable := tenure.devices().unavailable:
        pytest.skip(f"no GPU: {unavailable}")
    outcome = tenure.trace.replay(sample, "paged", driver="cuda")
    assert outcome.device is not None
    assert outcome.device.blocks_checked > 0
    assert {call.call for call in outcome.device.calls} >= {"cuMemCreate", "cuMemMap"}


def test_a_report_is_one_html_file(sample: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    tenure.trace.report(sample, page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and text.rstrip().endswith("</html>")
    assert "resnet50_step" in text
    # The page loads nothing from elsewhere.
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)


@pytest.mark.parametrize("call", ["load", "facts", "events", "save", "replay", "report"])
def test_other_threads_run_meanwhile(sample: Path, tmp_path: Path, no_forced_thread_switches: None, call: str) -> None:
    trace = tenure.trace.load(sample)._native
    calls: dict[str, Callable[[], object]] = {
        "load": lambda: type(trace).load(sample, None),
        "facts": trace.facts,
        "events": trace.events,
        "save": lambda: trace.save(tmp_path / "a.pickle"),
        "replay": lambda: trace.replay("paged", 1, 0, "sim", 0),
        "report": trace.report,
    }
    turns, over = 0, False

    def other() -> None:
        nonlocal turns
        while not over:
            turns += 1
            time.sleep(0)  # noqa: TID251 (polls)

    def had_a_turn() -> bool:
        before = turns
        calls[call]()
        return turns > before

    thread = threading.Thread(target=other)
    thread.start()
    try:
        # The thread that waits for the lock may wake too late for a short call, or for many. The limit is for a call
        # that keeps the lock.
        limit = time.monotonic() + 300  # noqa: TID251 (polls)
        while not had_a_turn():
            assert time.monotonic() < limit, "other threads never ran during the call"  # noqa: TID251 (polls)
    finally:
        over = True
        thread.join()


def test_ctrl_c_ends_a_replay_and_the_next_one_works(sample: Path) -> None:
    program = f"""
import sys, threading
import tenure
trace = tenure.trace.load({os.fspath(sample)!r})
# The thread speaks when this one gives up Python's lock, which is in the replay.
sys.setswitchinterval(1000)
begins = threading.Event()
threading.Thread(target=lambda: begins.wait() and print("replays", flush=True)).start()
try:
    begins.set()
    tenure.trace.replay(trace, "paged", repeat=1_000_000)
except KeyboardInterrupt:
    print(tenure.trace.replay(trace, "paged").host_syncs)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "replays\n"
        process.send_signal(signal.SIGINT)
        try:
            out, _ = process.communicate(timeout=300)
        finally:
            process.kill()
    assert json.loads(out) == 0
    assert process.returncode == 0
