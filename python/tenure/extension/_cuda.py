"""Sources in CUDA C++ of extensions: compiled by nvcc where there is one, and kept for NVRTC to compile."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from tenure import _native
from tenure.extension import _compilation
from tenure.extension._compilation import BuildError

#: The ending of sources in CUDA.
ENDING = ".cu"

_FLAGS = ("-std=c++17", "-O2", "-Xcompiler", "-fPIC,-fvisibility=hidden")

#: Flags of nvcc that NVRTC does not know. Those of the second list are followed by a value.
_NOT_FOR_NVRTC = re.compile(
    r"-O\d|--?(gen-?code|arch|gpu-architecture|code|Xcompiler|compiler-options|ccbin|threads)=.*"
)
_NOT_FOR_NVRTC_WITH_VALUE = {
    "-Xcompiler",
    "--compiler-options",
    "-gencode",
    "-arch",
    "-code",
    "-ccbin",
    "-t",
    "--threads",
}


def toolkit() -> Path | None:
    """Returns the folder of the CUDA toolkit: `$CUDA_HOME`, `$CUDA_PATH`, or that of the nvcc on the PATH.

    Raises
    ------
    BuildError
        `CUDA_HOME` or `CUDA_PATH` names a folder without nvcc.
    """
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if folder := os.environ.get(name):
            if not os.access(Path(folder, "bin/nvcc"), os.X_OK):
                raise BuildError(f"there is no bin/nvcc in {folder}, which {name} names")
            return Path(folder)
    found = shutil.which("nvcc")
    return Path(found).resolve().parents[1] if found else None


class CudaSources:
    """The sources in CUDA of an extension.

    Parameters
    ----------
    files
        The files.
    flags
        Flags of the user for nvcc and NVRTC.
    folders
        Folders of headers.

    Raises
    ------
    BuildError
        A file is wrong, or needs nvcc and there is none.
    """

    def __init__(self, files: Sequence[Path], flags: Sequence[str], folders: Sequence[str]) -> None:
        self._files = files
        self._flags = flags
        self._folders = folders
        self._toolkit = toolkit()
        if self._toolkit is None:
            self._check()

    @property
    def has_nvcc(self) -> bool:
        """Whether the files are compiled ahead of time too."""
        return self._toolkit is not None

    def command(self, compiler: Sequence[str]) -> list[str]:
        """Returns the command of nvcc, with its flags, which uses a C++ compiler for code of the host."""
        assert self._toolkit is not None
        folders = [f"-I{folder}" for folder in self._folders]
        host = [] if len(compiler) != 1 else ["-ccbin", compiler[0]]
        return [str(self._toolkit / "bin/nvcc"), *_FLAGS, *host, *self._architectures(), *self._flags, *folders]

    def linking(self) -> list[str]:
        """Returns the flags of the linker for what nvcc compiles: the runtime of CUDA, which is part of the library."""
        if self._toolkit is None:
            return []
        folders = [self._toolkit / name for name in ("lib64", "lib", "targets/x86_64-linux/lib")]
        return [
            *(f"-L{folder}" for folder in folders if folder.is_dir()),
            "-lcudart_static",
            "-ldl",
            "-lrt",
            "-lpthread",
        ]

    def embedded(self) -> str:
        """Returns a source in C++ that keeps the files' texts in the library, for NVRTC."""
        headers = self._headers()
        sources = ",\n".join(f"    {{{_quoted(file.name)}, {_quoted(_text(file) + headers)}}}" for file in self._files)
        options = self._options()
        listed = "".join(f"    {_quoted(option)},\n" for option in options)
        return f"""\
// The sources in CUDA of this extension, which tenure.extension has put here.
#include <tenure_cuda.h>

static const tenure_cuda_source sources[] = {{
{sources}
}};
static const char *const options[] = {{
{listed}    nullptr
}};
extern "C" {{
extern __attribute__((visibility("hidden"))) const tenure_cuda_program tenure_cuda_own_program;
const tenure_cuda_program tenure_cuda_own_program = {{{len(self._files)}, sources, {len(options)}, options}};
}}
"""

    def _options(self) -> list[str]:
        """Returns the options of NVRTC."""
        kept, skipped = ["--std=c++17"], False
        for flag in self._flags:
            if skipped or flag in _NOT_FOR_NVRTC_WITH_VALUE:
                skipped = not skipped
            elif not _NOT_FOR_NVRTC.fullmatch(flag):
                kept.append(flag)
        folders = [*self._folders, *dict.fromkeys(str(file.parent) for file in self._files)]
        if self._toolkit is not None and (include := self._toolkit / "include").is_dir():
            folders.append(str(include))
        return [*kept, *(f"-I{folder}" for folder in folders)]

    def _architectures(self) -> list[str]:
        """Returns nvcc's flags for the devices that it compiles for, unless the user gives some."""
        if any(re.match(r"--?(gencode|generate-code|arch|gpu-architecture)\b", flag) for flag in self._flags):
            return []
        if _native.device_count() == 0:
            return ["-arch=all-major"]
        properties = _native.cuda_properties(0)
        return [f"-arch=sm_{properties['major']}{properties['minor']}"]

    def _check(self) -> None:
        """Checks files that only NVRTC compiles."""
        for file in self._files:
            text = _text(file)
            code = _without_comments(text)
            # Code for nvcc may be kept from NVRTC.
            if "__CUDACC_RTC__" not in code and (launch := code.find("<<<")) >= 0:
                line = code.count("\n", 0, launch) + 1
                raise BuildError(
                    f"{file}({line}): a launch by <<<>>> needs nvcc, and there is none: set CUDA_HOME to a CUDA "
                    "toolkit, or launch by name with tenure::cuda::kernel()"
                )
            complaint = _native.check_cuda_source(str(file), text, self._options())
            if complaint is not None:
                raise BuildError(f"NVRTC refused: {complaint}")

    def _headers(self) -> str:
        """Returns a comment that changes with the files that the sources include, so that they are compiled again."""
        digest = hashlib.sha256()
        for file in self._files:
            if "#include" in _text(file):
                for header in self._included(file):
                    digest.update(header.read_bytes())
        return f"\n// headers: {digest.hexdigest()[:16]}\n"

    def _included(self, file: Path) -> list[Path]:
        """Returns the files that a source includes, but for the system's, as far as a C++ compiler can tell."""
        folders = [option for option in self._options() if option.startswith(("-I", "-D"))]
        macros = ["-D__CUDACC__", "-D__CUDACC_RTC__"]
        command = [*_compilation.compiler(), "-x", "c++", "-std=c++17", "-MM", "-MG", *macros, *folders, str(file)]
        rule = _compilation.run(command).stdout.replace("\\\n", " ")
        # The first words are the object and the source.
        words = re.findall(r"(?:\\.|[^\s\\])+", rule)[2:]
        named = [Path(re.sub(r"\\(.)", r"\1", word)) for word in words]
        return [path for path in named if path.is_file()]


def _text(file: Path) -> str:
    return file.read_text(errors="replace")


def _without_comments(text: str) -> str:
    """Returns a source without comments and texts, with the same lines."""
    parts = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    return re.sub(parts, lambda match: "\n" * match.group().count("\n"), text, flags=re.DOTALL)


def _quoted(text: str) -> str:
    """Returns a text as C++ writes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
    return "\n".join(f'"{line}"' for line in escaped.replace("\n", "\\n\n").split("\n"))
