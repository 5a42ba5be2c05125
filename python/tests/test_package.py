"""The package as a whole: its version, its documentation, its types."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tenure
from tenure import _native

PACKAGE = Path(tenure.__file__).parent


def modules() -> list[str]:
    names = [module.name for module in pkgutil.walk_packages([str(PACKAGE)], "tenure.")]
    return ["tenure", *(name for name in names if name != "tenure._native")]


def imported(name: str) -> ModuleType:
    try:
        module = importlib.import_module(name)
        # Some names are imported only here.
        for public_name in getattr(module, "__all__", []):
            getattr(module, public_name)
        return module
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "ray"):
            raise
        pytest.skip(f"{error.name} is not installed")


def public(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yields a module's public functions and classes, and their methods and properties."""
    for name in getattr(module, "__all__", []):
        member = getattr(module, name)
        if inspect.isroutine(member) or inspect.isclass(member):
            yield f"{module.__name__}.{name}", member
        if inspect.isclass(member):
            for attribute, value in vars(member).items():
                if not attribute.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                    yield f"{module.__name__}.{name}.{attribute}", value


def test_the_version_is_the_crates() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", tenure.__version__)


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
    assert (PACKAGE / "_native.pyi").exists()


@pytest.mark.parametrize("name", modules())
def test_every_public_thing_is_documented(name: str) -> None:
    module = imported(name)
    assert module.__doc__, f"{name} has no docstring"
    # A dataclass without a docstring has its signature as docstring.
    undocumented = [
        path
        for path, member in public(module)
        if not (text := inspect.getdoc(member))
        or inspect.isclass(member)
        and text.startswith(f"{path.rpartition('.')[2]}(")
    ]
    assert not undocumented


@pytest.mark.parametrize("name", modules())
def test_examples_in_the_documentation_hold(name: str) -> None:
    failed, _ = doctest.testmod(imported(name))
    assert failed == 0


def test_every_function_says_what_it_takes() -> None:
    """Docstrings name all parameters that the stubs do."""
    for module in (tenure, tenure.memory, tenure.trace):
        for path, member in public(module):
            if not inspect.isfunction(member):
                continue
            text = inspect.getdoc(member) or ""
            missing = [name for name in inspect.signature(member).parameters if name != "self" and name not in text]
            assert not missing, f"{path} does not say what {missing} are"


def test_the_stubs_match_the_extension_module(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    # mypy needs a folder that contains nothing else.
    (tmp_path / "tenure").symlink_to(PACKAGE)
    command = [sys.executable, "-m", "mypy.stubtest", "tenure._native", "--ignore-disjoint-bases"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_it_imports_neither_torch_nor_numpy() -> None:
    program = "import sys, tenure; sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_native_things_that_are_public_say_so() -> None:
    """The extension module is a detail: what of it is public says that it is of `tenure`."""
    for name in tenure.__all__:
        value = getattr(tenure, name)
        if any(value is native for native in vars(_native).values()) and hasattr(value, "__module__"):
            assert value.__module__ in ("tenure", "tenure._native", None), name
            assert value.__doc__, name
