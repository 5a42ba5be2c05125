"""The page of `tenure trace report`, as a browser shows it."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving import PROGRAM
from test_page import Browser, browser, pytestmark

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
    """A large block that stays, and others over it that come and go."""
    events = [event("segment_alloc", 0, 64 * MIB * 40, 0), event("alloc", 0, 60 * MIB, 1, "weights", HOSTILE)]
    for number in range(1, 31):
        events.append(event("alloc", number, MIB, 2 * number, "forward", "main"))
        if number > 10:
            freed = event("free_requested", number - 10, MIB, 2 * number + 1)
            events += [freed, {**freed, "action": "free_completed"}]
    events.append({"action": "oom", "device_free": 5, "size": 99, "stream": 0, "time_us": 90_000})
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))


def page_when(browser: Browser, is_so: Callable[[Any], bool]) -> Any:
    """The page, when it shows something."""
    for _ in range(3000):
        # A frame later, what was asked for is drawn.
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


@pytest.mark.skipif("TENURE_LONG_PAGE" not in os.environ, reason="TENURE_LONG_PAGE names no page to time")
def test_a_long_history_loads_in_seconds(browser: Browser, tmp_path: Path) -> None:
    """Times the page of a large snapshot, such as `scripts/snapshots` writes."""
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
