"""Functions in C++, CUDA or Rust on tensors, compiled while the program runs, or ahead of time by setuptools.

A source in C++ includes ``tenure_extension.hpp``, whose first lines show how; the tensors there have PyTorch's names.
One in Rust uses the crate ``tenure_extension``, which comes with this package.

>>> from tenure.extension import load_inline
>>> source = "Tensor scaled(const Tensor &x, double factor) { return x * factor; }"
>>> extension = load_inline("scaling", source, functions=["scaled"])  # doctest: +SKIP
>>> extension.scaled(tenure.ones(2), 3.0)  # doctest: +SKIP
tensor([3., 3.])
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tenure import _native
from tenure._errors import Error
from tenure._files import write_whole
from tenure.extension import _compilation, _cuda, _rust
from tenure.extension._compilation import BuildError
from tenure.extension._cuda import CudaSources

if TYPE_CHECKING:
    from tenure.extension._setuptools import BuildExtension, CppExtension, RustExtension

__all__ = [
    "BuildExtension",
    "CppExtension",
    "RustExtension",
    "include_paths",
    "load",
    "load_inline",
    "open_library",
]

_LOG = logging.getLogger("tenure")

#: The endings of sources that the C++ compiler takes.
_ENDINGS = (".cpp", ".cc", ".cxx", ".c++")

#: Flags of a program: a list, or one text.
_Flags = str | Iterable[str | os.PathLike[str]] | None

_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden")


def __getattr__(name: str) -> Any:
    # They are imported when they are used: setuptools need not be there.
    if name in ("BuildExtension", "CppExtension", "RustExtension"):
        from tenure.extension import _setuptools

        return getattr(_setuptools, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load(
    name: str,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    extra_cflags: _Flags = None,
    extra_cuda_cflags: _Flags = None,
    extra_ldflags: _Flags = None,
    extra_include_paths: Iterable[str | os.PathLike[str]] | None = None,
    verbose: bool = False,
) -> ModuleType:
    """Compiles an extension, unless it was compiled before, and opens it.

    The library is kept in the cache (see ``XDG_CACHE_HOME``), and compiled again when a source, a header that it
    includes, the flags or the compiler change. If the cache cannot be written to, there is a warning, and the library
    is in a folder that is deleted when the process ends.

    Parameters
    ----------
    name
        The extension's name: an identifier.
    sources
        The source files in C++, one of which has ``TENURE_EXTENSION``, and in CUDA (``.cu``). nvcc compiles sources in
        CUDA where there is one; without, they have kernels only. NVRTC compiles kernels that are launched by name. Or
        one source in Rust: a file, which is the root of a crate, or a folder with ``Cargo.toml``.
    extra_cflags
        More flags of the compiler, such as ``-O3``, or ``-Ctarget-cpu=native`` for Rust: a list, or one text.
    extra_cuda_cflags
        More flags of nvcc and NVRTC, such as ``--use_fast_math``: a list, or one text.
    extra_ldflags
        More flags of the linker, such as ``-lm``: a list, or one text.
    extra_include_paths
        More folders of headers. None for Rust.
    verbose
        Whether to print the commands.

    Returns
    -------
    module
        A module with the extension's functions.

    Raises
    ------
    tenure.Error
        There is no compiler, it refuses the sources, or the library is no extension. The message has the compiler's
        first error, and names the file with the rest.
    """
    _check_name(name)
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    files = [Path(source).absolute() for source in given]
    if not files:
        raise Error(f"the extension {name} has no sources")
    in_rust = [file for file in files if _rust.is_rust(file)]
    if in_rust and len(files) > 1:
        raise Error(f"{in_rust[0]} must be the only source: Rust finds other files by `mod`, and C++ by a build script")
    for file in files:
        if not in_rust and file.suffix not in (*_ENDINGS, _cuda.ENDING):
            endings = ", ".join(_ENDINGS)
            raise Error(f"{file} is not a source in C++, CUDA or Rust: its name must end with {endings}, .cu or .rs")
        if not file.exists():
            raise Error(f"the extension {name} cannot be built: there is no file {file}")
    included = [str(Path(folder).absolute()) for folder in extra_include_paths or ()]
    if in_rust and included:
        raise Error(f"the extension {name} is in Rust, which has no headers: leave extra_include_paths out")
    flags, linking = _words(extra_cflags), _words(extra_ldflags)
    try:
        if in_rust:
            library = _built_in_rust(name, files[0], flags, linking, verbose)
        else:
            folders = [*included, *include_paths()]
            flags = [*_FLAGS, *flags, *(f"-I{folder}" for folder in folders)]
            in_cuda = [file for file in files if file.suffix == _cuda.ENDING]
            cuda = CudaSources(in_cuda, _words(extra_cuda_cflags), folders) if in_cuda else None
            library = _built(name, files, flags, linking, verbose, cuda)
    except BuildError as error:
        raise Error(f"the extension {name} cannot be built: {error}") from None
    return open_library(library, name)


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str],
    functions: str | Sequence[str] | None = None,
    *,
    cuda_sources: str | Sequence[str] = (),
    extra_cflags: _Flags = None,
    extra_cuda_cflags: _Flags = None,
    extra_ldflags: _Flags = None,
    extra_include_paths: Iterable[str | os.PathLike[str]] | None = None,
    verbose: bool = False,
) -> ModuleType:
    """Compiles an extension from texts, as `load` does from files.

    Parameters
    ----------
    name
        The extension's name: an identifier.
    cpp_sources
        C++ sources. They need not include ``tenure_extension.hpp``, and ``Tensor`` stands for ``tenure::Tensor``.
    functions
        The C++ functions that Python calls, or one. None if the sources have ``TENURE_EXTENSION`` themselves.
    cuda_sources
        Sources in CUDA C++, as they are.
    extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths, verbose
        As for `load`.

    Returns
    -------
    module
        A module with the extension's functions.

    Raises
    ------
    tenure.Error
        As for `load`.
    """
    _check_name(name)
    texts = [cpp_sources] if isinstance(cpp_sources, str) else list(cpp_sources)
    in_cuda = [cuda_sources] if isinstance(cuda_sources, str) else list(cuda_sources)
    own_headers = "#include <tenure_cuda.hpp>\n" if in_cuda else ""
    parts = [f"#include <tenure_extension.hpp>\n{own_headers}using tenure::Tensor;\n", *texts]
    if functions is not None:
        names = [functions] if isinstance(functions, str) else functions
        defined = " ".join(f'module.def("{function}", {function});' for function in names)
        parts.append(f"TENURE_EXTENSION(module) {{ {defined} }}\n")
    sources = []
    for content, ending in [("\n".join(parts), _ENDINGS[0]), *((text, _cuda.ENDING) for text in in_cuda)]:
        source = _cache() / f"{name}-{_digest(content)}{ending}"
        write_whole(source, content)
        sources.append(source)
    return load(
        name,
        sources,
        extra_cflags=extra_cflags,
        extra_cuda_cflags=extra_cuda_cflags,
        extra_ldflags=extra_ldflags,
        extra_include_paths=extra_include_paths,
        verbose=verbose,
    )


def open_library(library: str | os.PathLike[str], name: str | None = None) -> ModuleType:
    """Opens the library of an extension that was compiled before.

    Parameters
    ----------
    library
        The file.
    name
        The module's name. Default: the file's, without its ending.

    Returns
    -------
    module
        A module with the extension's functions.

    Raises
    ------
    tenure.Error
        The file cannot be opened, is no extension, or has two functions of a name.
    """
    path = Path(library).absolute()
    module = ModuleType(name or path.name.split(".")[0])
    module.__file__ = str(path)
    known: set[str] = set()
    for function in _native.load_extension(path):
        if function.__name__ in known:
            raise Error(f"{path} defines the function {function.__name__} twice: give one another name")
        known.add(function.__name__)
        setattr(module, function.__name__, function)
    return module


def _check_name(name: str) -> None:
    if not name.isidentifier():
        raise Error(f"the name of an extension must be an identifier, got {name!r}")


def _words(flags: _Flags) -> list[str]:
    """Returns flags one by one."""
    if not isinstance(flags, str):
        return [os.fspath(flag) for flag in flags or ()]
    try:
        return shlex.split(flags)
    except ValueError as error:
        raise Error(f"the flags {flags!r} cannot be told apart ({error}): give them as a list") from None


@functools.cache
def _headers() -> Path:
    """Returns a folder with the headers of this version."""
    folder = _cache()
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        _native.write_headers(unfinished)
        files = sorted(Path(unfinished).iterdir())
        digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]
        headers = folder / f"include-{digest}"
        headers.mkdir(exist_ok=True)
        for file in files:
            file.replace(headers / file.name)
    return headers


def include_paths() -> list[str]:
    """Returns the folders of the headers that an extension includes."""
    return [str(_headers())]


@functools.cache
def _cache() -> Path:
    """Returns the folder of extensions that were built here."""
    folder = _compilation.cache_folder("extensions")
    try:
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, "this user has no home")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        # Shows the call of `load`.
        _compilation.warn_unwritable("each extension", folder, error, stacklevel=6)
        return _compilation.own_folder()
    return folder


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _built(
    name: str, files: list[Path], flags: list[str], linking: list[str], verbose: bool, cuda: CudaSources | None
) -> Path:
    """Returns the library of an extension in C++ and CUDA."""
    compiler = _compilation.compiler()
    commands = {ending: [*compiler, *flags] for ending in _ENDINGS}
    version = _compilation.run([*compiler, "--version"]).stdout
    if cuda is not None:
        embedded = cuda.embedded()
        # The digest is in the name, and so in the library's key.
        kept = _cache() / f"{name}-cuda-{_digest(embedded)}.cpp"
        write_whole(kept, embedded)
        files = [kept, *(file for file in files if cuda.has_nvcc or file.suffix in _ENDINGS)]
        linking = [*linking, *cuda.linking()]
        if cuda.has_nvcc:
            commands[_cuda.ENDING] = cuda.command(compiler)
            version += _compilation.run([commands[_cuda.ENDING][0], "--version"]).stdout
    parts = [version, *map(shlex.join, commands.values()), shlex.join(linking)]
    return _kept(name, files, parts, lambda library: _compile(compiler, commands, files, linking, library, verbose))


def _built_in_rust(name: str, source: Path, flags: list[str], linking: list[str], verbose: bool) -> Path:
    """Returns the library of an extension in Rust."""
    compiler = _rust.Compiler(source)
    crate = compiler.crate(_cache())

    def compile(library: Path) -> dict[str, str]:
        files = compiler.compile(name, crate, library, flags, linking, verbose)
        _compilation.seal(library)
        return _digests(files)

    parts = [str(crate), shlex.join(flags), shlex.join(linking)]
    # Cargo knows itself which files of a folder have changed.
    return _kept(name, [source], parts, compile, is_remembered=source.is_file())


def _kept(
    name: str,
    files: list[Path],
    parts: list[str],
    compile: Callable[[Path], dict[str, str]],
    is_remembered: bool = True,
) -> Path:
    """Returns the library of an extension, and builds it unless it was built before and nothing has changed.

    Parameters
    ----------
    name
        The extension's name.
    files
        The sources.
    parts
        The texts of all else that the library depends on, such as flags.
    compile
        Builds the library. Returns the digests of the files that it depends on.
    is_remembered
        Whether a library that was built before, and whose files have not changed, is taken.
    """
    began_ns = time.time_ns()
    contents = _digests(str(file) for file in files if file.is_file())
    key = f"{name}-{_digest(chr(0).join([*parts, *contents.values(), *map(str, files)]))}"
    with _compilation.place_to_build(_cache(), key, f"the extension {name}", stacklevel=7) as place:
        record = place / f"{key}.json"
        if is_remembered and (known := _known(record)) is not None:
            os.utime(known)
            return known
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=place) as folder:
            unfinished = Path(folder) / f"{key}.so"
            included = compile(unfinished)
            # The name tells the content: the system opens no second library of the same name.
            content = hashlib.sha256(unfinished.read_bytes()).hexdigest()
            library = place / f"{key}-{content[:16]}.so"
            unfinished.replace(library)
        # A file that was written since may not be the one that was compiled: then the next call compiles again.
        if all(Path(file).stat().st_mtime_ns < began_ns for file in [*map(str, files), *included]):
            write_whole(record, json.dumps({"library": library.name, "headers": included}))
        _LOG.info("built the extension %s in %.1f s: %s", name, time.monotonic() - began, library)
        _remove_unused(place)
        return library


def _known(record: Path) -> Path | None:
    """Returns the library of a record, if it is there and its headers are the same as when it was compiled."""
    try:
        known = json.loads(record.read_text())
        library = record.with_name(known["library"])
        return library if _digests(known["headers"]) == known["headers"] and _compilation.is_whole(library) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _compile(
    compiler: list[str],
    commands: dict[str, list[str]],
    files: list[Path],
    linking: list[str],
    library: Path,
    verbose: bool,
) -> dict[str, str]:
    """Compiles the files at the same time, each by the command for its ending, and links them. Returns the digests of
    the headers that they include."""
    objects = [library.with_name(f"{number}.o") for number in range(len(files))]

    def run(command: list[str]) -> None:
        if verbose:
            print(shlex.join(command), flush=True)
        # The folder of the library is removed.
        _compilation.check(_compilation.run(command), library.parents[1] / library.name)

    compiling = [
        [*commands[file.suffix], "-MD", "-MF", str(built.with_suffix(".d")), "-c", str(file), "-o", str(built)]
        for file, built in zip(files, objects, strict=True)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(run, compiling):
            pass
    run([*compiler, "-shared", *map(str, objects), "-o", str(library), *linking])
    _compilation.seal(library)
    try:
        return _digests(header for built in objects for header in _included(built.with_suffix(".d")))
    except OSError as error:
        raise BuildError(f"a header cannot be read any more ({error})") from error


def _included(rule: Path) -> list[str]:
    """Returns the files that a compiler's rule for make names, but for the source itself and the system's headers."""
    words = re.findall(r"(?:\\.|[^\s\\])+", rule.read_text().replace("\\\n", " "))
    # The first words are the object and the source.
    files = [re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words[2:]]
    return [file for file in files if not file.startswith(("/usr/include/", "/usr/lib/"))]


def _digests(files: Iterable[str]) -> dict[str, str]:
    return {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in dict.fromkeys(files)}


def _remove_unused(folder: Path) -> None:
    """Removes what was not used for long."""
    _compilation.remove_unused(path for path in folder.iterdir() if path.is_file())
    for kind in ("include-*", "rust-*", "cargo-*"):
        for built in folder.glob(kind):
            if built != _headers() and built.is_dir() and _compilation.is_unused(built):
                shutil.rmtree(built, ignore_errors=True)


if __name__ == "__main__":
    print(*include_paths())
