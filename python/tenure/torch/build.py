"""Finding the shim that fits the PyTorch at hand, or building it with the C++ compiler."""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import hashlib
import importlib.util
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LOG = logging.getLogger("tenure")
_HERE = Path(__file__).parent
_SOURCES = _HERE / "shim"
_PREBUILT = _HERE / "prebuilt"

#: Headers that the shim needs and PyTorch does not have: one of the CUDA runtime's, one of the CUDA compiler's.
_CUDA_HEADERS = ("cuda_runtime_api.h", "crt/host_defines.h")

#: How long a shim is kept that nobody uses, in seconds.
_KEPT_S = 90 * 24 * 3600


class BuildError(Exception):
    """The shim cannot be built: why, in one line."""


@dataclass(frozen=True)
class Shim:
    """What a shim is made of."""

    sources: Path
    #: Those of PyTorch's that it is linked to.
    libraries: tuple[str, ...]
    #: Where in PyTorch's headers those are that it stands on.
    headers: str
    needs_cuda: bool


def on_cuda() -> Shim:
    """The shim under PyTorch's memory of GPUs."""
    return Shim(_SOURCES, ("c10", "c10_cuda", "torch_cuda"), "c10/cuda/CUDACachingAllocator.h", needs_cuda=True)


def on_cpu() -> Shim:
    """The shim under PyTorch's memory of the CPU."""
    return Shim(_HERE / "shim_cpu", ("c10",), "c10/core/CPUAllocator.h", needs_cuda=False)


def on_operations() -> Shim:
    """The shim between PyTorch's autograd and its kernels."""
    libraries = ("c10", "torch_cpu", "torch_python")
    return Shim(_HERE / "shim_operations", libraries, "ATen/core/dispatch/Dispatcher.h", needs_cuda=False)


@dataclass(frozen=True)
class Torch:
    """The PyTorch that a shim is for: a shim fits one build of PyTorch and no other."""

    version: str
    git: str
    cuda: str
    cxx11_abi: bool
    root: Path

    @staticmethod
    def current() -> Torch:
        """The PyTorch of this program."""
        import torch

        return Torch(
            version=torch.__version__,
            git=str(torch.version.git_version),
            cuda=str(torch.version.cuda),
            cxx11_abi=bool(torch._C._GLIBCXX_USE_CXX11_ABI),
            root=Path(torch.__file__).parent,
        )

    @property
    def release(self) -> tuple[int, int]:
        """The version that programs are written for, such as (2, 11)."""
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)

    @property
    def cxx_standard(self) -> str:
        """The C++ that this PyTorch's headers are written in."""
        return "c++20" if self.release >= (2, 14) else "c++17"

    def prebuilt_name(self, shim: Shim | None = None) -> str:
        """The name of a shim's file, if one comes with the package: that of GPUs, unless another is given.

        It ends with `sources_digest`, so that a shim of other sources is not found.
        """
        return f"{self.version.split('+')[0]}-cu{self.cuda}-{self.git[:8]}-{sources_digest(shim)}.so"


def sources_digest(shim: Shim | None = None) -> str:
    """A name for what the shim is compiled from: its sources, and the header that says how it calls Tenure."""
    files = sorted(path for path in (shim or on_cuda()).sources.iterdir() if path.is_file())
    text = "\0".join(part for path in files for part in (path.name, path.read_text()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def prebuilt(torch: Torch, shim: Shim | None = None) -> Path | None:
    """The shim for `torch` that came with the package: that of GPUs, unless another is given."""
    path = _PREBUILT / torch.prebuilt_name(shim)
    return path if _is_whole(path) else None


def built(torch: Torch, shim: Shim | None = None) -> Path:
    """The shim for `torch` (that of GPUs, unless another is given), built by this call unless it was built before.

    Raises
    ------
    BuildError
        There is no compiler, a header is missing, or the compiler refuses.
    """
    shim = shim or on_cuda()
    compiler = _compiler()
    includes = _includes(torch, shim)
    key = _key(torch, compiler, shim)
    # Also where the folder cannot be written to, as in an image that was made with the shim in it.
    if (folder := _folder()) and _is_whole(shipped := folder / f"{key}.so"):
        with contextlib.suppress(OSError):
            os.utime(shipped)
        return shipped
    with _cache(folder, key) as place:
        library = place / f"{key}.so"
        if not _is_whole(library):
            _LOG.warning("building the allocator shim for PyTorch %s: this takes some seconds, once", torch.version)
            began = time.monotonic()
            compile_shim(torch, library, shim, compiler=compiler, includes=includes)
            took = time.monotonic() - began
            _LOG.info("built the allocator shim in %.1f s: %s", took, library)
            _remove_unused(place)
        return library


def compile_shim(
    torch: Torch,
    library: Path,
    shim: Shim | None = None,
    *,
    compiler: list[str] | None = None,
    includes: list[Path] | None = None,
) -> None:
    """Compiles the shim for `torch` into the file `library`, which appears when it is whole.

    Nobody else may do so at the same time: then what is left of one that was killed is overwritten by the next.

    Raises
    ------
    BuildError
        As `built`.
    """
    shim = shim or on_cuda()
    compiler = compiler or _compiler()
    own, *foreign = [shim.sources, *(includes or _includes(torch, shim))]
    # The compiler's own standard headers come before any that a package has beside CUDA's.
    paths = [f"-I{own}", *(flag for path in foreign for flag in ("-idirafter", str(path)))]
    unfinished = library.with_suffix(".unfinished")
    command = [
        *compiler,
        *(f"-std={torch.cxx_standard}", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}",
        *paths,
        *("-x", "c++", "-", "-o", str(unfinished)),
        f"-L{torch.root / 'lib'}",
        *(f"-l{name}" for name in shim.libraries),
        *(f"-Wl,{library}" for library in _cxx_library()),
    ]
    # As one file: PyTorch's headers are most of the work, and are read once.
    source = "".join(f'#include "{path.name}"\n' for path in sorted(shim.sources.glob("*.cpp")))
    try:
        unfinished.unlink(missing_ok=True)
        result = _run(command, source)
        if result.returncode != 0:
            error = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr[:200].strip())
            log = _log(library, f"{shlex.join(command)}\n{result.stderr}")
            all_of_it = f" (all of it is in {log})" if log else ""
            raise BuildError(
                f"the compiler refused: {error or _end(result.returncode)}{all_of_it}: set CXX to another one"
            )
        _seal(unfinished)
        os.replace(unfinished, library)
    except OSError as error:
        raise BuildError(f"the shim cannot be written ({error}): set XDG_CACHE_HOME to a folder that can be") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def _cxx_library() -> list[str]:
    """The C++ library of this process, which PyTorch has loaded, if that is GCC's.

    Some compilers link one of their own: two in a process do not know each other's locales, and what the shim printed a
    number into ended the process.
    """
    mapped = (line.split(maxsplit=5)[5:] for line in Path("/proc/self/maps").read_text().splitlines())
    paths = (path for found in mapped for path in found if Path(path).name.startswith("libstdc++.so"))
    return list(dict.fromkeys(paths))[:1]


def _run(command: list[str], source: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=source, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise BuildError(f"the compiler does not run ({error}): set CXX to another one") from error


def _end(status: int) -> str:
    """How a program ended that said nothing."""
    if status < 0:
        return f"it was killed by signal {-status} ({signal.strsignal(-status)}), and said nothing"
    return f"it ended with status {status}, and said nothing"


def _seal(library: Path) -> None:
    """Ends a library with a digest of it, which the loader of libraries does not look at."""
    code = library.read_bytes() if library.is_file() else b""
    if not code.startswith(b"\x7fELF"):
        raise BuildError("the compiler wrote no library, and says no more: set CXX to another one")
    with open(library, "ab") as file:
        file.write(hashlib.sha256(code).digest())
        file.flush()
        os.fsync(file.fileno())


def _is_whole(library: Path) -> bool:
    """Whether a library is there as it was sealed: one that was cut short can end the process that loads it."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    size = hashlib.sha256().digest_size
    return hashlib.sha256(content[:-size]).digest() == content[-size:]


def _compiler() -> list[str]:
    """The command that compiles C++: `$CXX`, or the first that is found."""
    try:
        command = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise BuildError(f"CXX={os.environ['CXX']!r} is no command ({error}): set it to that of a compiler") from error
    if command:
        if shutil.which(command[0]) is None:
            raise BuildError(f"there is no program {command[0]!r}, which CXX names")
        return command
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise BuildError("there is no C++ compiler: install one (on Debian and Ubuntu: apt install g++)")


def _includes(torch: Torch, shim: Shim | None = None) -> list[Path]:
    """Where the headers are that the shim includes."""
    shim = shim or on_cuda()
    own = torch.root / "include"
    found = [own, own / "torch/csrc/api/include"]
    if not (own / shim.headers).is_file():
        raise BuildError(f"this PyTorch came without its C++ headers: there is no {(own / shim.headers).parent}")
    if not shim.needs_cuda:
        return found
    candidates = list(_cuda_includes(torch.cuda))
    for header in _CUDA_HEADERS:
        holder = next((path for path in candidates if (path / header).is_file()), None)
        if holder is None:
            raise BuildError(f"CUDA's header {header} is missing: pip install tenure[torch], or set CUDA_HOME")
        if holder not in found:
            found.append(holder)
    return found


def _cuda_includes(cuda: str) -> Iterator[Path]:
    """Where CUDA's headers may be, the best place first: packages that PyTorch brings, then a toolkit."""
    major = cuda.split(".")[0]
    folders = (f"nvidia/cu{major}/include", "nvidia/cuda_runtime/include", "nvidia/cuda_nvcc/include")
    roots = [Path(entry or ".") for entry in sys.path]
    yield from (root / folder for folder in folders for root in roots)
    # Triton has those of the CUDA that it was built for.
    triton = importlib.util.find_spec("triton")
    for location in (triton.submodule_search_locations or []) if triton else []:
        yield Path(location) / "backends/nvidia/include"
    yield from (Path(home) / "include" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home)


def _key(torch: Torch, compiler: list[str], shim: Shim) -> str:
    """A name for everything that the shim's bytes depend on, `sources_digest` last."""
    version = _run([*compiler, "--version"]).stdout
    parts = [torch.version, torch.git, torch.cuda, str(torch.cxx11_abi), str(torch.root), shlex.join(compiler), version]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return f"{torch.version}-{digest[:12]}-{sources_digest(shim)}"


def _folder() -> Path | None:
    """The folder of shims that were built here, there or not; None for a user who has no home."""
    # As the XDG specification has it, what is relative is not taken.
    for home in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(home):
            return Path(home) / "tenure" / "shims"
    return None


@functools.cache
def _own_folder() -> Path:
    """A folder that lasts as long as this process."""
    folder = tempfile.mkdtemp(prefix="tenure-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _log(library: Path, text: str) -> Path | None:
    """Writes what the compiler said, if it can be, to where it is found after this process too."""
    try:
        if library.parent == _own_folder():
            # Beside other users' files, of which one may have any name that can be guessed.
            with tempfile.NamedTemporaryFile("w", prefix=f"{library.stem}-", suffix=".log", delete=False) as file:
                file.write(text)
            return Path(file.name)
        log = library.with_suffix(".log")
        log.write_text(text)
    except OSError:
        return None
    return log


def _remove_unused(folder: Path) -> None:
    """Removes what was not used for long: shims of other versions, and what builds left that were killed."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _KEPT_S:
                path.unlink()


@contextlib.contextmanager
def _cache(folder: Path | None, key: str) -> Iterator[Path]:
    """`folder`, or one to build in instead. Of several processes that want `key`, one has it and the others wait."""
    with contextlib.ExitStack() as held:
        try:
            if folder is None:
                raise FileNotFoundError(errno.ENOENT, "this user has no home")
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
            # Another user's, where several share a folder, cannot be opened.
            fcntl.flock(held.enter_context(open(folder / f"{key}.lock", "w")), fcntl.LOCK_EX)
        except OSError as error:
            warnings.warn(
                f"the shim is built again by every process, since {folder or '~/.cache'} cannot be written to "
                f"({error.strerror}): set XDG_CACHE_HOME to a folder that can",
                stacklevel=7,  # whoever calls install()
            )
            folder = _own_folder()
        yield folder
