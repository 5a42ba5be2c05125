"""The script that runs PyTorch's own tests: its arguments, its results, its table. The tests are made up here."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/pytorch-tests"

if not SCRIPT.is_file():
    pytest.skip("the script is not here", allow_module_level=True)

FILE = "test_cuda.py"

# The program that the script starts instead of PyTorch's tests: each test but `hangs` passes.
CHILD = """
import json, pathlib, sys, time
names = pathlib.Path(sys.argv[sys.argv.index("--tests") + 1]).read_text().split()
with open(sys.argv[sys.argv.index("--out") + 1], "a") as out:
    for name in names:
        def say(outcome):
            print(json.dumps({"test": name, "outcome": outcome, "reason": "", "seconds": 0}), file=out, flush=True)
        say("begin")
        if name.endswith("hangs"):
            time.sleep(600)
        say("pass")
"""


def line(outcome: str, reason: str = "") -> dict[str, Any]:
    return {"outcome": outcome, "reason": reason, "seconds": 0}


@pytest.fixture(scope="module")
def script() -> Any:
    loader = SourceFileLoader("pytorch_tests", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    # Data classes look up their module there.
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


@pytest.fixture
def native(tmp_path: Path) -> Path:
    """Writes results of the native allocator for three tests of two classes."""
    tests = ["TestMemPool.test_a", "TestCuda.test_b", "TestCuda.test_hangs"]
    path = tmp_path / "native.json"
    path.write_text(json.dumps({f"{FILE}::{test}": {"native": line("pass")} for test in tests}))
    return path


class Run:
    """A runner of made-up tests on Tenure, in a thread."""

    def __init__(self, script: Any, folder: Path, native: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / FILE).touch()
        (folder / "child.py").write_text(CHILD)
        monkeypatch.setattr(script, "CHILD", folder / "child.py")
        self.json = folder / "results.json"
        arguments = argparse.Namespace(
            checkout=folder, classes=None, files=None, only=None, jobs=1, seconds=600, json=self.json
        )
        self.runner = script.Runner(arguments, folder, script.native_results(native))

    def done(self) -> set[str]:
        """Returns the tests whose result on Tenure is in the file."""
        if not self.json.exists():
            return set()
        return {test for test, lines in json.loads(self.json.read_text()).items() if "tenure" in lines}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--only", "("], "--only (: no regular expression: missing ), unterminated subpattern at position 0"),
        (["--files", "["], "--files [: no regular expression: unterminated character set at position 0"),
        (["--native", "missing"], "--native missing: No such file or directory"),
        (["--native", "empty.json"], "--native empty.json: no results of the native allocator: give what an earlier"),
        (["--native", "list.json"], "--native list.json: no results of the native allocator"),
        (["-j", "0"], "--jobs 0: expected 1 or more"),
        (["--seconds", "-1"], "--seconds -1: expected 1 or more"),
        (["--json", "missing/a.json"], "--json missing/a.json: there is no such folder"),
        (["--table", "list.json"], "--table list.json: it has no <!-- results --> and <!-- end of results -->"),
    ],
)
def test_a_wrong_argument_is_one_line_before_anything_runs(tmp_path: Path, arguments: list[str], text: str) -> None:
    (tmp_path / "empty.json").touch()
    (tmp_path / "list.json").write_text("[1]")
    command = [sys.executable, str(SCRIPT), "checkout", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert done.stderr.startswith(text)


def test_results_are_kept_after_every_batch_and_when_interrupted(
    script: Any, tmp_path: Path, native: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(script, tmp_path, native, monkeypatch)
    main, seen = threading.main_thread(), set()

    def interrupt() -> None:
        deadline = time.monotonic() + 300  # noqa: TID251 (polls)
        while not run.done() and time.monotonic() < deadline:  # noqa: TID251 (polls)
            time.sleep(0.01)  # noqa: TID251 (polls)
        seen.update(run.done())
        while not any("hangs" in out.read_text() for out in tmp_path.glob("*/lines")) and time.monotonic() < deadline:  # noqa: TID251 (polls)
            time.sleep(0.01)  # noqa: TID251 (polls)
        # Python loses a signal that comes just before it begins to wait, until another one comes.
        while not came.wait(0.01):
            assert main.ident is not None
            signal.pthread_kill(main.ident, signal.SIGINT)

    came = threading.Event()

    def handle(_: int, __: object) -> None:
        if not came.is_set():
            came.set()
            raise KeyboardInterrupt

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, handle)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run.runner.run(["tenure"])
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == {f"{FILE}::TestMemPool.test_a"}, "after the first batch"
    results = json.loads(run.json.read_text())
    assert run.done() == {f"{FILE}::TestMemPool.test_a", f"{FILE}::TestCuda.test_b"}
    assert all(lines["native"]["outcome"] == "pass" for lines in results.values()) and len(results) == 3


def test_native_results_that_are_not_asked_for_are_kept(
    script: Any, tmp_path: Path, native: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(script, tmp_path, native, monkeypatch)
    run.json = run.runner.arguments.json = native
    run.runner.arguments.classes = "MemPool"
    run.runner.run(["tenure"])
    assert run.done() == set(run.runner.chosen()) == {f"{FILE}::TestMemPool.test_a"}
    assert len(script.native_results(native)) == 3


def test_a_table_is_not_replaced_by_one_that_lacks_tests(
    script: Any, tmp_path: Path, native: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{script.BEGIN}\nold\n{script.END}\n")
    Run(script, tmp_path, native, monkeypatch)
    monkeypatch.setattr(script, "check_machine", lambda _: None)
    monkeypatch.setattr(script, "provenance", lambda _: "Here.")
    command = ["pytorch-tests", str(tmp_path), "--native", str(native), "--table", str(page), "--classes"]
    monkeypatch.setattr(sys, "argv", [*command, "Nonesuch"])
    with pytest.raises(SystemExit, match="no test was run, and nothing is written: look at --classes"):
        script.main()

    def run(runner: Any, _: list[str]) -> None:
        runner.asked, runner.unlisted = set(runner.results), ["test_multiprocessing.py"]

    monkeypatch.setattr(script.Runner, "run", run)
    with pytest.raises(SystemExit, match="the table is not written, as it would be without test_multiprocessing.py"):
        script.main()
    assert "old" in page.read_text()


def test_results_say_what_they_are_of(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    monkeypatch.setattr(script, "commit", lambda: "commit 0123abc")
    line = f"A GPU, PyTorch {torch.__version__}, {time.strftime('%Y-%m-%d')}, commit 0123abc"
    assert script.provenance(False) == f"{line}."
    assert script.provenance(True) == f"{line}; native results of an earlier run."


def test_a_table_says_what_fails_natively_by_what_it_says(script: Any) -> None:
    results = {
        f"{FILE}::TestCuda.test_a": {"native": line("pass"), "tenure": line("pass")},
        f"{FILE}::TestCuda.test_b": {"native": line("pass"), "tenure": line("fail", "Error: <a> | b (line 7)")},
        f"{FILE}::TestCuda.test_c": {"native": line("fail", 'Error: no "x" here (line 1)'), "tenure": line("pass")},
        f"{FILE}::TestCuda.test_d": {"native": line("fail", 'Error: no "y" here (line 2)')},
        f"{FILE}::TestCuda.test_e": {"native": line("crash", "it took too long")},
        f"{FILE}::TestCuda.test_f": {"native": line("skip", "no GPU")},
    }
    table = script.table_of(results, ["native", "tenure"])
    assert f"| `{FILE}` | `TestCuda` | 6 | 1 | 2 | 1 |" in table
    assert "1 of 2 (50.0 %). The others:" in table
    assert f"| `{FILE}::TestCuda.test_b` | fail: Error: &lt;a> \\| b (line 7) |" in table
    assert table.endswith(f"""

<details>
<summary>3 fail on the native allocator too, and do not count</summary>

| what they say | tests |
| --- | --- |
| fail: Error: no "…" here | `{FILE}::TestCuda.test_c`, `{FILE}::TestCuda.test_d` |
| crash: it took too long | `{FILE}::TestCuda.test_e` |

</details>""")


def test_a_table_without_native_failures_has_no_more_to_say(script: Any) -> None:
    results = {f"{FILE}::TestCuda.test_a": {"native": line("pass"), "tenure": line("pass")}}
    assert script.table_of(results, ["native", "tenure"]).endswith("1 of 1 (100.0 %).")


def test_a_table_is_put_between_its_markers(script: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n")
    script.put_between_markers(page, "new")
    assert page.read_text() == f"before\n{script.BEGIN}\nnew\n{script.END}\nafter\n"
    assert list(tmp_path.iterdir()) == [page]
