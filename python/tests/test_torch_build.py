"""Shims that are compiled for the installed PyTorch."""

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tenure.torch.installation import build


def test_a_shim_has_the_cxx_library_of_pytorch_whatever_its_compiler_links(tmp_path: Path) -> None:
    library = tmp_path / "shim.so"
    build.compile_shim(build.Torch.current(), library, build.on_cpu(), compiler=["c++", "-static-libstdc++"])
    assert b"libstdc++.so" in library.read_bytes()


# A program that prints an exception's reference count after each copy of its holder is made or destroyed.
REFERENCES = """
#include <cstdio>
#include <exception>
struct Counted {
  int *count;
  explicit Counted(int *count) : count(count) { ++*count; }
  Counted(const Counted &other) : count(other.count) { ++*count; }
  ~Counted() { --*count; }
};
int main() {
  int count = 0;
  {
    std::exception_ptr first;
    try { throw Counted(&count); } catch (...) { first = std::current_exception(); }
    std::exception_ptr second = first;
    first = nullptr;
    std::printf("%d ", count);
    try { std::rethrow_exception(second); } catch (Counted &) { std::printf("%d ", count); }
  }
  std::printf("%d", count);
}
"""


def test_shims_of_wheels_count_exceptions_references_as_newer_libraries_do(tmp_path: Path) -> None:
    sources = Path(__file__).resolve().parents[2] / "scripts/older_libraries.c"
    if not sources.is_file():
        pytest.skip("scripts/older_libraries.c is not here")
    (tmp_path / "references.cpp").write_text(REFERENCES)
    program = tmp_path / "references"
    subprocess.run(["c++", "-x", "c", "-c", sources, "-o", tmp_path / "older.o"], check=True)
    subprocess.run(["c++", "-O1", tmp_path / "references.cpp", tmp_path / "older.o", "-o", program], check=True)
    assert b"CXXABI_1.3.13" not in program.read_bytes()
    assert subprocess.run([program], capture_output=True, check=True).stdout == b"1 1 0"
