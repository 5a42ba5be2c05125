"""What `tenure.torch.install` says about the mistakes that users make, and which way it goes.

PyTorch is made up: what matters is what it says of itself. Programs run in a process of their own, since nothing is
ever uninstalled.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.torch import build

# A PyTorch that has CUDA.
TORCH = """
import types
__version__ = {version!r}
version = types.SimpleNamespace(cuda={cuda!r}, hip={hip!r}, git_version="0123456789abcdef")
cuda = types.SimpleNamespace(is_initialized=lambda: {initialized}, get_allocator_backend=lambda: {backend!r})
_C = types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True)
"""

# Says what came of `install`: the shim and the fallback only say that they were reached.
PROGRAM = """
import sys, warnings
warnings.simplefilter("always")
warnings.showwarning = lambda message, *_: print("warning:", message)
import tenure.torch
from tenure.torch import fallback, installation
fallback.install = lambda options: print("fallback:", options)
installation._has_driver = lambda: {driver}
installation._load = lambda library, options: print("shim:", library, options)
try:
    {call}
except tenure.Error as error:
    print("error:", error)
print(tenure.torch.status().mode)
"""


class Machine:
    """A machine with a made-up PyTorch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.has_driver = True

    def install(self, call: str = "tenure.torch.install()", **environment: str) -> list[str]:
        """The lines that a program says that installs Tenure."""
        path = os.pathsep.join([str(self.folder), *filter(None, sys.path)])
        variables = os.environ | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(self.folder / "cache")} | environment
        command = [sys.executable, "-c", PROGRAM.format(call=call, driver=self.has_driver)]
        result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    def have_torch(
        self,
        version: str = "2.11.0+cu130",
        cuda: str | None = "13.0",
        hip: str | None = None,
        initialized: bool = False,
        backend: str = "native",
    ) -> None:
        """Puts a PyTorch there."""
        folder = self.folder / "torch"
        (folder / "include/c10/cuda").mkdir(parents=True)
        (folder / "include/c10/cuda/CUDACachingAllocator.h").touch()
        for header in ("cuda_runtime_api.h", "crt/host_defines.h"):
            path = self.folder / "nvidia/cu13/include" / header
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        text = TORCH.format(version=version, cuda=cuda, hip=hip, initialized=initialized, backend=backend)
        (folder / "__init__.py").write_text(text)

    def have_compiler(self, script: str) -> str:
        """Puts a compiler there, which says `script`, and returns its name."""
        compiler = self.folder / "compiler"
        compiler.write_text(f"#!/bin/sh\n{script}\n")
        compiler.chmod(0o755)
        return str(compiler)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# A compiler that writes a file where it is told to.
WORKING = 'for file; do case "$before" in -o) echo built >"$file";; esac; before=$file; done'


def test_pytorch_is_missing(machine: Machine) -> None:
    (machine.folder / "torch.py").write_text("raise ImportError('none here')")
    assert machine.install() == [
        "error: PyTorch cannot be imported (none here): pip install torch",
        "not installed",
    ]


@pytest.mark.parametrize(
    "name", ["install()", "tag", "tagged", "tag_operations", "report", "clear_shared_cache()", "own_bytes()"]
)
def test_everything_says_that_pytorch_is_missing(machine: Machine, name: str) -> None:
    said = machine.install(f"sys.modules['torch'] = None; tenure.torch.{name}")
    assert re.match("error: (PyTorch cannot be imported .*: pip install torch|Tenure is not installed under)", said[0])


def test_pytorch_is_broken(machine: Machine) -> None:
    (machine.folder / "torch.py").write_text("raise OSError('libcudart.so.13:\\nno such file')")
    assert machine.install() == [
        "error: PyTorch cannot be imported (libcudart.so.13: no such file): install it again",
        "not installed",
    ]


def test_pytorch_has_no_cuda(machine: Machine) -> None:
    machine.have_torch(version="2.11.0+cpu", cuda=None)
    assert machine.install()[0].startswith("error: PyTorch 2.11.0+cpu is built without CUDA: install one with it")


def test_pytorch_is_for_rocm(machine: Machine) -> None:
    machine.have_torch(version="2.11.0+rocm6", cuda=None, hip="6.0")
    assert machine.install()[0] == "error: PyTorch 2.11.0+rocm6 is built for ROCm: Tenure needs one built for CUDA"


def test_cuda_has_started(machine: Machine) -> None:
    machine.have_torch(initialized=True)
    assert machine.install()[0].startswith("error: CUDA has started already, on PyTorch's own allocator: call")


def test_there_is_no_gpu(machine: Machine) -> None:
    machine.have_torch()
    machine.has_driver = False
    said = machine.install()
    assert said[0].startswith("warning: Tenure is not installed: this machine has no driver for GPUs (libcuda.so.1)")
    assert said[1:] == ["not installed"]


def test_the_program_chose_cuda_s_own_allocator(machine: Machine) -> None:
    machine.have_torch(backend="cudaMallocAsync")
    said = machine.install()
    assert said[0].startswith("warning: Tenure is not installed: PYTORCH_ALLOC_CONF asks for the allocator cuda")
    assert said[1:] == ["not installed"]


def test_another_allocator_was_installed_before(machine: Machine) -> None:
    machine.have_torch(backend="pluggable")
    assert machine.install()[0].startswith("error: another allocator is under PyTorch already, and")


def test_another_copy_of_tenure_was_installed_before(machine: Machine) -> None:
    machine.have_torch(backend="tenure")
    assert machine.install()[0].startswith("error: Tenure is under PyTorch already, put there by another copy of")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("tenure.torch.install('best')", "allocator='best': expected one of 'paged', 'native', 'expandable'"),
        ("tenure.torch.install(fraction=0)", "fraction=0: expected more than 0 and at most 1"),
    ],
)
def test_an_option_makes_no_sense(machine: Machine, call: str, message: str) -> None:
    assert machine.install(call) == [f"error: {message}", "not installed"]


def test_a_shim_is_built_once(machine: Machine) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(f'echo run >>"{machine.folder}/runs"\n{WORKING}')
    said = machine.install(CXX=compiler)
    assert said[0].startswith(f"shim: {machine.folder}/cache/tenure/shims/2.11.0+cu130-")
    assert said[0].endswith(".so allocator=paged,fraction=1.0") and said[1] == "built shim"
    runs = (machine.folder / "runs").read_text()
    assert machine.install(CXX=compiler) == said
    # It was asked for its version again, and nothing else.
    assert (machine.folder / "runs").read_text() == runs + "run\n"


def test_a_shim_of_other_sources_is_not_taken(machine: Machine) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(WORKING)
    prebuilt, sources = machine.folder / "prebuilt", machine.folder / "sources"
    shutil.copytree(Path(build.__file__).with_name("shim"), sources)
    prebuilt.mkdir()
    folders = (
        "from pathlib import Path; from tenure.torch import build; "
        f"build._PREBUILT, build._SOURCES = Path({str(prebuilt)!r}), Path({str(sources)!r}); "
    )
    machine.install(f"{folders}(build._PREBUILT / build.Torch.current().prebuilt_name).touch()")

    def library(mode: str) -> str:
        shim, *rest = machine.install(f"{folders}tenure.torch.install()", CXX=compiler)
        assert rest == [mode]
        return shim

    library("prebuilt shim")
    built = []
    for name in ("tenure_torch.h", "install.cpp"):
        with open(sources / name, "a") as file:
            file.write("// changed\n")
        built.append(library("built shim"))
    assert built[0] != built[1]


def test_installed_twice(machine: Machine) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(WORKING)
    twice = "tenure.torch.install(); tenure.torch.install(); tenure.torch.install('native')"
    shim, error, mode = machine.install(twice, CXX=compiler)
    assert shim.startswith("shim:") and mode == "built shim"
    assert error.startswith("error: Tenure is installed already, with allocator=paged,fraction=1.0: install it once")


def test_there_is_no_compiler(machine: Machine) -> None:
    machine.have_torch()
    warning, *rest = machine.install(PATH="/nowhere", CXX="")
    assert warning.startswith("warning: there is no C++ compiler: install one")
    assert warning.endswith("tenure.torch.status() says what")
    assert rest == ["fallback: allocator=paged,fraction=1.0", "pluggable"]


def test_the_compiler_refuses(machine: Machine) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(
        'case "$1" in --version) ;; *) echo "x.h:1: error: no such thing" >&2; exit 1;; esac'
    )
    warning, *rest = machine.install(CXX=compiler)
    assert warning.startswith("warning: the compiler refused: x.h:1: error: no such thing (all of it is in ")
    log = Path(warning.split("(all of it is in ")[1].split(")")[0])
    assert "no such thing" in log.read_text()
    assert rest[-1] == "pluggable"


def test_pytorch_is_too_old_for_the_shim(machine: Machine) -> None:
    machine.have_torch(version="2.7.1+cu130")
    said = machine.install()
    assert said[0].startswith("warning: PyTorch 2.7.1+cu130 is older than 2.8, which the shim is written for")
    assert said[-1] == "pluggable"


def test_the_cache_cannot_be_written_to(machine: Machine) -> None:
    machine.have_torch()
    (machine.folder / "file").touch()
    said = machine.install(CXX=machine.have_compiler(WORKING), XDG_CACHE_HOME=str(machine.folder / "file"))
    assert said[0].startswith("warning: the shim is built again by every process, since")
    assert said[-1] == "built shim"


def test_a_shim_that_was_built_is_taken_from_a_folder_that_cannot_be_written_to(machine: Machine) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(WORKING)
    cache = machine.folder / "cache"
    machine.install(CXX=compiler, XDG_CACHE_HOME=str(cache))
    shims = cache / "tenure/shims"
    for lock in shims.glob("*.lock"):
        lock.unlink()
        lock.mkdir()  # nobody can lock it now
    assert machine.install(CXX=compiler, XDG_CACHE_HOME=str(cache))[-1] == "built shim"


def test_importing_tenure_torch_does_not_import_pytorch(machine: Machine) -> None:
    (machine.folder / "torch.py").write_text("raise ImportError('none here')")
    path = os.pathsep.join([str(machine.folder), *filter(None, sys.path)])
    subprocess.run([sys.executable, "-c", "import tenure.torch"], env=os.environ | {"PYTHONPATH": path}, check=True)
