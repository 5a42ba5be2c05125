"""`TENURE_TORCH=1`: installs the allocator right after `import torch`, in programs that do not know about it.

Both `torch` and `tenure.torch` are made up: only when and with what `install` is called matters.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

HOOK = Path(__file__).resolve().parents[1] / "tenure.data/platlib"

# The beginning of each program: Python has started and run the line of `tenure.pth`.
STARTED = """
import site, sys, types
import tenure
site.addsitedir({hook!r})

def install(**options):
    print("installed", options, "version" in vars(sys.modules["torch"]))
    if "warn" in sys.argv:
        import warnings
        warnings.warn("there is\\nno GPU")
    if "fail" in sys.argv:
        raise RuntimeError("CUDA was\\nused already")

tenure.torch = sys.modules["tenure.torch"] = types.ModuleType("tenure.torch")
tenure.torch.install = install
{program}
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("print('torch runs')\nversion = '2.11'\n")
    (tmp_path / "torch/cuda.py").write_text("")
    return Run(tmp_path)


class Run:
    """Runs programs that find a made-up PyTorch in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_TORCH")}
        path = os.pathsep.join([str(self.folder), *filter(None, sys.path)])
        command = [sys.executable, "-c", STARTED.format(hook=os.fspath(HOOK), program=program), *arguments]
        environment = inherited | variables | {"PYTHONPATH": path}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)


def test_it_installs_once_torch_has_run(run: Run) -> None:
    done = run("import torch, torch.cuda\nimport torch", TENURE_TORCH="1")
    assert done.stdout == "torch runs\ninstalled {} True\n"
    assert done.stderr == ""


def test_asking_whether_there_is_a_torch_changes_nothing(run: Run) -> None:
    program = "import importlib.util; importlib.util.find_spec('torch'); import torch; import torch"
    assert run(program, TENURE_TORCH="1").stdout.splitlines() == ["torch runs", "installed {} True"]


def test_an_import_that_failed_can_be_tried_again(run: Run) -> None:
    (run.folder / "torch/__init__.py").write_text(
        "import os\nos.environ['READY']\nprint('torch runs')\nversion = '2.11'\n"
    )
    program = "import os\ntry:\n    import torch\nexcept KeyError:\n    os.environ['READY'] = '1'\nimport torch"
    assert run(program, TENURE_TORCH="1").stdout.splitlines() == ["torch runs", "installed {} True"]


@pytest.mark.parametrize(
    "variables", [{}, {"TENURE_TORCH": "0"}, {"TENURE_TORCH": ""}, {"TENURE_TORCH": "False"}, {"TENURE_TORCH": "off"}]
)
def test_it_is_off_by_default(run: Run, variables: dict[str, str]) -> None:
    finders = run("print(len(sys.meta_path))").stdout.strip()
    done = run("print(len(sys.meta_path))\nimport torch", **variables)
    assert done.stdout == f"{finders}\ntorch runs\n"


def test_torch_is_not_imported_for_programs_that_do_not(run: Run) -> None:
    assert run("print('torch' in sys.modules)", TENURE_TORCH="1").stdout == "False\n"


def test_options_are_given_on(run: Run) -> None:
    done = run("import torch", TENURE_TORCH="1", TENURE_TORCH_OPTIONS="fraction=0.5, headroom=2GiB")
    assert "installed {'fraction': 0.5, 'headroom': '2GiB'} True" in done.stdout


def test_a_word_that_says_neither_on_nor_off_is_told_and_off(run: Run) -> None:
    done = run("import torch", TENURE_TORCH="paged")
    assert done.stdout == "torch runs\n"
    assert done.stderr.startswith("tenure: TENURE_TORCH='paged' is taken for 0: expected 1,")


def test_it_is_told_once_although_python_starts_it_twice(run: Run) -> None:
    """Python runs a `.pth` file twice in a virtual environment."""
    done = run(f"site.addsitedir({os.fspath(HOOK)!r})", TENURE_TORCH="paged")
    assert done.stderr.count("tenure:") == 1


@pytest.mark.parametrize("options", ["native", "fraction=abc", "foo=1", "allocator=paged,fraction"])
def test_options_that_make_no_sense_are_one_line(run: Run, options: str) -> None:
    done = run("import torch; print(torch.version)", TENURE_TORCH="1", TENURE_TORCH_OPTIONS=options)
    assert done.stdout == "torch runs\n2.11\n"
    item = options.split(",")[-1]
    refused = f"TENURE_TORCH_OPTIONS has {item!r}: expected allocator=paged, native or expandable, fraction=0.9"
    assert done.stderr.startswith(f"tenure: TENURE_TORCH is set, but PyTorch keeps its own allocator: {refused}")
    assert done.stderr.count("\n") == 1


def test_a_failure_is_one_line_and_the_program_goes_on(run: Run) -> None:
    done = run("import torch; print(torch.version)", "fail", TENURE_TORCH="1")
    assert done.stdout.endswith("2.11\n")
    reason = "CUDA was used already"
    assert done.stderr == f"tenure: TENURE_TORCH is set, but PyTorch keeps its own allocator: {reason}\n"


@pytest.mark.parametrize(
    "spoil",
    [
        "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
        "sys.stderr.close()",
        "sys.stderr = None",  # as in a program that was started with it closed
    ],
)
def test_a_failure_that_cannot_be_told_is_not(run: Run, spoil: str) -> None:
    done = run(f"{spoil}\nimport torch; print(torch.version)", "fail", TENURE_TORCH="1")
    assert done.stdout == "torch runs\ninstalled {} True\n2.11\n"


def test_a_warning_is_one_line(run: Run) -> None:
    assert run("import torch", "warn", TENURE_TORCH="1").stderr == "tenure: there is no GPU\n"


def test_a_program_without_torch_is_told_as_ever(run: Run) -> None:
    program = """
sys.path[:] = [entry for entry in sys.path if entry != sys.argv[1] and "site-packages" not in entry]
for _ in range(2):
    try:
        import torch
    except ModuleNotFoundError as error:
        print(error)
sys.path.insert(0, sys.argv[1])
import torch
"""
    done = run(program, os.fspath(run.folder), TENURE_TORCH="1")
    assert done.stdout == "No module named 'torch'\n" * 2 + "torch runs\ninstalled {} True\n"


def test_the_finders_stay_where_they_are(run: Run) -> None:
    """Other threads may be iterating over them."""
    program = """
def names():
    return [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path]

class Watching:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(names() == before)

sys.meta_path.insert(1, Watching())
before = names()
import torch
print(names() == before)
"""
    assert run(program, TENURE_TORCH="1").stdout.splitlines() == ["True", "torch runs", "installed {} True", "True"]


def test_torch_looks_as_it_does_without_it(run: Run) -> None:
    program = "import torch; print(type(torch.__loader__).__name__, sorted(vars(torch.__loader__)))"
    without, under = (run(program, TENURE_TORCH=value).stdout.splitlines() for value in ("0", "1"))
    assert without[-1] == under[-1]


# A program that calls the real `install`, on a PyTorch that it refuses.
REAL = """
del sys.modules["tenure.torch"], tenure.torch
import threading
import tenure.torch
try:
    tenure.torch.install()
except tenure.Error as error:
    print(error)
"""


# This PyTorch, imported on another thread, finishes only once the main thread waits for it.
IMPORTED = """
import __main__, sys, threading, time, types

def is_waited_for(frame):
    while frame is not None:
        code = frame.f_code
        if (code.co_filename, code.co_name) == ("<frozen importlib._bootstrap>", "acquire"):
            return frame.f_locals["self"].name == "torch"
        frame = frame.f_back
    return False

main = threading.main_thread()
if threading.current_thread() is not main:
    __main__.has_begun.set()
    while not is_waited_for(sys._current_frames()[main.ident]):
        time.sleep(0.01)
__version__ = "2.11.0"
version = types.SimpleNamespace(hip="6")
"""

ELSEWHERE = """
has_begun = threading.Event()
threading.Thread(target=__import__, args=["torch"]).start()
has_begun.wait()
"""


@pytest.mark.parametrize("elsewhere", ["", ELSEWHERE], ids=["here", "elsewhere"])
def test_a_program_may_install_it_too(run: Run, elsewhere: str) -> None:
    """The program and the hook never wait for each other, whichever of them imports PyTorch."""
    (run.folder / "torch/__init__.py").write_text(IMPORTED)
    program = REAL.replace("import tenure.torch\n", f"import tenure.torch\n{elsewhere}", 1)
    done = run(program, TENURE_TORCH="1")
    refusal = "PyTorch 2.11.0 is built for ROCm: Tenure needs one built for CUDA"
    assert done.stdout == f"{refusal}\n"
    assert done.stderr == f"tenure: TENURE_TORCH is set, but PyTorch keeps its own allocator: {refusal}\n"


def test_processes_that_the_program_starts_inherit_it(run: Run) -> None:
    program = f"""
import subprocess
subprocess.run([sys.executable, "-c", {STARTED.format(hook=os.fspath(HOOK), program="import torch")!r}], check=True)
"""
    assert "installed {}" in run(program, TENURE_TORCH="1").stdout


def test_nothing_is_imported_when_the_variable_is_not_there(run: Run) -> None:
    assert run("print('_tenure_torch' in sys.modules)").stdout == "False\n"
    assert (HOOK / "tenure.pth").read_text().count("\n") == 1


def test_an_installed_package_brings_it() -> None:
    try:
        files = importlib.metadata.files("tenure") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is used from its folder, not installed")
    assert {"tenure.pth", "_tenure_torch.py"} <= {file.name for file in files}
