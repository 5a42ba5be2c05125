"""Pages of other sites, in a browser on the server's host, can use no call of the server; its own page can."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from .serving import serving
from .test_page import Browser, browser, is_live, post, pytestmark

__all__ = ["browser", "pytestmark"]

# A name that stands for this host in the tests' browser, as a site can make its own do (DNS rebinding).
REBOUND = "rebound.example"

# Values of the parameters in the paths of calls.
PARAMETERS = {"model": "digits", "version": "1", "region": "r"}

HEALTH = ("/health", "/healthz", "/v2/health/live", "/v2/health/ready")

# Sends a request, and returns its status: 0 if the browser shows none.
FETCH = """
const [url, method, mode, type] = arguments;
const options = { method, mode, cache: "no-store" };
if (method === "POST") options.body = new Blob(["{}"], { type });
if (method === "POST" && mode === "cors") options.headers = { "Content-Type": type };
return fetch(url, options).then((answer) => answer.status, () => 0);
"""

# Submits a form whose body reads as JSON, into a frame.
SUBMIT = """
const form = document.createElement("form");
const frame = document.createElement("iframe");
frame.name = `frame ${document.forms.length}`;
Object.assign(form, { action: arguments[0], method: "POST", enctype: "text/plain", target: frame.name });
const field = document.createElement("input");
Object.assign(field, { name: '{"x": "', value: '"}' });
form.append(field);
document.body.append(frame, form);
const loaded = new Promise((done) => (frame.onload = done));
form.submit();
return loaded.then(() => null);
"""


class Page(BaseHTTPRequestHandler):
    """Answers with an empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!DOCTYPE html><title>Another site</title>")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def other_site() -> Iterator[str]:
    """The address of a page of another site."""
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def state(address: str) -> Any:
    """Returns the state of the model that the other site tries to unload."""
    index = post(f"http://{address}/v2/repository/index", {})
    return next(model["state"] for model in index if model["name"] == "digits")


def calls(address: str) -> list[tuple[str, str]]:
    """Returns the method and path of each call of the server."""
    with urllib.request.urlopen(f"http://{address}/openapi.json") as answer:
        paths = json.load(answer)["paths"]
    methods = ("get", "post")
    return [(name.upper(), path.format(**PARAMETERS)) for path in paths for name in methods if name in paths[path]]


def check_refused(browser: Browser, address: str, server: str) -> None:
    """Tries each call from the open page, and checks that no answer can be read and nothing has changed."""
    for method, path in calls(address):
        for mode in "cors", "no-cors":
            # A page needs no permission to send the first three; it asks for that of the last one, and gets none.
            types = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json"]
            for media_type in types if method == "POST" else [""]:
                status = browser.run(FETCH, server + path, method, mode, media_type)
                assert status == 0, (method, path, mode, media_type)
    for path in ("load", "unload"):
        browser.run(SUBMIT, f"{server}/v2/repository/models/digits/{path}")
    assert state(address) == "READY"


def test_a_page_of_another_site_can_use_no_call(models: Path, browser: Browser, other_site: str) -> None:
    with serving(models) as address:
        port = address.rsplit(":", 1)[1]
        browser.open(other_site)
        for server in f"http://{address}", f"http://localhost:{port}", f"http://{REBOUND}:{port}":
            check_refused(browser, address, server)


def test_a_page_at_a_name_that_stands_for_the_server_gets_no_answer(models: Path, browser: Browser) -> None:
    with serving(models) as address:
        port = address.rsplit(":", 1)[1]
        # The page at this name is the server's own answer, so the calls below are of the same origin.
        browser.open(f"http://{REBOUND}:{port}/")
        for method, path in calls(address):
            status = browser.run(FETCH, path, method, "cors", "application/json")
            # Kubernetes and others ask for the server's health by any name.
            assert status == (200 if path in HEALTH else 421), (method, path)
        assert state(address) == "READY"


def test_the_servers_own_page_can_use_it(models: Path, browser: Browser) -> None:
    with serving(models) as address:
        port = address.rsplit(":", 1)[1]
        for server in f"http://{address}/", f"http://localhost:{port}/":
            browser.open(server)
            browser.wait_for(is_live)
            for path in "unload", "load":
                call = f"/v2/repository/models/digits/{path}"
                assert browser.run(FETCH, call, "POST", "cors", "application/json") == 200
