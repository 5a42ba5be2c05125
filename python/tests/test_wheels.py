"""Wheels that `just wheels` made in target/wheels: their contents, and that they run in a fresh environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.torch.installation import build

MOST_BYTES = 40_000_000

# The newest version of each that manylinux_2_28 has.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}

SHIMS = (build.on_cuda(), build.on_cpu(), build.on_operations())

FOLDER = Path(__file__).resolve().parents[2] / "target/wheels"
# Installing the package from its sources leaves a wheel there too, which fits this machine only.
WHEELS = sorted(FOLDER.glob("tenure-*-manylinux*.whl"))

pytestmark = pytest.mark.skipif(not WHEELS, reason=f"there is no wheel in {FOLDER}: `just wheels` makes them")

each_wheel = pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.name)


def shims(wheel: Path) -> list[str]:
    """Returns the names of a wheel's shims."""
    with zipfile.ZipFile(wheel) as archive:
        paths = [Path(name) for name in archive.namelist()]
    return [path.name for path in paths if path.parent.name == "prebuilt"]


def fits(wheel: Path) -> bool:
    """Returns whether a wheel is for this Python."""
    return ("cp314t" in wheel.name) == bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a fresh environment with only the wheel, and returns its folder of programs."""
    wheel = next((wheel for wheel in WHEELS if fits(wheel)), None)
    if wheel is None:
        pytest.skip("no wheel is for this Python")
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    return folder / "bin"


def run(environment: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of an environment, with no other programs on the path."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TENURE"))}
    variables["PATH"] = str(environment)
    program, *arguments = command
    command_line = [str(environment / program), *arguments]
    return subprocess.run(command_line, env=variables, cwd="/", capture_output=True, text=True, check=False)


@each_wheel
def test_a_wheel_is_for_every_python_from_3_11_or_free_threaded(wheel: Path) -> None:
    assert re.fullmatch(r"tenure-[\d.]+-(cp311-abi3|cp314-cp314t)-manylinux_2_28_x86_64\.whl", wheel.name)


@each_wheel
def test_a_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size <= MOST_BYTES


@each_wheel
def test_nothing_in_a_wheel_needs_newer_libraries_than_its_name_says(wheel: Path) -> None:
    newer = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            if content.startswith(b"\x7fELF"):
                # Each name stands alone among the names of a library's symbols.
                for kind, version in re.findall(rb"\0(GLIBC|GLIBCXX|CXXABI)_([\d.]+)(?=\0)", content):
                    if tuple(map(int, version.split(b"."))) > NEWEST[kind.decode()]:
                        newer.append((name, kind, version))
    assert not newer


@each_wheel
def test_a_wheel_has_every_shim_of_each_pytorch_and_none_of_other_sources(wheel: Path) -> None:
    releases = [{name.rsplit("-", 1)[0] for name in shims(wheel) if digest in name} for digest in digests()]
    assert releases[0]
    assert all(others == releases[0] for others in releases)
    assert all(any(digest in name for digest in digests()) for name in shims(wheel))


def digests() -> Iterator[str]:
    return (build.sources_digest(shim) for shim in SHIMS)


def test_shims_are_found_without_a_compiler(environment: Path) -> None:
    wheel = next(wheel for wheel in WHEELS if fits(wheel))
    version, cuda, git, _ = shims(wheel)[0].split("-")
    program = f"""
from pathlib import Path
from tenure.torch.installation import build
torch = build.Torch({version!r} + "+cu", {git!r}, {cuda.removeprefix("cu")!r}, True, Path("/nowhere"))
print(*(build.prebuilt(torch, shim).name for shim in (build.on_cuda(), build.on_cpu(), build.on_operations())))
"""
    result = run(environment, "python", "-c", program)
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.split()) <= set(shims(wheel))


def test_the_package_is_imported_from_an_environment_of_its_own(environment: Path) -> None:
    result = run(environment, "python", "-c", "import tenure; print(tenure.devices().cpu and tenure.__file__)")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(str(environment.parent))


def test_the_program_is_installed_with_the_package(environment: Path) -> None:
    version = run(environment, "python", "-c", "import tenure; print(tenure.__version__)").stdout.strip()
    assert run(environment, "tenure", "--version").stdout == f"tenure {version}\n"


def test_the_program_says_by_its_exit_code_how_it_ended(environment: Path) -> None:
    assert run(environment, "tenure", "no-such-command").returncode == 2
