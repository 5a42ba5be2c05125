"""The suite's options, its shared fixtures, and its report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from channel import Channel
from checks import BEYOND, GRPC, REQUIRED
from server import Model, Server
from wire import Address

USAGE = """\
This suite checks a server of the Open Inference Protocol (v2), which must be running:
  python -m pytest tests/oip --url http://HOST:PORT [--model NAME]... [--json report.json] [--grpc HOST:PORT]
tests/oip/README.md says more."""

# The most models of an index that are asked.
MOST_MODELS = 4

NOT_OFFERED = "the server does not list "
PASS, FAIL, NONE, SKIPPED = "pass", "fail", "not offered", "not applicable"
SERVER = pytest.StashKey[Server]()
MODELS = pytest.StashKey[list[str]]()
RESULTS = pytest.StashKey[dict[str, dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("oip", "a server of the Open Inference Protocol")
    group.addoption("--url", help="where the server is, such as http://localhost:8000")
    group.addoption("--model", action="append", default=[], help="a model to ask [the index's first]; may be repeated")
    group.addoption("--json", help="a file that the report is written to")
    group.addoption("--grpc", help="HOST:PORT of the same server's gRPC; needs the package grpcio")
    group.addoption("--header", action="append", default=[], help="'Name: value' of each request; may be repeated")
    group.addoption("--shape", action="append", default=[], help="NAME=2,3,224: an input's shape; may be repeated")
    group.addoption("--keep-loaded", action="store_true", help="do not unload and load models")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS] = {}
    if not config.getoption("--url"):
        return
    extra = dict(part.split(": ", 1) for part in config.getoption("--header"))
    shapes = {name: [int(size) for size in sizes.split(",")] for name, sizes in pairs(config.getoption("--shape"))}
    server = Server(Address(config.getoption("--url"), extra), config.getoption("--grpc"), shapes)
    try:
        models = config.getoption("--model") or server.index()[:MOST_MODELS]
    except (OSError, AssertionError) as error:
        raise pytest.UsageError(f"{config.getoption('--url')}: {error}") from error
    if not models:
        raise pytest.UsageError("the server lists no model that is ready: name one with --model")
    config.stash[SERVER], config.stash[MODELS] = server, models


def pairs(options: list[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (option.rpartition("=") for option in options)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "model" in metafunc.fixturenames:
        names = metafunc.config.stash.get(MODELS, ["?"])
        metafunc.parametrize("model", names, ids=names, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    server = config.stash.get(SERVER, None)
    for item in items:
        mark = item.get_closest_marker("check")
        part = mark.args[1] if mark else REQUIRED
        if server is None:
            item.add_marker(pytest.mark.skip("no --url: tests/oip/README.md says how to use this suite"))
        elif part.startswith("extension:") and part.removeprefix("extension:") not in server.extensions:
            item.add_marker(pytest.mark.skip(NOT_OFFERED + part.removeprefix("extension:")))
        elif part == GRPC and not server.grpc:
            item.add_marker(pytest.mark.skip(NOT_OFFERED + "gRPC to us: no --grpc"))
        elif part == BEYOND:
            # A failure is reported, and does not fail the run.
            item.add_marker(pytest.mark.xfail(reason="beyond the specification", raises=Exception, strict=False))


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Server:
    return pytestconfig.stash[SERVER]


@pytest.fixture
def channel(server: Server) -> Channel:
    return Channel(server.grpc or "")


@pytest.fixture(scope="session")
def opened() -> dict[str, Model]:
    """The models asked so far, with their metadata and sizes."""
    return {}


@pytest.fixture
def model(request: pytest.FixtureRequest, server: Server, opened: dict[str, Model]) -> Model:
    """Gives each of the models in turn."""
    return opened.setdefault(request.param, server.model(request.param))


@pytest.fixture
def first(pytestconfig: pytest.Config, server: Server, opened: dict[str, Model]) -> Model:
    """Gives the first of the models, for tests that do not depend on the model."""
    name = pytestconfig.stash[MODELS][0]
    return opened.setdefault(name, server.model(name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    mark = item.get_closest_marker("check")
    if mark and item.config.stash.get(SERVER, None) and (report.when == "call" or not report.passed):
        note(item, mark, report, call)
    return report


def note(item: pytest.Item, mark: pytest.Mark, report: Any, call: pytest.CallInfo[None]) -> None:
    """Adds a test's result to its check, which fails if one of its tests does."""
    id, part, words = mark.args
    params = getattr(item, "callspec", None)
    case = params.params.get("case") if params else None
    id = id.format(case=case) if case else id
    words = case.words if hasattr(case, "words") else words
    part = case.part if hasattr(case, "part") and part == REQUIRED else part
    why = str(call.excinfo.value).split("\n")[0][:300] if call.excinfo else ""
    is_failure = report.failed or (report.skipped and hasattr(report, "wasxfail"))
    if is_failure:
        outcome = FAIL
    elif report.skipped:
        why = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else why
        outcome = NONE if why.startswith(NOT_OFFERED) else SKIPPED
    else:
        outcome = PASS
    known = item.config.stash[RESULTS]
    entry = known.setdefault(id, {"id": id, "part": part, "words": words, "outcome": outcome, "why": {}})
    ranks = [SKIPPED, NONE, PASS, FAIL]
    entry["outcome"] = max(entry["outcome"], outcome, key=ranks.index)
    if outcome != PASS:
        entry["why"][params.id if params else ""] = why


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    server = config.stash.get(SERVER, None)
    if server is None:
        terminalreporter.write_line(USAGE)
        return
    results = list(config.stash[RESULTS].values())
    said = {"url": server.address.url, "server": server.metadata, "models": config.stash[MODELS]}
    report = {**said, "counts": counts(results), "checks": results}
    if path := config.getoption("--json"):
        Path(path).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    for line in table(report):
        terminalreporter.write_line(line)


def counts(results: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for result in results:
        part = found.setdefault(result["part"], {})
        part[result["outcome"]] = part.get(result["outcome"], 0) + 1
    return found


def table(report: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of the report: the results of all checks, part by part."""
    metadata = report["server"]
    yield f"{metadata.get('name')} {metadata.get('version')} at {report['url']}, models {', '.join(report['models'])}"
    for part, outcomes in sorted(report["counts"].items(), key=lambda item: (item[0] != REQUIRED, item[0])):
        yield ""
        yield f"{part}: " + ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
        for result in (result for result in report["checks"] if result["part"] == part):
            yield f"  {result['outcome']:<14} {result['id']}"
            if result["outcome"] in (FAIL, SKIPPED):
                for where, why in list(result["why"].items())[:2]:
                    yield f"{'':17}{f'[{where}] ' if where else ''}{why}"
