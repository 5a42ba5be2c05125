"""Exits with 0 if bindgen can work here: if it finds a libclang, which can read a C header of the system."""

import ctypes
import glob
import os
import subprocess
import sys

# The names that bindgen looks for. Other libraries have similar names, such as `libclang-cpp.so.14`, which has another
# interface.
NAMES = ("libclang.so", "libclang.so.*", "libclang-[0-9]*.so*")
FOLDERS = ("/usr/lib/llvm*/lib", "/usr/lib", "/usr/lib64", "/usr/lib/*-linux-gnu", "/usr/local/lib*", "/usr/local/llvm*/lib")


def folders() -> list[str]:
    """Returns the folders in which bindgen looks, its own variable's first."""
    named = os.environ.get("LIBCLANG_PATH")
    if named:
        return [named]
    try:
        config = os.environ.get("LLVM_CONFIG_PATH", "llvm-config")
        said = subprocess.run([config, "--libdir"], capture_output=True, text=True, check=False).stdout.split()
    except OSError:
        said = []
    return said + [folder for pattern in FOLDERS for folder in sorted(glob.glob(pattern))]


class UnsavedFile(ctypes.Structure):
    """`CXUnsavedFile`."""

    _fields_ = (("name", ctypes.c_char_p), ("contents", ctypes.c_char_p), ("length", ctypes.c_ulong))


def reads_headers(path: str) -> bool:
    """Returns whether a library is libclang, and finds the compiler's headers."""
    try:
        library = ctypes.CDLL(path)
        create, parse = library.clang_createIndex, library.clang_parseTranslationUnit
        count = library.clang_getNumDiagnostics
    except (OSError, AttributeError):
        return False
    create.restype = parse.restype = ctypes.c_void_p
    count.argtypes = [ctypes.c_void_p]
    text = b"#include <stddef.h>\n#include <stdint.h>\n"
    unsaved = UnsavedFile(b"probe.c", text, len(text))
    unit = parse(ctypes.c_void_p(create(0, 0)), b"probe.c", None, 0, ctypes.byref(unsaved), 1, 0)
    return bool(unit) and count(unit) == 0


def main() -> int:
    candidates = [path for folder in folders() for name in NAMES for path in sorted(glob.glob(f"{folder}/{name}"))]
    return 0 if any(map(reads_headers, candidates)) else 1


sys.exit(main())
