"""The page of `tenure serve`, as a browser shows it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from .serving import needs_program, serving

CHROMIUM = shutil.which("chromium")
CHROMEDRIVER = shutil.which("chromedriver")

pytestmark = [
    needs_program,
    pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="chromium and chromedriver are not installed"),
]

ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)

# A script that returns all that a reader sees on the page, by name.
READ = """
const text = (element) => element.innerText.trim();
const all = (selector) => [...document.querySelectorAll(selector)];
const columns = all('thead th').map(text);
const cells = (row) => Object.fromEntries([...row.cells].map((cell, at) => [columns[at], text(cell)]));
return {
    title: text(document.querySelector('h1')),
    link: text(document.querySelector('#link')),
    asksForToken: !document.querySelector('#token').hidden,
    switches: all('#switches li b').map(text),
    lines: all('tbody tr').filter((row) => row.querySelector('polyline')).map((row) => text(row.cells[0])),
    ground: getComputedStyle(document.body).backgroundColor,
    facts: Object.fromEntries(all('dl div').map((fact) => [...fact.children].map(text))),
    tiers: all('meter').map((meter) => ({ text: text(meter.parentElement), filled: meter.value / meter.max })),
    models: Object.fromEntries(all('tbody tr').map((row) => [text(row.cells[0]), cells(row)])),
    colors: Object.fromEntries(all('td[class]').map((cell) => [text(cell), getComputedStyle(cell).color])),
    overflow: document.documentElement.scrollWidth - innerWidth,
};
"""


def milliseconds(text: str) -> float:
    return float(text.removesuffix(" ms"))


def post(url: str, body: object) -> Any:
    """Posts a body as JSON, and returns the answer's JSON."""
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=300) as answer:
        return json.load(answer)


class Browser:
    """A window of a headless Chromium, driven through WebDriver."""

    def __init__(self, driver: str, profile: Path) -> None:
        # Names of other sites stand for this host.
        resolver = "--host-resolver-rules=MAP *.example 127.0.0.1"
        arguments = [*ARGUMENTS.split(), resolver, f"--user-data-dir={profile}"]
        options = {"browserName": "chrome", "goog:chromeOptions": {"binary": CHROMIUM, "args": arguments}}
        session = post(f"{driver}/session", {"capabilities": {"alwaysMatch": options}})["value"]["sessionId"]
        self._session = f"{driver}/session/{session}"

    def open(self, url: str) -> None:
        post(f"{self._session}/url", {"url": url})

    def resize(self, width: int) -> None:
        """Sets the page's width, which may be a phone's, narrower than a window can be."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self._command("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Sets the preferred colour scheme, light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._command("Emulation.setEmulatedMedia", {"features": features})

    def forbid_scripts(self) -> None:
        self._command("Emulation.setScriptExecutionDisabled", {"value": True})

    def enter_token(self, token: str) -> None:
        script = """
        document.querySelector('#secret').value = arguments[0];
        document.querySelector('#token').requestSubmit();
        """
        self.run(script, token)

    def screenshot(self, path: Path) -> None:
        """Writes a PNG of the whole page."""
        picture = self._command("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(picture["data"]))

    def complaints(self) -> list[str]:
        """Returns the browser's errors about the page since the last call, such as violations of its policy."""
        entries = post(f"{self._session}/se/log", {"type": "browser"})["value"]
        return [entry["message"] for entry in entries]

    def _command(self, name: str, params: Mapping[str, object]) -> Any:
        return post(f"{self._session}/goog/cdp/execute", {"cmd": name, "params": params})["value"]

    def run(self, script: str, *args: object) -> Any:
        """Runs a script in the page, and returns its result."""
        return post(f"{self._session}/execute/sync", {"script": script, "args": args})["value"]

    def input(self, kind: str, **params: object) -> None:
        """Sends an event of the mouse or the keyboard, such as `MouseEvent`."""
        self._command(f"Input.dispatch{kind}", params)

    def read(self) -> Any:
        return self.run(READ)

    def wait_for(self, is_so: Callable[[Any], bool]) -> Any:
        """Waits until `is_so` holds for the page's content, and returns the content."""
        end = time.monotonic() + 300  # noqa: TID251 (polls)
        while not is_so(page := self.read()):
            assert time.monotonic() < end, page  # noqa: TID251 (polls)
            time.sleep(0.1)  # noqa: TID251 (polls)
        return page

    def close(self) -> None:
        urlopen(Request(self._session, method="DELETE"), timeout=300).close()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    driver = subprocess.Popen([str(CHROMEDRIVER), "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        started = next(line for line in driver.stdout if "successfully on port" in line)
        port = started.rsplit(" ", 1)[1].strip(" .\n")
        browser = Browser(f"http://127.0.0.1:{port}", tmp_path / "profile")
        yield browser
        browser.close()
    finally:
        driver.terminate()
        driver.wait()


def ask(address: str, model: str, name: str, datatype: str, shape: list[int], data: list[float]) -> None:
    tensor = {"name": name, "datatype": datatype, "shape": shape, "data": data}
    assert post(f"http://{address}/v2/models/{model}/infer", {"inputs": [tensor]})["model_name"] == model


def ask_digits(address: str) -> None:
    ask(address, "digits", "image", "FP32", [1, 1, 28, 28], [0.5] * 784)


def answered(page: Any) -> int:
    return int(page["facts"]["Requests answered"])


def is_live(page: Any) -> bool:
    return bool(page["link"] == "live")


def test_the_page_shows_what_the_server_does_while_it_does_it(models: Path, browser: Browser) -> None:
    with serving(models, "--device-bytes", "2000000") as address:
        browser.open(f"http://{address}/")
        idle = browser.read()
        assert idle["title"] == "Tenure serves"
        assert idle["facts"]["Models ready"] == "3 of 3" and answered(idle) == 0
        assert [tier["text"] for tier in idle["tiers"]] == ["dram: 0.0 kB of 2.0 MB"]
        assert set(idle["models"]) == {"digits", "next-byte", "tiny-sentences"}
        for model in idle["models"].values():
            assert model["State"] == "ready"
            assert (model["Weights"], model["Answered"], model["Switches"], model["Median"]) == ("–", "0", "0", "–")
        live = browser.wait_for(is_live)
        assert live["switches"] == []

        for _ in range(5):
            ask_digits(address)
        ask(address, "next-byte", "tokens", "INT64", [1, 3], [1, 2, 3])
        # The page updates without a reload.
        busy = browser.wait_for(lambda page: answered(page) == 6)
        assert (busy["facts"]["Requests waiting"], busy["facts"]["Switches"]) == ("0", "2")
        (tier,) = busy["tiers"]
        assert tier["text"] == "dram: 1.2 MB of 2.0 MB" and 0.6 < tier["filled"] < 0.63
        digits = busy["models"]["digits"]
        assert (digits["Weights"], digits["Answered"], digits["Switches"]) == ("727.3 kB on dram", "5", "1")
        assert 0 < milliseconds(digits["Median"]) <= milliseconds(digits["p99"])
        assert busy["models"]["tiny-sentences"] == live["models"]["tiny-sentences"]
        assert (busy["switches"], sorted(busy["lines"])) == (["next-byte", "digits"], ["digits", "next-byte"])

        post(f"http://{address}/v2/repository/models/digits/unload", {})
        unloaded = browser.wait_for(lambda page: page["facts"]["Models ready"] == "2 of 3")
        digits = unloaded["models"]["digits"]
        assert (digits["State"], digits["Weights"], digits["Answered"]) == ("unavailable", "–", "5")
        assert unloaded["colors"]["unavailable"] != unloaded["colors"]["ready"]
        assert "501.0 kB" in unloaded["tiers"][0]["text"]
        assert browser.complaints() == []


def test_the_page_connects_again_when_the_server_is_back(models: Path, browser: Browser) -> None:
    with serving(models) as address:
        ask_digits(address)
        browser.open(f"http://{address}/")
        browser.wait_for(lambda page: is_live(page) and answered(page) == 1)
    # The page still shows the last state.
    away = browser.wait_for(lambda page: page["link"] == "connecting again")
    assert answered(away) == 1
    with serving(models, listen=address):
        browser.wait_for(lambda page: is_live(page) and answered(page) == 0)


def test_the_page_asks_for_a_token(models: Path, browser: Browser, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("open sesame\n")
    with serving(models, "--tokens", str(tokens)) as address:
        browser.open(f"http://{address}/")
        locked = browser.wait_for(lambda page: page["asksForToken"])
        assert (locked["models"], locked["facts"]) == ({}, {})
        browser.enter_token("sesame")
        assert browser.wait_for(lambda page: page["asksForToken"])["models"] == {}
        browser.enter_token("open sesame")
        opened = browser.wait_for(is_live)
        assert set(opened["models"]) == {"digits", "next-byte", "tiny-sentences"} and not opened["asksForToken"]


def test_the_page_is_a_table_without_scripts(models: Path, browser: Browser) -> None:
    with serving(models) as address:
        ask_digits(address)
        browser.forbid_scripts()
        browser.open(f"http://{address}/")
        page = browser.read()
        assert answered(page) == 1 and page["models"]["digits"]["Answered"] == "1"
        assert page["switches"] == ["digits"] and not page["asksForToken"]
        # Without scripts, the page reloads itself.
        ask_digits(address)
        browser.wait_for(lambda page: answered(page) == 2)


@pytest.mark.parametrize("width", [375, 800, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_window_is_wide_enough(models: Path, browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    with serving(models) as address:
        for _ in range(3):
            ask_digits(address)
        browser.resize(width)
        browser.prefer(scheme)
        browser.open(f"http://{address}/")
        page = browser.wait_for(is_live)
        browser.screenshot(tmp_path / f"page-{scheme}-{width}.png")
        assert page["overflow"] <= 0
        assert (page["ground"] == "rgb(255, 255, 255)") == (scheme == "light")
