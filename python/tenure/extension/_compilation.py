"""Compiling libraries with the C++ compiler of the machine, once, into a folder that programs share."""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

#: The time in seconds after which an unused library is removed.
_KEPT_S = 90 * 24 * 3600


class BuildError(Exception):
    """A library cannot be built. The message says why, in one line."""


def run(
    command: list[str], source: str = "", *, folder: Path | None = None, variable: str = "CXX"
) -> subprocess.CompletedProcess[str]:
    """Runs a compiler, which an environment variable names, in a folder, with `source` as its input.

    Raises
    ------
    BuildError
        It cannot be started.
    """
    try:
        return subprocess.run(
            command, input=source, capture_output=True, text=True, errors="replace", check=False, cwd=folder
        )
    except OSError as error:
        raise BuildError(f"the compiler does not run ({error}): set {variable} to another one") from error


def complaint(result: subprocess.CompletedProcess[str]) -> str:
    """Returns the line in which a compiler that failed says why."""
    error = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr[:200].strip())
    if error:
        return error
    if (status := result.returncode) < 0:
        return f"it was killed by signal {-status} ({signal.strsignal(-status)}), and said nothing"
    return f"it ended with status {status}, and said nothing"


def check(result: subprocess.CompletedProcess[str], library: Path) -> None:
    """Checks that a compiler has succeeded. If not, its output goes to a log beside `library`.

    Raises
    ------
    BuildError
        It has failed.
    """
    if result.returncode != 0:
        log = write_log(library, f"{shlex.join(result.args)}\n{result.stderr}")
        all_of_it = f" (all of it is in {log})" if log else ""
        raise BuildError(f"the compiler refused: {complaint(result)}{all_of_it}")


def seal(library: Path) -> None:
    """Appends a digest to a library. The dynamic loader ignores it.

    Raises
    ------
    BuildError
        It is no library.
    """
    code = library.read_bytes() if library.is_file() else b""
    if not code.startswith(b"\x7fELF"):
        raise BuildError("the compiler wrote no library, and says no more: set CXX to another one")
    with open(library, "ab") as file:
        file.write(hashlib.sha256(code).digest())
        file.flush()
        os.fsync(file.fileno())


def is_whole(library: Path) -> bool:
    """Returns whether a library matches its digest: loading a truncated one can crash the process."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    size = hashlib.sha256().digest_size
    return hashlib.sha256(content[:-size]).digest() == content[-size:]


def compiler() -> list[str]:
    """Returns the command that compiles C++: `$CXX`, or else the first compiler that is found.

    Raises
    ------
    BuildError
        There is none.
    """
    try:
        command = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise BuildError(f"CXX={os.environ['CXX']!r} is not a command ({error}): name a compiler's") from error
    if command:
        if shutil.which(command[0]) is None:
            raise BuildError(f"there is no program {command[0]!r}, which CXX names")
        return command
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise BuildError("there is no C++ compiler: install one (on Debian and Ubuntu: apt install g++)")


def cache_folder(name: str) -> Path | None:
    """Returns the folder of libraries that were built here, which may not exist; None for a user without a home."""
    # The XDG specification says to ignore relative paths.
    for home in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(home):
            return Path(home) / "tenure" / name
    return None


@functools.cache
def own_folder() -> Path:
    """Returns a folder that is deleted when this process ends."""
    folder = tempfile.mkdtemp(prefix="tenure-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def warn_unwritable(what: str, folder: Path | None, error: OSError, stacklevel: int) -> None:
    """Warns that a library cannot be kept in a folder of `cache_folder`, because of an error."""
    warnings.warn(
        f"{what} is built again by every process, since {folder or '~/.cache'} cannot be written to "
        f"({error.strerror}): set XDG_CACHE_HOME to a folder that can",
        stacklevel=stacklevel,
    )


def write_log(library: Path, text: str) -> Path | None:
    """Writes a compiler's output, if possible, to a file that outlives this process. Returns the file."""
    try:
        if library.parent == own_folder():
            # In a folder with other users' files: they could have taken any name that can be guessed.
            with tempfile.NamedTemporaryFile("w", prefix=f"{library.stem}-", suffix=".log", delete=False) as file:
                file.write(text)
            return Path(file.name)
        log = library.with_suffix(".log")
        log.write_text(text)
    except OSError:
        return None
    return log


def is_unused(path: Path) -> bool:
    """Returns whether a file or a folder was not used for long."""
    return time.time() - path.stat().st_mtime > _KEPT_S


def remove_unused(files: Iterable[Path]) -> None:
    """Removes the unused ones of some files: libraries of other versions, and leftovers of killed builds."""
    for path in files:
        with contextlib.suppress(OSError):
            if is_unused(path):
                path.unlink()


@contextlib.contextmanager
def place_to_build(folder: Path | None, key: str, what: str, *, stacklevel: int) -> Iterator[Path]:
    """Gives `folder`, or another one to build in. Locks `key`, so that other processes that build it wait.

    Parameters
    ----------
    folder
        The folder of `cache_folder`.
    key
        The name of the library.
    what
        The library's name in a warning, such as "the shim".
    stacklevel
        The place that a warning shows: see `warnings.warn`.
    """
    with contextlib.ExitStack() as held:
        try:
            if folder is None:
                raise FileNotFoundError(errno.ENOENT, "this user has no home")
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
            # Fails for another user's lock file in a folder that several users share.
            fcntl.flock(held.enter_context(open(folder / f"{key}.lock", "w")), fcntl.LOCK_EX)
        except OSError as error:
            warn_unwritable(what, folder, error, stacklevel + 1)
            folder = own_folder()
        yield folder
