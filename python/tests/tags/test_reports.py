"""Reports of the running program, as files."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tenure.torch  # noqa: E402
from tenure import _native  # noqa: E402

from .tagging import needs_device  # noqa: E402

pytestmark = needs_device


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_report_is_a_file() -> None:
    page = tenure.torch.report()
    assert (page, tenure.torch.report("other.html")) == (Path("memory-report-0.html"), Path("other.html"))
    assert "No history was recorded" in page.read_text()
    assert tenure.torch.report("figures.json", format="json").read_text().startswith("{")


def test_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format='pdf': expected 'html' or 'json'"):
        tenure.torch.report(format="pdf")  # type: ignore[call-overload]


def test_a_report_names_the_program_and_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/train_\udce9.py"])
    title = f"train_\ufffd.py on {torch.cuda.get_device_name(0)} (0)"
    assert title in tenure.torch.report().read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [])
    assert tenure.torch.report(format="json")["title"].startswith("python on ")


@pytest.mark.parametrize("device", [0, None, "cuda", "cuda:0", torch.device("cuda"), torch.device("cuda:0")])
def test_a_device_is_given_as_to_pytorch(device: Any) -> None:
    assert tenure.torch.report(device=device) == Path("memory-report-0.html")


def test_a_report_is_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def memory_report(device: int, title: str, as_json: bool) -> str:
        asked.append(device)
        return "{}"

    monkeypatch.setattr(_native, "installed", lambda: [0, 1])
    monkeypatch.setattr(_native, "memory_report", memory_report)
    monkeypatch.setattr(torch.cuda, "get_device_name", str)
    assert tenure.torch.report(device=1) == Path("memory-report-1.html")
    tenure.torch.report(device=torch.device("cuda:1"), format="json")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    tenure.torch.report(format="json")
    tenure.torch.report(device="cuda:0")
    assert asked == [1, 1, 1, 0]


@pytest.mark.parametrize(("device", "message"), [(99, "device 99: PyTorch sees"), (-1, "device -1"), ("cpu", "'cpu'")])
def test_a_device_that_is_not_there_is_refused(device: Any, message: str) -> None:
    with pytest.raises(tenure.Error, match=message):
        tenure.torch.report(device=device)


def test_a_report_may_come_before_the_first_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(_native, "installed", list)
    monkeypatch.setattr(torch, "empty", lambda *size, device: opened.append(device))
    tenure.torch.report()
    assert opened == ["cuda:0"]


def test_threads_may_write_one_file(folder: Path) -> None:
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for _ in range(20):
                tenure.torch.report("same.html")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and os.listdir(folder) == ["same.html"]


def test_a_file_is_there_when_it_is_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("report.html").write_text("the last one")

    def full(source: Path, target: Path) -> Path:
        assert Path("report.html").read_text() == "the last one"
        raise OSError(28, "No space left on device", str(source))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left on device: 'report.html'"):
        tenure.torch.report("report.html")
    assert os.listdir(folder) == ["report.html"]


def test_links_and_modes_stay() -> None:
    Path("target.html").write_text("old")
    Path("target.html").chmod(0o600)
    Path("link.html").symlink_to("target.html")
    tenure.torch.report("link.html")
    assert Path("link.html").is_symlink() and Path("target.html").read_text().startswith("<")
    assert Path("target.html").stat().st_mode & 0o777 == 0o600


def test_a_new_file_has_the_mode_that_new_files_have() -> None:
    Path("other").touch()
    assert tenure.torch.report().stat().st_mode == Path("other").stat().st_mode


def test_a_pipe_is_written_to() -> None:
    os.mkfifo("pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_text()))
    reader.start()
    tenure.torch.report("pipe")
    reader.join()
    assert Path("pipe").is_fifo() and read[0].startswith("<")


def test_an_open_pipe_is_written_to() -> None:
    read_end, write_end = os.pipe()
    with open(read_end) as reader:
        content: list[str] = []
        thread = threading.Thread(target=lambda: content.append(reader.read()))
        thread.start()
        tenure.torch.report(f"/dev/fd/{write_end}")
        os.close(write_end)
        thread.join()
    assert content[0].startswith("<")


def test_a_name_may_be_as_long_as_the_system_allows() -> None:
    assert tenure.torch.report("x" * 255).is_file()


@pytest.mark.parametrize("path", ["missing/report.html", "x" * 256, "."])
def test_errors_name_the_file_that_was_asked_for(path: str) -> None:
    with pytest.raises(OSError) as raised:
        tenure.torch.report(path)
    assert str(raised.value.filename) == path
