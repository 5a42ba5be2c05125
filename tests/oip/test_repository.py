"""Checks of the model repository: its index, and models that are unloaded and loaded."""

from __future__ import annotations

from typing import Any

import pytest
from checks import REPOSITORY, check
from server import Model, Server, assert_error, good

# The most polls of the index, since a server may answer before a model is gone.
ASKED_AGAIN = 1000


def index(server: Server, body: Any) -> list[dict[str, Any]]:
    return good(server.ask("POST", "v2/repository/index", body)).json()


@check(
    "repository.index",
    REPOSITORY,
    "The index API returns information about every model available in a model repository",
)
def test_the_index_has_the_models(server: Server, model: Model) -> None:
    entries = index(server, {})
    assert model.name in {entry["name"] for entry in entries}
    for entry in entries:
        assert all(isinstance(entry.get(key, ""), str) for key in ("name", "version", "state", "reason")), entry


@check("repository.index.ready", REPOSITORY, "If true return only models ready for inferencing.")
def test_the_index_of_what_is_ready(server: Server, model: Model) -> None:
    ready = index(server, {"ready": True})
    assert model.name in {entry["name"] for entry in ready}
    assert all(entry.get("state", "READY") == "READY" for entry in ready)


@check("repository.index.empty", REPOSITORY, "Optional, default is false.")
def test_the_index_of_an_empty_body(server: Server, first: Model) -> None:
    assert first.name in {entry["name"] for entry in index(server, b"")}


@check("repository.index.malformed", REPOSITORY, "A failed index request must be indicated by an HTTP error status")
def test_an_index_that_cannot_be(server: Server) -> None:
    assert_error(server.ask("POST", "v2/repository/index", b"{"))


@check("repository.load.unknown", REPOSITORY, "A failed load request must be indicated by an HTTP error status")
def test_an_unknown_model_is_not_loaded(server: Server) -> None:
    assert_error(server.ask("POST", "v2/repository/models/no-such-model/load"))


def load(model: Model, what: str, body: Any = b"") -> None:
    good(model.server.ask("POST", f"v2/repository/models/{model.path.removeprefix('v2/models/')}/{what}", body))


def wait_until_unloaded(model: Model) -> None:
    for _ in range(ASKED_AGAIN):
        if model.server.ask("GET", f"{model.path}/ready").status >= 400:
            return
    raise AssertionError("the model is ready although it was unloaded")


@pytest.fixture
def unloaded(model: Model, pytestconfig: pytest.Config) -> Any:
    """Gives a model that is unloaded for a test, and loaded after it."""
    if pytestconfig.getoption("--keep-loaded"):
        pytest.skip("--keep-loaded")
    assert model.tensors is not None
    load(model, "unload")
    yield model
    load(model, "load")


@check("repository.unload", REPOSITORY, "The unload API requests that a model be unloaded")
def test_an_unloaded_model_is_not_asked(unloaded: Model) -> None:
    wait_until_unloaded(unloaded)
    assert_error(unloaded.send(unloaded.request()))
    ready = {entry["name"] for entry in index(unloaded.server, {"ready": True})}
    assert unloaded.name not in ready


@check(
    "repository.load", REPOSITORY, "The load API requests that a model be loaded, or reloaded if it is already loaded."
)
def test_a_model_is_loaded_again(unloaded: Model) -> None:
    wait_until_unloaded(unloaded)
    load(unloaded, "load")
    good(unloaded.server.ask("GET", f"{unloaded.path}/ready"))
    good(unloaded.send(unloaded.request()))
    load(unloaded, "load", {})
    good(unloaded.send(unloaded.request()))
