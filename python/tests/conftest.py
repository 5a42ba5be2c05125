"""Fixtures that all tests share. The tests run from any folder, on the package that `import tenure` finds."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Restores Ctrl-C, which a script's background jobs ignore: tests of interruptions would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Processes that tests start import from this package too. It comes last: the installed package is tested, and not the
# sources beside this folder.
sys.path.append(str(Path(__file__).parents[1]))

# The folder that has tests/data: the project's, or the one that `just gpu` copied it to.
ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "tests/data").is_dir())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves the long forms to `just soak`, which sets TENURE_TEST_FACTOR. Moves tests that fork to the beginning."""
    # Once PyTorch's autograd has made threads, as for compiled functions, no fork of the process can run it.
    items.sort(key=lambda item: item.get_closest_marker("forks") is None)
    if "TENURE_TEST_FACTOR" not in os.environ:
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="a long form: `just soak` runs it"))


@pytest.fixture(autouse=True)
def in_the_projects_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begins the paths in tests and examples at the project's folder."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def sample() -> Path:
    """Returns the path of a recorded training step of ResNet-50."""
    return ROOT / "tests/data/resnet50_step.pickle.xz"


@pytest.fixture
def no_forced_thread_switches() -> Iterator[None]:
    """Makes Python's lock change hands only where the thread that holds it gives it up."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Runs PyTorch on one CPU thread, so that two runs add the same numbers in the same order."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def deterministic(one_thread: None) -> Iterator[None]:
    """Makes two runs of PyTorch compute the same bits."""
    torch = pytest.importorskip("torch")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


#: The exit status of a process whose test skips itself.
SKIPPED = 77


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: a long form, which `just soak` runs")
    config.addinivalue_line("markers", "own_process: runs the test in a fork of the process, which ends with it")
    config.addinivalue_line("markers", "forks: forks processes that run backward passes; runs before other tests")


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if pyfuncitem.get_closest_marker("own_process") is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run(pyfuncitem, arguments, writer)
    os.close(writer)
    with open(reader) as said:
        report = said.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == SKIPPED:
        pytest.skip(report)
    if status != 0:
        pytest.fail(report or f"the test's process ended with status {status}", pytrace=False)
    return True


def _run(test: pytest.Function, arguments: dict[str, object], report: int) -> None:
    """Runs a test, and ends the process."""
    status = 0
    try:
        test.obj(**arguments)
    except pytest.skip.Exception as skipped:
        status = SKIPPED
        os.write(report, str(skipped).encode())
    except BaseException:
        status = 1
        os.write(report, traceback.format_exc().encode())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Ends here: the exit of CUDA and PyTorch is not tested, and pytest must not end twice.
        os._exit(status)
