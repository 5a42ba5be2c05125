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

import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tenure import _native
from tenure._errors import Error
from tenure._files import write_whole
from tenure.extension import _building, _cuda, _rust
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

#: Flags of a program: a list, or one text.
_Flags = str | Iterable[str | os.PathLike[str]] | None


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
        if not in_rust and file.suffix not in (*_building.ENDINGS, _cuda.ENDING):
            endings = ", ".join(_building.ENDINGS)
            raise Error(f"{file} is not a source in C++, CUDA or Rust: its name must end with {endings}, .cu or .rs")
        if not file.exists():
            raise Error(f"the extension {name} cannot be built: there is no file {file}")
    included = [str(Path(folder).absolute()) for folder in extra_include_paths or ()]
    if in_rust and included:
        raise Error(f"the extension {name} is in Rust, which has no headers: leave extra_include_paths out")
    flags, linking = _words(extra_cflags), _words(extra_ldflags)
    try:
        if in_rust:
            library = _building.build_in_rust(name, files[0], flags, linking, verbose)
        else:
            folders = [*included, *include_paths()]
            flags = [*_building.FLAGS, *flags, *(f"-I{folder}" for folder in folders)]
            in_cuda = [file for file in files if file.suffix == _cuda.ENDING]
            cuda = CudaSources(in_cuda, _words(extra_cuda_cflags), folders) if in_cuda else None
            library = _building.build(name, files, flags, linking, verbose, cuda)
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
    for content, ending in [("\n".join(parts), _building.ENDINGS[0]), *((text, _cuda.ENDING) for text in in_cuda)]:
        source = _building.extension_cache() / f"{name}-{_building.digest_of(content)}{ending}"
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


def include_paths() -> list[str]:
    """Returns the folders of the headers that an extension includes."""
    return [str(_building.header_folder())]
