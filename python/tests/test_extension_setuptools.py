"""Extensions that setuptools builds ahead of time, in wheels and in the sources' folder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

setuptools = pytest.importorskip("setuptools", minversion="64")

# The newer ones make wheels themselves.
MAKES_WHEELS = int(setuptools.__version__.split(".")[0]) >= 71 or importlib.util.find_spec("wheel") is not None

HAS_RUST = shutil.which("rustc") is not None

pytestmark = pytest.mark.skipif(
    not (MAKES_WHEELS and any(map(shutil.which, ("c++", "g++", "clang++")))),
    reason="there is no C++ compiler, or no setuptools from 71 on",
)

SETUP = """
from setuptools import setup
from tenure.extension import BuildExtension, CppExtension, RustExtension

extensions = [
    CppExtension(
        "scaling.cpp",
        ["scaled.cpp", "factor.cpp"],
        include_dirs=["include"],
        define_macros=[("TWICE", "2"), ("IS_NAMED", None)],
        undef_macros=["NDEBUG"],
        extra_compile_args={"cxx": ["-O0", "-DNDEBUG"]},
        extra_link_args=["-lm"],
    )
]
if %s:
    extensions.append(RustExtension("scaling.rust", "scaled.rs"))
setup(ext_modules=extensions, cmdclass={"build_ext": BuildExtension})
"""

FILES = {
    "setup.py": SETUP % HAS_RUST,
    "pyproject.toml": """
[build-system]
requires = ["setuptools>=71", "tenure"]
build-backend = "setuptools.build_meta"

[project]
name = "scaling"
version = "1.2"

[tool.setuptools]
packages = ["scaling"]
""",
    "scaling/__init__.py": "",
    "include/factor.h": "#define FACTOR 1.5\n",
    "scaled.cpp": """
#include <tenure_extension.hpp>
#include <factor.h>
#ifndef IS_NAMED
#error a macro is missing
#endif
double twice(double);
static tenure::Tensor scaled(const tenure::Tensor &x) { return x * twice(FACTOR); }
TENURE_EXTENSION(module) { module.def("scaled", scaled, "Returns x times a factor."); }
""",
    "factor.cpp": "double twice(double x) { return TWICE * x; }\n",
    "scaled.rs": """
tenure_extension::functions! {
    fn scaled(x: &tenure_extension::Tensor) -> tenure_extension::Result<tenure_extension::Tensor> { x * 3.0 }
}
""",
}

USE = """
import tenure, scaling.cpp
assert scaling.cpp.scaled(tenure.ones(2)).tolist() == [3, 3]
assert scaling.cpp.scaled.__doc__.endswith("Returns x times a factor.")
try:
    import scaling.rust
except ImportError:
    print("C++")
else:
    assert scaling.rust.scaled(tenure.ones(2)).tolist() == [3, 3]
    print("C++ and Rust")
"""

USED = "C++ and Rust\n" if HAS_RUST else "C++\n"


def environment(*folders: Path) -> dict[str, str]:
    """Returns variables with which a process finds this one's packages, and those of folders."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, folders), *filter(None, sys.path)])}


def run(command: list[str], folder: Path, *packages: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment(*packages), capture_output=True, text=True, timeout=600, check=False
    )


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Builds the extensions of a project in its folder."""
    return run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], folder)


def compiled(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Returns the C++ files that were compiled."""
    assert result.returncode == 0, result.stderr
    words = [line.split() for line in result.stderr.splitlines()]
    return sorted(line[line.index("-c") + 1] for line in words if "-c" in line)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a project whose extensions are built."""
    folder = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    assert compiled(build(folder)) == ["factor.cpp", "scaled.cpp"]
    return folder


def test_a_project_is_built_in_its_folder(project: Path) -> None:
    assert (project / "scaling/libcpp.so").is_file() and (project / "scaling/cpp.py").is_file()
    result = run([sys.executable, "-c", USE], project)
    assert result.stdout == USED, result.stderr


def test_a_command_has_the_options_of_its_class(project: Path) -> None:
    source = project / "setup.py"
    source.write_text(source.read_text().replace("BuildExtension}", "BuildExtension.with_options(force=True)}"))
    assert compiled(build(project)) == ["factor.cpp", "scaled.cpp"]
    source.write_text(source.read_text().replace("(force=True)", "(use_ninja=False, no_python_abi_suffix=True)"))
    assert compiled(build(project)) == []
    source.write_text(FILES["setup.py"])


def test_only_what_has_changed_is_compiled_again(project: Path) -> None:
    header, source = project / "include/factor.h", project / "factor.cpp"
    assert compiled(build(project)) == []
    header.write_text("#define FACTOR 2.5\n")
    assert compiled(build(project)) == ["scaled.cpp"]
    changed = USE.partition("assert")[0] + "print(scaling.cpp.scaled(tenure.ones(1)).item())"
    assert run([sys.executable, "-c", changed], project).stdout == "5.0\n"
    source.write_text("\n" + FILES["factor.cpp"])
    header.write_text(FILES["include/factor.h"])
    assert compiled(build(project)) == ["factor.cpp", "scaled.cpp"]


def test_a_refused_source_gives_one_line(project: Path) -> None:
    source = project / "factor.cpp"
    source.write_text("double twice(double x) { return y; }\n")
    result = build(project)
    source.write_text(FILES["factor.cpp"])
    assert result.returncode != 0
    last = result.stderr.splitlines()[-1]
    assert last.startswith(
        "error: the extension scaling.cpp cannot be built: the compiler refused: factor.cpp:1:33: error"
    )


def test_a_module_of_the_same_name_is_not_overwritten(project: Path) -> None:
    module = project / "scaling/cpp.py"
    written = module.read_text()
    module.write_text("own = 1\n")
    result = build(project)
    assert module.read_text() == "own = 1\n"
    module.write_text(written)
    assert result.returncode != 0 and "is a module already" in result.stderr.splitlines()[-1]


def test_a_wheel_has_the_library_and_its_module_and_is_for_the_platform(project: Path, tmp_path: Path) -> None:
    copied = copy(project, tmp_path)
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w"]
    result = run([*command, str(tmp_path / "dist"), "."], copied)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.startswith("scaling-1.2-cp3") and "linux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    assert {"scaling/cpp.py", "scaling/libcpp.so"} <= set(names)
    assert not [name for name in names if name.endswith((".cpp", ".o"))]
    result = run([sys.executable, "-c", USE], tmp_path, tmp_path / "installed")
    assert result.stdout == USED, result.stderr

    older = tmp_path / "older.c"
    older.write_text("struct { unsigned abi; } older = {99};\nvoid *tenure_extension_entry(void) { return &older; }\n")
    library = tmp_path / "installed/scaling/libcpp.so"
    subprocess.run(["c++", "-x", "c", "-shared", "-fPIC", str(older), "-o", str(library)], check=True)
    result = run([sys.executable, "-c", USE], tmp_path, tmp_path / "installed")
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"tenure.Error: {library} was built for version 99 of Tenure's extensions")


def test_an_editable_installation_is_used_from_the_folder(project: Path, tmp_path: Path) -> None:
    copied, environment_folder = copy(project, tmp_path), tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment_folder], check=True)
    python = environment_folder / "bin/python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-build-isolation"]
    result = run([*command, "--no-deps", "--editable", "."], copied)
    assert result.returncode == 0, result.stdout + result.stderr
    result = run([str(python), "-c", USE + "print(scaling.cpp.__file__)"], tmp_path)
    assert result.stdout == f"{USED}{copied / 'scaling/cpp.py'}\n", result.stderr


def copy(project: Path, folder: Path) -> Path:
    """Copies a project without what was built there."""
    ignored = shutil.ignore_patterns("build", "*.so", "*.egg-info", "__pycache__", "cpp.py", "rust.py")
    return Path(shutil.copytree(project, folder / "project", ignore=ignored))


def test_setuptools_is_imported_only_where_it_is_used() -> None:
    program = "import sys, tenure.extension; assert 'setuptools' not in sys.modules; tenure.extension.CppExtension"
    result = run([sys.executable, "-c", program + "; print('setuptools' in sys.modules)"], Path.cwd())
    assert result.stdout == "True\n", result.stderr
