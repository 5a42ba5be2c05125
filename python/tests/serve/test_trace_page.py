"""The page of `tenure trace report`, as a browser shows it."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .serving import PROGRAM
from .test_page import Browser, browser, pytestmark

__all__ = ["browser", "pytestmark"]

MIB = 1 << 20
HOSTILE = "</script><img src=x onerror=alert(1)>"

READ = """
const find = (id) => document.getElementById(id);
find('timeline').scrollIntoView();
const place = find('timeline').getBoundingClientRect();
return {
    canvas: { ...find('timeline').dataset },
    about: find('about').innerText,
    found: find('found').textContent,
    held: find('held').textContent,
    unshown: find('unshown').hidden ? '' : find('unshown').textContent,
    place: { x: place.x, y: place.y, width: place.width, height: place.height },
    overflow: document.documentElement.scrollWidth - innerWidth,
    loadedMs: performance.getEntriesByType('navigation')[0].loadEventEnd,
    images: document.images.length,
};
"""


def frame(name: str) -> dict[str, object]:
    return {"name": name, "filename": f"/models/{name}.py", "line": 7}


def event(action: str, number: int, size: int, at: int, *names: str) -> dict[str, object]:
    address = (1 << 40) + number * 64 * MIB
    frames = [frame(name) for name in names]
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1000 * at, "frames": frames}


def snapshot(path: Path) -> None:
    """Writes a snapshot of a large block that stays, and others above it that come and go."""
    events = [event("segment_alloc", 0, 64 * MIB * 40, 0), event("alloc", 0, 60 * MIB, 1, "weights", HOSTILE)]
    for number in range(1, 31):
        events.append(event("alloc", number, MIB, 2 * number, "forward", "main"))
        if number > 10:
            freed = event("free_requested", number - 10, MIB, 2 * number + 1)
            events += [freed, {**freed, "action": "free_completed"}]
    events.append({"action": "oom", "device_free": 5, "size": 99, "stream": 0, "time_us": 90_000})
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))


def page_when(browser: Browser, is_so: Callable[[Any], bool]) -> Any:
    """Waits until `is_so` holds for the page's content, and returns the content."""
    for _ in range(3000):
        # The page draws a request one frame later.
        browser.run("return document.readyState")
        if is_so(page := browser.run(READ)):
            return page
    pytest.fail(f"{page}")


def click(browser: Browser, page: Any, x: float, y: float) -> None:
    place = page["place"]
    point = {"x": place["x"] + x * place["width"], "y": place["y"] + y * place["height"]}
    for kind in ["mousePressed", "mouseReleased"]:
        browser.input("MouseEvent", type=kind, button="left", clickCount=1, **point)


def opened(browser: Browser, path: Path) -> Any:
    browser.resize(1280)
    browser.open(path.as_uri())
    page = page_when(browser, lambda page: page["unshown"] or "readyMs" in page["canvas"])
    assert page["unshown"] == "" and browser.complaints() == []
    return page


def test_a_block_shows_its_stack_and_is_found_by_it(browser: Browser, tmp_path: Path) -> None:
    snapshot(tmp_path / "steps.pickle")
    report = tmp_path / "steps.html"
    subprocess.run([PROGRAM, "trace", "report", tmp_path / "steps.pickle", "-o", report], check=True)
    page = opened(browser, report)
    assert page["overflow"] <= 0 and "firstMs" in page["canvas"]
    assert "1 segment of 2.68 GB" in page["held"] and "74.4 MB" in page["held"]

    click(browser, page, 0.5, 0.8)
    page = page_when(browser, lambda page: "weights" in page["about"])
    assert "62.9 MB (62,914,560 bytes)" in page["about"] and "/models/weights.py:7" in page["about"]
    assert HOSTILE in page["about"] and page["images"] == 0

    search = """
    const box = document.getElementById('search');
    box.value = arguments[0];
    box.dispatchEvent(new Event('input'));
    """
    browser.run(search, "Forward.py")
    page = page_when(browser, lambda page: page["found"])
    assert page["found"] == "30 blocks of 31.5 MB together, at most 11.5 MB at once"

    whole = page["canvas"]
    place = page["place"]
    middle = {"x": place["x"] + place["width"] / 2, "y": place["y"] + 100}
    browser.input("MouseEvent", type="mouseWheel", deltaX=0, deltaY=-400, **middle)
    zoomed = page_when(browser, lambda page: page["canvas"]["from"] != whole["from"])
    length = int(zoomed["canvas"]["to"]) - int(zoomed["canvas"]["from"])
    assert 4 <= length < int(whole["to"]) - int(whole["from"])
    browser.run("document.getElementById('timeline').focus()")
    browser.input("KeyEvent", type="keyDown", key="Home")
    page_when(browser, lambda page: page["canvas"]["from"] == whole["from"] and page["canvas"]["to"] == whole["to"])
    assert browser.complaints() == []


def report(browser: Browser, folder: Path, events: list[dict[str, object]], *options: str, **rest: object) -> Any:
    """Opens the report of a snapshot of these events."""
    snapshot = {"segments": [], "device_traces": [events], **rest}
    (folder / "s.pickle").write_bytes(pickle.dumps(snapshot))
    command: list[str | Path] = [PROGRAM, "trace", "report", folder / "s.pickle", "-o", folder / "s.html", *options]
    subprocess.run(command, check=True, capture_output=True)
    return opened(browser, folder / "s.html")


def holds(part: str, text: str, page: Any) -> bool:
    return text in page[part]


def go_to(browser: Browser, event: int) -> None:
    move = "const moment = find('moment'); moment.value = arguments[0]; moment.dispatchEvent(new Event('input'));"
    browser.run(f"const find = (id) => document.getElementById(id); {move}", event)


def passing_blocks(count: int, gaps_ms: dict[int, int], number: int = 1) -> list[dict[str, object]]:
    """Returns the events of blocks that are freed at once: one event per ms, with `gaps_ms` before some of the
    blocks."""
    events, at = [], 0
    for block in range(count):
        at += gaps_ms.get(block, 0)
        events.append(event("alloc", number, MIB, at, f"step{block % 7}"))
        events.append(event("free_completed", number, MIB, at + 1, "free"))
        at += 2
    return events


def test_the_time_of_an_event_is_right_beside_a_pause(browser: Browser, tmp_path: Path) -> None:
    pause = passing_blocks(30_000, {10_000: 60_000})
    report(browser, tmp_path, [event("segment_alloc", 0, 64 * MIB * 40, 0), *pause])
    # The trace also has the requests of the frees, which the recorder left out: two events a block became three.
    for shown, time in [(29_998, "19.9980 s"), (30_001, "80.0000 s"), (30_004, "80.0020 s")]:
        go_to(browser, shown)
        page_when(browser, partial(holds, "held", f"At event {shown:,} ({time})"))


def test_times_that_are_not_exact_are_said_to_be_about_right(browser: Browser, tmp_path: Path) -> None:
    uneven = {block: 1 + block * block % 97 for block in range(30_000)}
    events = passing_blocks(30_000, uneven)
    report(browser, tmp_path, [event("segment_alloc", 0, 64 * MIB * 40, 0), *events], "--page-size", "330kB")
    go_to(browser, 60_000)
    page = page_when(browser, lambda page: "At event 60,000 " in page["held"])
    told = page["held"].split("(about ")[1].split(" s)")[0]
    exact = float(events[2 * 19_999 + 1]["time_us"]) / 1e6  # type: ignore[arg-type]
    place = 10.0 ** -len(told.partition(".")[2])
    assert abs(float(told) - exact) <= 1.5 * place < 1, (told, exact)


def test_blocks_outside_a_part_or_before_the_history_have_no_time(browser: Browser, tmp_path: Path) -> None:
    weights = event("alloc", 0, 30 * MIB, 1, "weights")
    events = [event("segment_alloc", 0, 64 * MIB * 40, 0), weights, *passing_blocks(50, {})]
    page = report(browser, tmp_path, events, "--from", "40", "--to", "60")
    click(browser, page, 0.5, 0.8)
    page = page_when(browser, lambda page: "weights" in page["about"])
    assert "event 1, before the shown part" in page["about"] and "not in this history" in page["about"]

    live = {"address": weights["addr"], "size": 30 * MIB, "state": "active_allocated", "frames": [frame("early")]}
    segment = {"device": 0, "address": weights["addr"], "total_size": 64 * MIB, "stream": 0, "blocks": [live]}
    page = report(browser, tmp_path, passing_blocks(50, {}), segments=[segment])
    click(browser, page, 0.5, 0.8)
    page = page_when(browser, lambda page: "early" in page["about"])
    assert "before this history" in page["about"]


def test_a_click_goes_to_the_moment_that_its_column_shows(browser: Browser, tmp_path: Path) -> None:
    page = report(browser, tmp_path, passing_blocks(20_000, {}))
    for place in [0.2, 0.41, 0.63, 0.87]:
        click(browser, page, place, 0.5)
        page = page_when(browser, lambda page: page["about"])
        allocated, freed = (page["about"].split(f"{word}\n")[1].split(",")[:2] for word in ["Allocated", "Freed"])
        born, died = (int("".join(part).removeprefix("event ")) for part in [allocated, freed])
        at = int(page["held"].split("event ")[1].rstrip(".").split(" ")[0].replace(",", ""))
        assert born <= at < died, (place, born, at, died)


def test_the_sum_of_blocks_says_how_to_see_them(browser: Browser, tmp_path: Path) -> None:
    events = [
        event("alloc", number, MIB + 512 * (number * number % 9973), number, f"f{number}")
        for number in range(1, 20_000)
    ]
    page = report(browser, tmp_path, events, "--page-size", "420kB")
    click(browser, page, 0.9, 0.2)
    page = page_when(browser, lambda page: page["about"])
    assert "of blocks that this page sums. A page with --from " in page["about"] and " --to " in page["about"]
    assert "Size" not in page["about"]


def test_stacks_and_addresses_are_told_as_far_as_they_are_known(browser: Browser, tmp_path: Path) -> None:
    high = (1 << 63) + (5 << 40)
    events = [
        {**event("alloc", 1, MIB, at, "main"), "addr": high + at * MIB, "frames": [{"name": "f", "filename": "g.py"}]}
        for at in range(4)
    ]
    page = report(browser, tmp_path, events)
    click(browser, page, 0.99, 0.9)
    page = page_when(browser, lambda page: page["about"])
    assert "f  g.py" in page["about"] and "g.py:" not in page["about"] and f"0x{high:x}" in page["about"]


def test_the_keyboard_selects_blocks_and_the_bytes_zoom_to_a_limit(browser: Browser, tmp_path: Path) -> None:
    snapshot(tmp_path / "steps.pickle")
    events = pickle.loads((tmp_path / "steps.pickle").read_bytes())["device_traces"][0]
    page = report(browser, tmp_path, events)
    browser.run("document.getElementById('timeline').focus()")
    browser.input("KeyEvent", type="keyDown", key="Enter")
    page_when(browser, lambda page: "weights" in page["about"])
    browser.input("KeyEvent", type="keyDown", key="Enter")
    page_when(browser, lambda page: "forward" in page["about"])
    browser.input("KeyEvent", type="keyDown", key="Enter", modifiers=8)
    page = page_when(browser, lambda page: "weights" in page["about"])
    middle = {"x": page["place"]["x"] + 300, "y": page["place"]["y"] + 200}
    browser.input("MouseEvent", type="mouseWheel", deltaX=0, deltaY=-100_000, modifiers=8, **middle)
    page = page_when(browser, lambda page: int(page["canvas"]["bytes"]) < MIB)
    assert int(page["canvas"]["bytes"]) == 1000 and browser.complaints() == []


@pytest.mark.skipif("TENURE_LONG_PAGE" not in os.environ, reason="TENURE_LONG_PAGE names no page to time")
def test_a_long_history_loads_in_seconds(browser: Browser, tmp_path: Path) -> None:
    """Times the page of a large snapshot, of the kind that `scripts/snapshots` writes."""
    path = Path(os.environ["TENURE_LONG_PAGE"])
    page = opened(browser, path)
    ready, loaded, draw = page["canvas"]["readyMs"], page["loadedMs"], page["canvas"]["drawMs"]
    first = page["canvas"]["firstMs"]
    print(f"{path.stat().st_size} bytes: first picture after {first} ms, loaded after {loaded:.0f} ms, ", end="")
    print(f"blocks drawn after {ready} ms, of which {draw} ms drawing")
    assert int(first) <= int(ready)
    for scheme in ["light", "dark"]:
        browser.prefer(scheme)
        click(browser, page, 0.35, 0.85)
        page_when(browser, lambda page: page["about"])
        browser.screenshot(path.with_suffix(f".{scheme}.png"))
