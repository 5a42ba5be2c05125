"""Peaks of PyTorch's memory snapshots, compared with a second reader that shares no code with Tenure's.

``TENURE_SNAPSHOTS`` names a folder of further snapshots to compare.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import tenure

FOLDERS = ["tests/data", "crates/tenure-plan/tests/data", "../shared/traces", "../shared/cases/traces"]
FOLDERS += [os.path.abspath(folder) for folder in [os.environ.get("TENURE_SNAPSHOTS")] if folder]

Event = dict[str, Any]


# NumPy's modules have two names, by its version.
PLAIN = {(f"numpy.{core}.multiarray", "scalar") for core in ("core", "_core")}
PLAIN |= {(module, name) for module in ("__builtin__", "builtins") for name in ("int", "long", "list")}
PLAIN |= {("collections", "OrderedDict"), ("collections", "defaultdict"), ("_codecs", "encode"), ("numpy", "dtype")}


class PlainUnpickler(pickle.Unpickler):
    """Unpickles dicts, lists, text and numbers. It runs nothing else, so that snapshots from strangers can be
    compared."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in PLAIN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a snapshot does not need {module}.{name}")


def unpickled(path: Path) -> Any:
    data = path.read_bytes()
    if path.suffix == ".xz":
        data = lzma.decompress(data)
    elif path.suffix == ".gz":
        data = gzip.decompress(data)
    return PlainUnpickler(io.BytesIO(data)).load()


def live_at_end(snapshot: dict[str, Any], device: int) -> dict[int, int]:
    """Returns the sizes of the blocks that the segments of `device` list as not free, by address."""
    live = {}
    for segment in snapshot["segments"]:
        if segment["device"] != device:
            continue
        following = segment["address"]
        for block in segment["blocks"]:
            # PyTorch before 2.1 writes neither addresses nor requested sizes.
            address = block.get("address", following)
            following = address + block["size"]
            if block["state"] in ("active_allocated", "active_pending_free"):
                live[address] = block.get("requested_size", block["size"])
    return live


def peak_bytes(events: list[Event], at_end: dict[int, int]) -> int:
    """Returns the most bytes that were live at once.

    A block was live before the history if the history frees it without having allocated it, or if it is live at the end
    and the history does not name it. It counts from the start.
    """
    # A recorder that leaves out `free_completed` records only the requests of frees.
    completes = any(event["action"] == "free_completed" for event in events)
    last = {event.get("addr"): event for event in events if event["action"] in ("alloc", "free_requested")}
    live: dict[int, int] = {}
    named: set[int] = set()
    before = now = most = 0
    for event in events:
        action = event["action"]
        if action == "alloc":
            live[event["addr"]] = event["size"]
            now += event["size"]
            most = max(most, now)
        elif action in ("free_requested", "free_completed"):
            if event["addr"] not in live:
                live[event["addr"]] = event["size"]
                before += event["size"]
            pending = last.get(event["addr"]) is event and at_end.get(event["addr"]) == event["size"]
            if action == "free_completed" or not completes and not pending:
                now -= live.pop(event["addr"])
        else:
            continue
        named.add(event["addr"])
    return before + sum(size for address, size in at_end.items() if address not in named) + most


@pytest.mark.parametrize("folder", FOLDERS)
def test_peaks_are_those_of_another_reading(folder: str) -> None:
    if not Path(folder).is_dir():
        pytest.skip(f"no folder {folder}")
    paths = [path for path in sorted(Path(folder).iterdir()) if {".pickle", ".pkl"} & set(path.suffixes)]
    assert paths, f"no snapshots in {folder}"
    wrong = {path.name: difference for path in paths if (difference := compare(path))}
    assert not wrong


def compare(path: Path) -> str:
    """Returns the difference between both readings of a snapshot; empty if there is none."""
    snapshot = unpickled(path)
    # A list of segments has no history.
    if isinstance(snapshot, list):
        return ""
    histories = {device: events for device, events in enumerate(snapshot["device_traces"]) if events}
    expected = {device: peak_bytes(events, live_at_end(snapshot, device)) for device, events in histories.items()}
    try:
        found = {device: tenure.trace.load(path, device=device).peak_requested_bytes for device in expected}
        busiest = tenure.trace.load(path).peak_requested_bytes
    except tenure.TraceError as error:
        return "" if not expected and "it holds no events" in str(error) else str(error)
    if (found, busiest) == (expected, max(expected.values(), default=None)):
        return ""
    return f"Tenure reads {found}, and {busiest} without a device; expected {expected}"
