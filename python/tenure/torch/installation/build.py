"""Finding the shim that fits the PyTorch at hand, or building it with the C++ compiler."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tenure.extension import _compilation
from tenure.extension._compilation import BuildError as BuildError

_LOG = logging.getLogger("tenure")
#: The folder of the shims.
_HERE = Path(__file__).parents[1]
_SOURCES = _HERE / "shim"
_PREBUILT = _HERE / "prebuilt"

#: The headers that the shim needs and PyTorch does not have: one of the CUDA runtime's, one of the CUDA compiler's.
_CUDA_HEADERS = ("cuda_runtime_api.h", "crt/host_defines.h")


@dataclass(frozen=True)
class Shim:
    """The parts that a shim is compiled from."""

    sources: Path
    #: The libraries of PyTorch's that it is linked to.
    libraries: tuple[str, ...]
    #: A header of PyTorch's that it needs, as a path below PyTorch's headers.
    headers: str
    needs_cuda: bool


def on_cuda() -> Shim:
    """Returns the shim of PyTorch's GPU allocator."""
    return Shim(
        _SOURCES, ("c10", "c10_cuda", "torch_cpu", "torch_cuda"), "c10/cuda/CUDACachingAllocator.h", needs_cuda=True
    )


def on_cpu() -> Shim:
    """Returns the shim of PyTorch's CPU allocator."""
    return Shim(_HERE / "shim_cpu", ("c10",), "c10/core/CPUAllocator.h", needs_cuda=False)


def on_operations() -> Shim:
    """Returns the shim between PyTorch's autograd and its kernels."""
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
        """Returns the PyTorch of this program."""
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
        """The major and minor version, such as (2, 11)."""
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)

    @property
    def cxx_standard(self) -> str:
        """The C++ standard of this PyTorch's headers."""
        return "c++20" if self.release >= (2, 14) else "c++17"

    def prebuilt_name(self, shim: Shim | None = None) -> str:
        """Returns the file name that a shim has if it comes with the package. The default is the GPU shim.

        The name ends with `sources_digest`, so that a shim built from other sources is not found.
        """
        return f"{self.version.split('+')[0]}-cu{self.cuda}-{self.git[:8]}-{sources_digest(shim)}.so"


def sources_digest(shim: Shim | None = None) -> str:
    """Returns a digest of the shim's sources, including the header of the functions it calls in Tenure."""
    files = sorted(path for path in (shim or on_cuda()).sources.iterdir() if path.is_file())
    text = "\0".join(part for path in files for part in (path.name, path.read_text()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def prebuilt(torch: Torch, shim: Shim | None = None) -> Path | None:
    """Returns the shim for `torch` that came with the package, if any. The default is the GPU shim."""
    path = _PREBUILT / torch.prebuilt_name(shim)
    return path if _compilation.is_whole(path) else None


def built(torch: Torch, shim: Shim | None = None) -> Path:
    """Returns the shim for `torch`, and builds it unless it was built before. The default is the GPU shim.

    Raises
    ------
    BuildError
        There is no compiler, a header is missing, or the compilation fails.
    """
    shim = shim or on_cuda()
    compiler = _compilation.compiler()
    includes = _includes(torch, shim)
    key = _key(torch, compiler, shim)
    # Works also if the folder cannot be written to, as in a container image with the shim in it.
    if (folder := _compilation.cache_folder("shims")) and _compilation.is_whole(shipped := folder / f"{key}.so"):
        with contextlib.suppress(OSError):
            os.utime(shipped)
        return shipped
    # The warning shows the caller of install().
    with _compilation.place_to_build(folder, key, "the shim", stacklevel=7) as place:
        library = place / f"{key}.so"
        if not _compilation.is_whole(library):
            _LOG.warning("building the allocator shim for PyTorch %s: this takes some seconds, once", torch.version)
            began = time.monotonic()
            compile_shim(torch, library, shim, compiler=compiler, includes=includes)
            took = time.monotonic() - began
            _LOG.info("built the allocator shim in %.1f s: %s", took, library)
            _compilation.remove_unused(place.iterdir())
        return library


def compile_shim(
    torch: Torch,
    library: Path,
    shim: Shim | None = None,
    *,
    compiler: list[str] | None = None,
    includes: list[Path] | None = None,
) -> None:
    """Compiles the shim for `torch` into the file `library`, which appears only when it is complete.

    No other process may compile the same file meanwhile. Leftovers of a killed compilation are overwritten.

    Raises
    ------
    BuildError
        As `built`.
    """
    shim = shim or on_cuda()
    compiler = compiler or _compilation.compiler()
    own, *foreign = [shim.sources, *(includes or _includes(torch, shim))]
    # The compiler's own standard headers come before copies that a package has beside CUDA's.
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
    # All sources are compiled as one file: PyTorch's headers are most of the work, and are read only once.
    source = "".join(f'#include "{path.name}"\n' for path in sorted(shim.sources.glob("*.cpp")))
    try:
        unfinished.unlink(missing_ok=True)
        result = _compilation.run(command, source)
        if result.returncode != 0:
            log = _compilation.write_log(library, f"{shlex.join(command)}\n{result.stderr}")
            all_of_it = f" (all of it is in {log})" if log else ""
            raise BuildError(
                f"the compiler refused: {_compilation.complaint(result)}{all_of_it}: set CXX to another one"
            )
        _compilation.seal(unfinished)
        os.replace(unfinished, library)
    except OSError as error:
        raise BuildError(f"the shim cannot be written ({error}): set XDG_CACHE_HOME to a folder that can be") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def _cxx_library() -> list[str]:
    """Returns the path of this process's C++ library, which PyTorch has loaded, if it is GCC's.

    Some compilers link a C++ library of their own. Two in a process do not know each other's locales: the process
    crashed when the shim printed a number to a stream.
    """
    mapped = (line.split(maxsplit=5)[5:] for line in Path("/proc/self/maps").read_text().splitlines())
    paths = (path for found in mapped for path in found if Path(path).name.startswith("libstdc++.so"))
    return list(dict.fromkeys(paths))[:1]


def _includes(torch: Torch, shim: Shim | None = None) -> list[Path]:
    """Returns the folders of the headers that the shim includes."""
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
    """Yields folders that may have CUDA's headers, the best first: packages that PyTorch brings, then a toolkit."""
    major = cuda.split(".")[0]
    folders = (f"nvidia/cu{major}/include", "nvidia/cuda_runtime/include", "nvidia/cuda_nvcc/include")
    roots = [Path(entry or ".") for entry in sys.path]
    yield from (root / folder for folder in folders for root in roots)
    # Triton has the headers of the CUDA that it was built for.
    triton = importlib.util.find_spec("triton")
    for location in (triton.submodule_search_locations or []) if triton else []:
        yield Path(location) / "backends/nvidia/include"
    yield from (Path(home) / "include" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home)


def _key(torch: Torch, compiler: list[str], shim: Shim) -> str:
    """Returns a name that covers everything the shim's bytes depend on, with `sources_digest` last."""
    version = _compilation.run([*compiler, "--version"]).stdout
    parts = [torch.version, torch.git, torch.cuda, str(torch.cxx11_abi), str(torch.root), shlex.join(compiler), version]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return f"{torch.version}-{digest[:12]}-{sources_digest(shim)}"
