"""The messages of `tenure.torch.install` about users' mistakes, and its choice between shim and fallback.

PyTorch is made up: only what it says about itself matters. Each program runs in a process of its own, since nothing
is ever uninstalled.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.torch.installation import build

# A PyTorch that has CUDA.
TORCH = """
import types
__version__ = {version!r}
version = types.SimpleNamespace(cuda={cuda!r}, hip={hip!r}, git_version="0123456789abcdef")
cuda = types.SimpleNamespace(is_initialized=lambda: {initialized}, get_allocator_backend=lambda: {backend!r})
_C = types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True)
"""

# Prints what `install` did: the shim and the fallback only report that they were reached.
PROGRAM = """
import sys, warnings
warnings.simplefilter("always")
warnings.showwarning = lambda message, *_: print("warning:", message)
import tenure.torch
from tenure.torch import installation
from tenure.torch.installation import fallback

def reached(backend, *said):
    print(*said)
    sys.modules["torch"].cuda.get_allocator_backend = lambda: backend

fallback.install = lambda options: reached("pluggable", "fallback:", options)
installation._has_driver = lambda: {driver}
installation._load = lambda library: {load}
installation._start = lambda shim, options: reached("tenure", "shim:", shim, options)
try:
    {call}
except tenure.Error as error:
    print("error:", error)
print({status})
"""


class Machine:
    """A machine with a made-up PyTorch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.has_driver = True
        self.log = ""

    def install(
        self,
        call: str = "tenure.torch.install()",
        load: str = "library",
        status: str = "tenure.torch.status().mode",
        **environment: str,
    ) -> list[str]:
        """Returns the lines that a program prints which installs Tenure; `load` replaces the loading of a library."""
        path = os.pathsep.join([str(self.folder), *filter(None, sys.path)])
        # Writes no bytecode: Python would take it for that of a newer source of the same length and second.
        own = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(self.folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        variables = os.environ | own | environment
        command = [sys.executable, "-c", PROGRAM.format(call=call, load=load, status=status, driver=self.has_driver)]
        result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        self.log = result.stderr
        return result.stdout.splitlines()

    def have_torch(
        self,
        version: str = "2.11.0+cu130",
        cuda: str | None = "13.0",
        hip: str | None = None,
        initialized: bool = False,
        backend: str = "native",
    ) -> None:
        """Installs a made-up PyTorch."""
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
        """Installs a compiler whose body is `script`, and returns its name."""
        compiler = self.folder / "compiler"
        compiler.write_text(f"#!/bin/sh\n{script}\n")
        compiler.chmod(0o755)
        return str(compiler)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# A compiler script that writes the file that `-o` names.
WORKING = 'for file; do case "$before" in -o) printf "\\177ELF" >"$file";; esac; before=$file; done'


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
    warning, status = machine.install(status="tenure.torch.status()")
    reason = "this machine has no driver for GPUs (libcuda.so.1): check `nvidia-smi`"
    assert warning == f"warning: Tenure is not installed: {reason}"
    assert status.endswith(f" is not installed under PyTorch: {reason}")


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
        ("tenure.torch.install(fraction=True)", "fraction=True: expected more than 0 and at most 1"),
        ("tenure.torch.install(fraction=float('nan'))", "fraction=nan: expected more than 0 and at most 1"),
    ],
)
def test_an_option_makes_no_sense(machine: Machine, call: str, message: str) -> None:
    assert machine.install(call) == [f"error: {message}", "not installed"]


@pytest.mark.parametrize("fraction", ["fractions.Fraction(1, 2)", "numpy.float32(0.5)"])
def test_the_fraction_is_any_library_s_number(machine: Machine, fraction: str) -> None:
    machine.have_torch()
    library = fraction.split(".")[0]
    pytest.importorskip(library)
    said = machine.install(f"import {library}; tenure.torch.install(fraction={fraction})", CXX="nowhere")
    assert said[-2:] == ["fallback: allocator=paged,fraction=0.5", "pluggable"]


def test_a_shim_is_built_once(machine: Machine) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(f'echo run >>"{machine.folder}/runs"\n{WORKING}')
    said = machine.install(CXX=compiler)
    assert said[0].startswith(f"shim: {machine.folder}/cache/tenure/shims/2.11.0+cu130-")
    assert said[0].endswith(".so allocator=paged,fraction=1.0") and said[1] == "built shim"
    assert machine.log == "building the allocator shim for PyTorch 2.11.0+cu130: this takes some seconds, once\n"
    runs = (machine.folder / "runs").read_text()
    assert machine.install(CXX=compiler) == said
    assert machine.log == ""
    # The second run asked the compiler for its version only.
    assert (machine.folder / "runs").read_text() == runs + "run\n"


# The shim that would be part of the package.
PREBUILT = "build._PREBUILT / build.Torch.current().prebuilt_name()"


def test_a_shim_of_other_sources_is_not_taken(machine: Machine) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(WORKING)
    prebuilt, sources = machine.folder / "prebuilt", machine.folder / "sources"
    shutil.copytree(Path(build.__file__).parents[1] / "shim", sources)
    prebuilt.mkdir()
    folders = (
        "from pathlib import Path; from tenure.torch.installation import build; "
        f"build._PREBUILT, build._SOURCES = Path({str(prebuilt)!r}), Path({str(sources)!r}); "
    )
    machine.install(f"{folders}build.compile_shim(build.Torch.current(), {PREBUILT})", CXX=compiler)

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


def test_a_later_call_asks_for_no_more_than_it_says(machine: Machine) -> None:
    """A user's TENURE_TORCH_OPTIONS may have installed more than the program then asks for."""
    machine.have_torch()
    later = "{}, {'fraction': 0.9}, {'allocator': 'native'}, {'fraction': 0.5}"
    call = (
        "tenure.torch.install('native', fraction=0.9)\n"
        f"    for options in ({later}): print(tenure.torch.install(**options).allocator)"
    )
    _, *same, error, mode = machine.install(call, CXX=machine.have_compiler(WORKING))
    assert same == ["native"] * 3 and mode == "built shim"
    assert error.startswith("error: Tenure is installed already, with allocator=native,fraction=0.9: install it once")


@pytest.mark.parametrize("compiler", [True, False])
def test_the_program_puts_another_allocator_in_its_place(machine: Machine, compiler: bool) -> None:
    machine.have_torch()
    cxx = machine.have_compiler(WORKING) if compiler else "nowhere"
    call = "tenure.torch.install(); sys.modules['torch'].cuda.get_allocator_backend = lambda: 'other'"
    said = machine.install(call, status="tenure.torch.status()", CXX=cxx)
    assert said[-1].endswith("is not installed under PyTorch: the program has put another in its place since, other")


def test_there_is_no_compiler(machine: Machine) -> None:
    machine.have_torch()
    warning, *rest = machine.install(PATH="/nowhere", CXX="")
    assert warning.startswith("warning: there is no C++ compiler: install one")
    assert warning.endswith("tenure.torch.status() says what")
    assert rest == ["fallback: allocator=paged,fraction=1.0", "pluggable"]


# A compiler script that refuses every source.
REFUSING = 'case "$1" in --version) ;; *) echo "x.h:1: error: no such thing" >&2; exit 1;; esac'


@pytest.mark.parametrize("cache", ["cache", "torch/__init__.py"])
def test_the_compiler_refuses(machine: Machine, cache: str) -> None:
    """The compiler's errors can be read afterwards, even without a cache."""
    machine.have_torch()
    compiler = machine.have_compiler(REFUSING)
    folders = {"XDG_CACHE_HOME": str(machine.folder / cache), "TMPDIR": str(machine.folder)}
    *_, warning, fallback, mode = machine.install(CXX=compiler, **folders)
    assert warning.startswith("warning: the compiler refused: x.h:1: error: no such thing (all of it is in ")
    log = Path(warning.split("(all of it is in ")[1].split(")")[0])
    assert "no such thing" in log.read_text()
    assert fallback.startswith("fallback:") and mode == "pluggable"


def test_the_compiler_s_output_is_told_if_it_cannot_be_written(machine: Machine) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(REFUSING)
    machine.install(CXX=compiler)
    (log,) = (machine.folder / "cache").glob("**/*.log")
    log.unlink()
    log.mkdir()
    warning = machine.install(CXX=compiler)[0]
    assert warning.startswith("warning: the compiler refused: x.h:1: error: no such thing: set CXX to another one. ")


def test_the_compiler_s_output_overwrites_no_file_of_others(machine: Machine) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(REFUSING)
    folders = {"XDG_CACHE_HOME": str(machine.folder / "torch/__init__.py"), "TMPDIR": str(machine.folder)}
    machine.install(CXX=compiler, **folders)
    (first,) = machine.folder.glob("*.log")
    first.write_text("of others")
    machine.install(CXX=compiler, **folders)
    assert len(list(machine.folder.glob("*.log"))) == 2 and first.read_text() == "of others"


@pytest.mark.parametrize(
    ("end", "says"), [("exit 3", "it ended with status 3"), ("kill -9 $$", "it was killed by signal 9 (Killed)")]
)
def test_the_compiler_ends_without_a_word(machine: Machine, end: str, says: str) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(f'case "$1" in --version) ;; *) {end};; esac')
    warning = machine.install(CXX=compiler)[0]
    assert warning.startswith(f"warning: the compiler refused: {says}, and said nothing (all of it is in ")


@pytest.mark.parametrize(
    ("compiler", "says"),
    [
        ('"c++', "CXX='\"c++' is not a command (No closing quotation): name a compiler's"),
        ("/bin/true", "the compiler wrote no library, and says no more: set CXX to another one"),
        ("{folder}/torch/__init__.py", "the compiler does not run ("),
    ],
)
def test_an_invalid_compiler_in_cxx_is_named(machine: Machine, compiler: str, says: str) -> None:
    machine.have_torch()
    (machine.folder / "torch/__init__.py").chmod(0o755)
    warning, *rest = machine.install(CXX=compiler.format(folder=machine.folder))
    assert warning.startswith(f"warning: {says}")
    assert rest == ["fallback: allocator=paged,fraction=1.0", "pluggable"]
    assert not list((machine.folder / "cache").glob("**/*.so"))


@pytest.mark.parametrize("damage", [b"", b"\x7fEL"])
def test_a_shim_that_was_cut_short_is_built_again(machine: Machine, damage: bytes) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(WORKING)
    said = machine.install(CXX=compiler)
    (library,) = (machine.folder / "cache").glob("**/*.so")
    whole = library.read_bytes()
    library.write_bytes(damage)
    assert machine.install(CXX=compiler) == said
    assert library.read_bytes() == whole


def test_a_build_that_was_killed_leaves_nothing(machine: Machine) -> None:
    machine.have_torch()
    killed = machine.have_compiler(f'{WORKING}; case "$1" in --version) ;; *) kill -9 $PPID;; esac')
    with pytest.raises(AssertionError):
        machine.install(CXX=killed)
    compiler = machine.have_compiler(WORKING)
    machine.install(CXX=compiler)
    files = sorted(path.suffix for path in (machine.folder / "cache/tenure/shims").iterdir())
    assert files == [".lock", ".so"]


def test_shims_that_were_not_used_for_long_are_removed(machine: Machine) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(WORKING)
    shims = machine.folder / "cache/tenure/shims"

    def build(version: str) -> Path:
        torch = machine.folder / "torch/__init__.py"
        torch.write_text(re.sub(r"2\.11\.\d", version, torch.read_text()))
        machine.install(CXX=compiler)
        return next(shims.glob(f"{version}*.so"))

    first, second = build("2.11.0"), build("2.11.1")
    for library in (first, second):
        os.utime(library, (0, 0))
    build("2.11.1")  # marks it as used
    build("2.11.2")
    assert not first.exists() and second.exists()


def test_a_shim_that_came_with_the_package_and_cannot_be_loaded_is_built(machine: Machine) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(WORKING)
    call = (
        "from pathlib import Path; from tenure.torch.installation import build; "
        f"build._PREBUILT = Path({str(machine.folder)!r}); build.compile_shim(build.Torch.current(), {PREBUILT}); "
        "tenure.torch.install()"
    )
    load = "library if 'cache' in str(library) else ctypes.CDLL('no/such.so')"
    shim, mode = machine.install(call, f"(lambda ctypes: {load})(__import__('ctypes'))", CXX=compiler)
    assert "/cache/" in shim and mode == "built shim"


def test_a_shim_that_cannot_be_loaded_is_done_without(machine: Machine) -> None:
    machine.have_torch()
    warning, *rest = machine.install(load="__import__('ctypes').CDLL(str(library))", CXX=machine.have_compiler(WORKING))
    assert warning.startswith("warning: the shim cannot be loaded (") and "set CXX to a compiler" in warning
    assert rest == ["fallback: allocator=paged,fraction=1.0", "pluggable"]


def test_a_lock_that_cannot_be_opened_is_done_without(machine: Machine) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(WORKING)
    machine.install(CXX=compiler)
    (library,) = (machine.folder / "cache").glob("**/*.so")
    library.unlink()
    library.with_suffix(".lock").unlink()
    library.with_suffix(".lock").mkdir()
    said = machine.install(CXX=compiler)
    assert said[0].startswith("warning: the shim is built again by every process") and said[-1] == "built shim"


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


def test_the_user_has_no_home(machine: Machine) -> None:
    """The program runs in a container as a user that the container does not know."""
    machine.have_torch()
    call = (
        "import os, pwd; del os.environ['HOME']; pwd.getpwuid = lambda user: {}[user]; "
        f"os.chdir({str(machine.folder)!r}); tenure.torch.install()"
    )
    before = sorted(machine.folder.iterdir())
    compiler = machine.have_compiler(WORKING)
    said = machine.install(call, XDG_CACHE_HOME="", CXX=compiler)
    assert said[0].startswith("warning: the shim is built again by every process, since ~/.cache cannot be written to")
    assert "(this user has no home): set XDG_CACHE_HOME" in said[0] and said[-1] == "built shim"
    assert sorted(machine.folder.iterdir()) == sorted([*before, Path(compiler)])


def test_a_cache_is_not_sought_in_the_working_folder(machine: Machine) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(WORKING)
    shim, mode = machine.install(XDG_CACHE_HOME="relative", HOME=str(machine.folder), CXX=compiler)
    assert shim.startswith(f"shim: {machine.folder}/.cache/tenure/shims/") and mode == "built shim"


def test_a_shim_that_was_built_is_taken_from_a_folder_that_cannot_be_written_to(machine: Machine) -> None:
    machine.have_torch()
    compiler = machine.have_compiler(WORKING)
    cache = machine.folder / "cache"
    machine.install(CXX=compiler, XDG_CACHE_HOME=str(cache))
    shims = cache / "tenure/shims"
    for lock in shims.glob("*.lock"):
        lock.unlink()
        lock.mkdir()  # makes locking it fail
    assert machine.install(CXX=compiler, XDG_CACHE_HOME=str(cache))[-1] == "built shim"


def test_importing_tenure_torch_does_not_import_pytorch(machine: Machine) -> None:
    (machine.folder / "torch.py").write_text("raise ImportError('none here')")
    path = os.pathsep.join([str(machine.folder), *filter(None, sys.path)])
    subprocess.run([sys.executable, "-c", "import tenure.torch"], env=os.environ | {"PYTHONPATH": path}, check=True)
