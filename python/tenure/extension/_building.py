"""Building of extensions: their cache, the commands of the compilers, and the records of earlier builds."""

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
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tenure import _native
from tenure._files import write_whole
from tenure.extension import _compilation, _cuda, _rust
from tenure.extension._compilation import BuildError
from tenure.extension._cuda import CudaSources

_LOG = logging.getLogger("tenure")

#: The endings of sources that the C++ compiler takes.
ENDINGS = (".cpp", ".cc", ".cxx", ".c++")

FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden")


@functools.cache
def header_folder() -> Path:
    """Returns a folder with the headers of this version."""
    folder = extension_cache()
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        _native.write_headers(unfinished)
        files = sorted(Path(unfinished).iterdir())
        digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]
        headers = folder / f"include-{digest}"
        headers.mkdir(exist_ok=True)
        for file in files:
            file.replace(headers / file.name)
    return headers


@functools.cache
def extension_cache() -> Path:
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


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def build(
    name: str, files: list[Path], flags: list[str], linking: list[str], verbose: bool, cuda: CudaSources | None
) -> Path:
    """Returns the library of an extension in C++ and CUDA."""
    compiler = _compilation.compiler()
    commands = {ending: [*compiler, *flags] for ending in ENDINGS}
    version = _compilation.run([*compiler, "--version"]).stdout
    if cuda is not None:
        embedded = cuda.embedded()
        # The digest is in the name, and so in the library's key.
        kept = extension_cache() / f"{name}-cuda-{digest_of(embedded)}.cpp"
        write_whole(kept, embedded)
        files = [kept, *(file for file in files if cuda.has_nvcc or file.suffix in ENDINGS)]
        linking = [*linking, *cuda.linking()]
        if cuda.has_nvcc:
            commands[_cuda.ENDING] = cuda.command(compiler)
            version += _compilation.run([commands[_cuda.ENDING][0], "--version"]).stdout
    parts = [version, *map(shlex.join, commands.values()), shlex.join(linking)]
    return _kept(name, files, parts, lambda library: _compile(compiler, commands, files, linking, library, verbose))


def build_in_rust(name: str, source: Path, flags: list[str], linking: list[str], verbose: bool) -> Path:
    """Returns the library of an extension in Rust."""
    compiler = _rust.Compiler(source)
    crate = compiler.crate(extension_cache())

    def compile(library: Path) -> dict[str, str]:
        files = compiler.compile(name, crate, library, flags, linking, verbose)
        _compilation.seal(library)
        return digests_of(files)

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
    contents = digests_of(str(file) for file in files if file.is_file())
    key = f"{name}-{digest_of(chr(0).join([*parts, *contents.values(), *map(str, files)]))}"
    with _compilation.place_to_build(extension_cache(), key, f"the extension {name}", stacklevel=7) as place:
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
        return library if digests_of(known["headers"]) == known["headers"] and _compilation.is_whole(library) else None
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
        return digests_of(header for built in objects for header in included_files(built.with_suffix(".d")))
    except OSError as error:
        raise BuildError(f"a header cannot be read any more ({error})") from error


def included_files(rule: Path) -> list[str]:
    """Returns the files that a compiler's rule for make names, but for the source itself and the system's headers."""
    words = re.findall(r"(?:\\.|[^\s\\])+", rule.read_text().replace("\\\n", " "))
    # The first words are the object and the source.
    files = [re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words[2:]]
    return [file for file in files if not file.startswith(("/usr/include/", "/usr/lib/"))]


def digests_of(files: Iterable[str]) -> dict[str, str]:
    return {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in dict.fromkeys(files)}


def _remove_unused(folder: Path) -> None:
    """Removes what was not used for long."""
    _compilation.remove_unused(path for path in folder.iterdir() if path.is_file())
    for kind in ("include-*", "rust-*", "cargo-*"):
        for built in folder.glob(kind):
            if built != header_folder() and built.is_dir() and _compilation.is_unused(built):
                shutil.rmtree(built, ignore_errors=True)
