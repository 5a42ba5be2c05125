"""Compiling extensions in Rust by ``rustc`` or ``cargo``. The folder ``rust`` has the crate ``tenure_extension``."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from subprocess import CompletedProcess

from tenure import _native
from tenure.extension import _compilation
from tenure.extension._compilation import BuildError

#: The crate's sources.
_SOURCES = Path(__file__).parents[1] / "rust"

_FLAGS = ("--edition=2024", "-O", "-Cstrip=debuginfo")

#: The type in Rust of a parameter of each kind.
_TYPES = {
    "Tensor": "&Tensor",
    "OptionalTensor": "Option<&Tensor>",
    "Tensors": "&[&Tensor]",
    "Value": "impl Into<Argument<'a>>",
    "Scalar": "impl Into<Argument<'a>>",
    "OptionalScalar": "impl Into<Argument<'a>>",
    "Int": "i64",
    "Size": "i64",
    "OptionalInt": "Option<i64>",
    "Ints": "&[i64]",
    "Sizes": "&[i64]",
    "Float": "f64",
    "OptionalFloat": "Option<f64>",
    "Bool": "bool",
    "Text": "&str",
    "Reduction": "&str",
    "OptionalText": "Option<&str>",
    "DType": "DType",
    "OptionalDType": "Option<DType>",
    "Device": "Device",
    "OptionalDevice": "Option<Device>",
    "Generator": "Option<&Generator>",
}


def is_rust(source: Path) -> bool:
    """Returns whether a source is in Rust: a file, or a folder with ``Cargo.toml``."""
    return source.suffix == ".rs" or source.is_dir()


class Compiler:
    """The Rust compiler for a source.

    Raises
    ------
    BuildError
        There is none.
    """

    def __init__(self, source: Path) -> None:
        self.source = source
        # A folder can choose the version.
        self._folder = source if source.is_dir() else source.parent
        self._rustc = _program("RUSTC", "rustc")
        if source.is_dir():
            if not (source / "Cargo.toml").is_file():
                raise BuildError(f"the folder {source} has no Cargo.toml")
            self._cargo = _program("CARGO", "cargo")
        result = self._run([*self._rustc, "-vV"])
        if result.returncode != 0:
            raise BuildError(f"{shlex.join(self._rustc)} does not run: {_compilation.complaint(result)}")
        self.version = result.stdout

    def _run(self, command: list[str], verbose: bool = False) -> CompletedProcess[str]:
        if verbose:
            print(shlex.join(command), flush=True)
        return _compilation.run(command, folder=self._folder, variable="RUSTC")

    def crate(self, cache: Path) -> Path:
        """Returns the compiled crate ``tenure_extension``, for this compiler."""
        texts = {file.name: file.read_text() for file in sorted(_SOURCES.glob("*.rs"))}
        texts["operations.rs"] = _operations()
        key = hashlib.sha256("\0".join([self.version, *texts, *texts.values()]).encode()).hexdigest()[:16]
        name = f"rust-{key}"
        with _compilation.place_to_build(cache, name, "Tenure's crate for extensions", stacklevel=8) as place:
            library = place / name / "libtenure_extension.rlib"
            if library.is_file():
                os.utime(library.parent)
                return library
            with tempfile.TemporaryDirectory(dir=place) as folder:
                built = Path(folder) / "crate"
                built.mkdir()
                for file, text in texts.items():
                    (built / file).write_text(text)
                options = ["--crate-name=tenure_extension", "--crate-type=rlib", "--cap-lints=allow"]
                command = [*self._rustc, *_FLAGS, *options, str(built / "lib.rs"), "-o", str(built / library.name)]
                result = self._run(command)
                if result.returncode != 0:
                    raise BuildError(
                        f"{self.version.splitlines()[0]} cannot compile Tenure's own crate, which needs Rust 1.85 "
                        f"or newer: {_compilation.complaint(result)}"
                    )
                shutil.rmtree(library.parent, ignore_errors=True)
                built.rename(library.parent)
            return library

    def compile(
        self, name: str, crate: Path, library: Path, flags: Iterable[str], linking: Iterable[str], verbose: bool
    ) -> list[str]:
        """Compiles the source into a library. Returns the files that it consists of, but for those that cargo knows.

        Raises
        ------
        BuildError
            The compiler refuses it.
        """
        options = [f"--extern=tenure_extension={crate}", *flags, *(f"-Clink-arg={flag}" for flag in linking)]
        if self.source.is_dir():
            self._compile_folder(library, crate.parents[1], options, verbose)
            return []
        listed = library.with_suffix(".d")
        outputs = [f"--emit=link={library},dep-info={listed}"]
        kind = [f"--crate-name={name}", "--crate-type=cdylib", "--error-format=short"]
        command = [*self._rustc, *_FLAGS, *kind, *options, *outputs, str(self.source)]
        _compilation.check(self._run(command, verbose), library.parents[1] / library.name)
        return _listed(listed)

    def _compile_folder(self, library: Path, cache: Path, options: list[str], verbose: bool) -> None:
        manifest = self.source / "Cargo.toml"
        target = cache / f"cargo-{hashlib.sha256(str(manifest).encode()).hexdigest()[:16]}"
        chosen = ["--release", "--lib", "--crate-type=cdylib", f"--manifest-path={manifest}", f"--target-dir={target}"]
        command = [*self._cargo, "rustc", *chosen, "--message-format=json-diagnostic-short", "--", *options]
        result = self._run(command, verbose)
        messages = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
        rendered = [message["message"]["rendered"] for message in messages if message["reason"] == "compiler-message"]
        result.stderr = "".join(rendered) + result.stderr
        _compilation.check(result, library.parents[1] / library.name)
        made = [
            file
            for message in messages
            if message["reason"] == "compiler-artifact"
            and Path(message["manifest_path"]).resolve() == manifest.resolve()
            for file in message["filenames"]
            if file.endswith(".so")
        ]
        if not made:
            raise BuildError(f"cargo has made no library of {manifest}")
        shutil.copyfile(made[-1], library)


def _program(variable: str, name: str) -> list[str]:
    command = shlex.split(os.environ.get(variable, "")) or [name]
    if shutil.which(command[0]) is None:
        if command[0] == name:
            raise BuildError(f"there is no Rust compiler ({name}): install one (https://rustup.rs)")
        raise BuildError(f"there is no program {command[0]!r}, which {variable} names")
    return command


def _listed(rules: Path) -> list[str]:
    """Returns the files that a library depends on, by rustc's rules for make."""
    first = rules.read_text().splitlines()[0].partition(": ")[2]
    return [re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:\\.|[^\s\\])+", first)]


def _operations() -> str:
    """Returns the module with a function for each operation of the table."""
    methods: list[str] = []
    functions: list[str] = []
    for _, is_method, parameters, results, _, doc, own_name in _native.operation_table():
        text = _operation(own_name, is_method, parameters, results, doc)
        (methods if is_method else functions).append(text)
    uses = "use crate::{Argument, DType, Device, Generator, Result, Tensor, call};\n"
    return f"{uses}{''.join(functions)}\nimpl Tensor {{{''.join(methods)}}}\n"


def _operation(
    name: str, is_method: bool, parameters: list[tuple[str, str, str | None]], results: int | None, doc: str
) -> str:
    declared = [f"{parameter}: {_TYPES[kind]}" for parameter, kind, _ in parameters]
    passed = [f"{parameter}.into()" for parameter, _, _ in parameters]
    if is_method:
        declared[0], passed[0] = "&self", "self.into()"
    lifetime = "<'a>" if any("'a" in each for each in declared) else ""
    called = f'call("{name}", &[{", ".join(passed)}])?'
    if results is None:
        result, body = ("&Self", f"{called}; Ok(self)") if is_method else ("()", f"{called}; Ok(())")
    elif results == 0:
        result, body = "bool", f"{called}.bool()"
    elif results == 1:
        result, body = "Tensor", f"{called}.tensor()"
    elif results < 0:
        result, body = "Vec<Tensor>", f"{called}.tensors()"
    else:
        result = f"({', '.join(['Tensor'] * results)})"
        body = f"Ok({called}.array::<{results}>()?.into())"
    sentences = "".join(f"///{line}\n" for line in doc.splitlines())
    return f"\n{sentences}pub fn {name}{lifetime}({', '.join(declared)}) -> Result<{result}> {{ {body} }}\n"
