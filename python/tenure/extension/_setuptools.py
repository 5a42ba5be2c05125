"""Extensions that setuptools builds ahead of time. `tenure.extension` has these names."""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension  # type: ignore[import-untyped, unused-ignore]
from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped, unused-ignore]
from setuptools.errors import CompileError, SetupError  # type: ignore[import-untyped, unused-ignore]

from tenure._files import write_whole
from tenure.extension import _building, _compilation, _rust
from tenure.extension._compilation import BuildError

_FIRST_LINE = '"""Functions of an extension of Tenure."""  # Written by tenure.extension.BuildExtension.'

_MODULE = """\
{first_line}

from pathlib import Path as _Path

from tenure.extension import open_library as _open_library

_library = _open_library(_Path(__file__).with_name({library!r}), __name__)
globals().update({{name: value for name, value in vars(_library).items() if not name.startswith("__")}})
"""


class CppExtension(Extension):  # type: ignore[misc]
    """An extension in C++ for ``ext_modules`` of ``setup.py``, with PyTorch's name and parameters.

    The wheel gets a library and a module of the extension's name, which has its functions.

    Parameters
    ----------
    name
        The name of the module, such as ``package.module``.
    sources
        The C++ source files, one of which has ``TENURE_EXTENSION``.
    extra_compile_args
        More flags of the compiler: a list, or a dictionary with a list at ``"cxx"``.
    options
        As for ``setuptools.Extension``: ``include_dirs``, ``define_macros``, ``extra_link_args``, ``libraries``, ...

    Examples
    --------
    >>> from setuptools import setup
    >>> from tenure.extension import BuildExtension, CppExtension
    >>> extensions = [CppExtension("scaling", ["scaled.cpp"])]
    >>> setup(name="scaling", ext_modules=extensions, cmdclass={"build_ext": BuildExtension})  # doctest: +SKIP
    """

    def __init__(
        self,
        name: str,
        sources: Sequence[str],
        *,
        extra_compile_args: Sequence[str] | Mapping[str, Sequence[str]] = (),
        **options: Any,
    ) -> None:
        flags = extra_compile_args.get("cxx", ()) if isinstance(extra_compile_args, Mapping) else extra_compile_args
        super().__init__(name, list(sources), extra_compile_args=list(flags), **options)


class RustExtension(Extension):  # type: ignore[misc]
    """An extension in Rust for ``ext_modules`` of ``setup.py``, as `CppExtension` is one in C++.

    Parameters
    ----------
    name
        The name of the module, such as ``package.module``.
    source
        The file that is the root of the crate, or a folder with ``Cargo.toml``.
    extra_compile_args
        More flags of ``rustc``.
    extra_link_args
        More flags of the linker.
    """

    def __init__(
        self, name: str, source: str, *, extra_compile_args: Sequence[str] = (), extra_link_args: Sequence[str] = ()
    ) -> None:
        flags, linking = list(extra_compile_args), list(extra_link_args)
        super().__init__(name, [source], extra_compile_args=flags, extra_link_args=linking)


class BuildExtension(build_ext):  # type: ignore[misc]
    """The command ``build_ext`` for `CppExtension` and `RustExtension`; others are built as ever.

    Files are compiled at the same time, as many as the processors or ``MAX_JOBS``, and only where they, a header or a
    flag have changed since the last build in the same folder.
    """

    @classmethod
    def with_options(cls, **options: Any) -> type[BuildExtension]:
        """Returns a subclass whose commands have these options, such as ``force=True``.

        PyTorch's ``use_ninja`` and ``no_python_abi_suffix`` may be given, and change nothing: ninja is never used, and
        no library's name has a suffix of Python's.
        """

        class WithOptions(cls):  # type: ignore[misc, valid-type]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **{**kwargs, **options})

        return WithOptions

    def get_ext_filename(self, fullname: str) -> str:
        """Returns the path of an extension's library in the folder of packages."""
        *parents, last = fullname.split(".")
        if not _is_ours(self.ext_map.get(fullname)):
            return str(super().get_ext_filename(fullname))
        # Python imports the module, and no library of this name.
        return os.path.join(*parents, f"lib{last}.so")

    def build_extension(self, ext: Extension) -> None:
        """Builds an extension's library and module."""
        if not _is_ours(ext):
            super().build_extension(ext)
            return
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        objects = Path(self.build_temp).absolute() / ext.name
        objects.mkdir(parents=True, exist_ok=True)
        try:
            if isinstance(ext, RustExtension):
                _build_rust(ext, objects, library)
            else:
                _build_cpp(ext, objects, library, bool(self.force))
        except BuildError as error:
            raise CompileError(f"the extension {ext.name} cannot be built: {error}") from None
        _write_module(library)

    def copy_extensions_to_source(self) -> None:
        """Copies the libraries and modules to the sources' folder."""
        super().copy_extensions_to_source()
        for library in self._libraries():
            _write_module(library)

    def get_outputs(self) -> list[str]:
        """Returns the files that are built."""
        return [*super().get_outputs(), *(str(_module_of(library)) for library in self._libraries())]

    def get_output_mapping(self) -> dict[str, str]:
        """Returns where each built file lies in the sources' folder."""
        mapping = dict(super().get_output_mapping())
        inplace = set(map(str, self._libraries()))
        for built, copied in list(mapping.items()):
            if copied in inplace:
                mapping[str(_module_of(Path(built)))] = str(_module_of(Path(copied)))
        return mapping

    def _libraries(self) -> list[Path]:
        """Returns the library of each of our extensions, in the sources' folder if it is built there."""
        return [Path(self.get_ext_fullpath(ext.name)) for ext in self.extensions if _is_ours(ext)]


def _is_ours(ext: Extension | None) -> bool:
    return isinstance(ext, (CppExtension, RustExtension))


def _module_of(library: Path) -> Path:
    """Returns the path of the module that opens a library."""
    return library.with_name(f"{library.stem.removeprefix('lib')}.py")


def _write_module(library: Path) -> None:
    module = _module_of(library)
    if module.exists() and not module.read_text().startswith(_FIRST_LINE):
        raise SetupError(f"{module} is a module already: give the extension, which is one too, another name")
    write_whole(module, _MODULE.format(first_line=_FIRST_LINE, library=library.name))


def _build_rust(ext: RustExtension, folder: Path, library: Path) -> None:
    compiler = _rust.Compiler(Path(ext.sources[0]).absolute())
    crate = compiler.crate(_building.extension_cache())
    name = ext.name.rpartition(".")[2]
    unfinished = folder / "compiled" / library.name
    unfinished.parent.mkdir(exist_ok=True)
    compiler.compile(name, crate, unfinished, ext.extra_compile_args, ext.extra_link_args, verbose=True)
    shutil.copyfile(unfinished, library)


def _build_cpp(ext: CppExtension, folder: Path, library: Path, is_forced: bool) -> None:
    compiler = _compilation.compiler()
    compile = functools.partial(_compile, [*compiler, *_building.FLAGS, *_flags(ext)], folder, is_forced)
    jobs = os.environ.get("MAX_JOBS", "")
    with ThreadPoolExecutor(int(jobs) if jobs.isdecimal() and int(jobs) else os.cpu_count()) as pool:
        objects = list(pool.map(compile, ext.sources))
    _run(
        [*compiler, "-shared", *objects, *ext.extra_objects, "-o", str(library), *_linking(ext)], folder / library.name
    )


def _flags(ext: CppExtension) -> list[str]:
    macros = [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in ext.define_macros]
    macros += [f"-U{name}" for name in ext.undef_macros]
    folders = [f"-I{folder}" for folder in [*ext.include_dirs, _building.header_folder()]]
    return [*macros, *folders, *ext.extra_compile_args]


def _linking(ext: CppExtension) -> list[str]:
    folders = [f"-L{folder}" for folder in ext.library_dirs]
    folders += [f"-Wl,-rpath,{folder}" for folder in ext.runtime_library_dirs]
    return [*folders, *(f"-l{library}" for library in ext.libraries), *ext.extra_link_args]


def _compile(command: list[str], folder: Path, is_forced: bool, source: str) -> str:
    """Compiles a file, unless nothing has changed since it was compiled. Returns the object."""
    built = folder / f"{_building.digest_of(source)}-{Path(source).stem}.o"
    record, rule = built.with_suffix(".json"), built.with_suffix(".d")
    if not is_forced and built.is_file() and _is_same(record, command):
        return str(built)
    record.unlink(missing_ok=True)
    if not Path(source).is_file():
        raise BuildError(f"there is no file {source}")
    _run([*command, "-MD", "-MF", str(rule), "-c", source, "-o", str(built)], built)
    files = _building.digests_of([source, *_building.included_files(rule)])
    write_whole(record, json.dumps({"command": command, "files": files}))
    return str(built)


def _is_same(record: Path, command: list[str]) -> bool:
    """Returns whether an object was compiled by the same command of the same files."""
    try:
        known = json.loads(record.read_text())
        return bool(known["command"] == command and _building.digests_of(known["files"]) == known["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _run(command: list[str], output: Path) -> None:
    # In one piece: several threads write.
    sys.stderr.write(f"{shlex.join(command)}\n")
    _compilation.check(_compilation.run(command), output)
