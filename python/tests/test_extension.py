"""Extensions in C++ that are built and opened while the program runs."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tenure
from tenure import Tensor, extension
from tenure.extension import _building, _compilation, load, load_inline

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/extensions"

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler to build extensions with"
)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gives each test a cache of its own, in which nothing is built yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for cached in (_building.header_folder, _building.extension_cache):
        cached.cache_clear()


def test_a_cache_that_cannot_be_written_to_warns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    with pytest.warns(UserWarning, match=r"each extension is built again .*: set XDG_CACHE_HOME"):
        module = load_inline("three", "int64_t three() { return 3; }", functions="three")
    assert module.three() == 3
    assert Path(str(module.__file__)).parent == _compilation.own_folder()


@pytest.fixture(scope="module", params=["lltm.cpp", "lltm.rs"])
def lltm(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "lltm.rs" and shutil.which("rustc") is None:
        pytest.skip("there is no Rust compiler")
    flags = ["-Dwarnings"] if request.param == "lltm.rs" else ["-Wall", "-Wextra", "-Werror"]
    return load("lltm", EXAMPLE / request.param, extra_cflags=flags)


@pytest.fixture(scope="module")
def values() -> ModuleType:
    """Functions that return what they are given."""
    source = """
        using tenure::Tensors;
        Tensor tensor(Tensor x) { return x; }
        Tensors tensors(const Tensors &x) { return x; }
        bool boolean(bool x) { return x; }
        int64_t integer(int64_t x) { return x; }
        unsigned char byte(unsigned char x) { return x; }
        double number(double x) { return x; }
        std::string text(const std::string &x) { return x; }
        tenure::DType dtype(tenure::DType x) { return x; }
        std::vector<int64_t> integers(const std::vector<int64_t> &x) { return x; }
        std::optional<int64_t> perhaps(std::optional<int64_t> x) { return x; }
        std::tuple<Tensor, double, std::string> several(Tensor x, double y) { return {x, y, "three"}; }
        int device(tenure::Device x) { return x.number; }
        void nothing() {}
        void fails(const std::string &why) { throw std::runtime_error(why); }
        void throws_a_number() { throw 5; }
        Tensor product(Tensor x, Tensor y) { return x.matmul(y); }
        void leaves_gradients_off() { tenure_grad_mode_push(false); }
        std::tuple<Tensor, Tensors> half(const Tensor &x) { return {x + 1, {Tensor()}}; }
    """
    functions = (
        "tensor tensors boolean integer byte number text dtype integers perhaps several device nothing fails "
        "throws_a_number product leaves_gradients_off half"
    )
    return load_inline("given", source, functions.split())


def cell_in_python(input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, ...]:
    x = tenure.cat([old_h, input], 1)
    input_gate, output_gate, candidate = tenure.nn.functional.linear(x, weights, bias).chunk(3, 1)
    cell = old_cell + tenure.nn.functional.elu(candidate) * input_gate.sigmoid()
    return cell.tanh() * output_gate.sigmoid(), cell


def arguments() -> list[Tensor]:
    tenure.manual_seed(1)
    sizes = [(4, 3), (15, 8), (15,), (4, 5), (4, 5)]
    return [tenure.randn(*size, dtype=tenure.float64).requires_grad_() for size in sizes]


def test_lltm_computes_what_python_computes(lltm: ModuleType) -> None:
    given = arguments()
    expected = cell_in_python(*given)
    found = lltm.cell(*given)
    assert all(tenure.allclose(each, other) for each, other in zip(found, expected, strict=True))
    loss = [(h * cell.sin()).sum() for h, cell in (expected, found)]
    wanted, got = (tenure.autograd.grad(each, given) for each in loss)
    assert all(tenure.allclose(each, other) for each, other in zip(got, wanted, strict=True))
    assert tenure.autograd.gradcheck(lltm.cell, tuple(given))


def test_the_example_trains_a_layer() -> None:
    spec = importlib.util.spec_from_file_location("lltm_example", EXAMPLE / "lltm.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    given = arguments()
    by_function, by_cell = example.LLTMFunction.apply(*given), example.lltm.cell(*given)
    assert all(tenure.equal(each, other) for each, other in zip(by_function, by_cell, strict=True))
    wanted, got = (tenure.autograd.grad(h.sum() + cell.sum(), given) for h, cell in (by_cell, by_function))
    assert all(tenure.allclose(each, other) for each, other in zip(got, wanted, strict=True))


@pytest.mark.parametrize(
    ("function", "given"),
    [
        ("boolean", True),
        ("integer", -(1 << 62)),
        ("byte", 255),
        ("number", 2.5),
        ("number", 3),
        ("text", 'ä, and "quotes"'),
        ("dtype", tenure.float16),
        ("perhaps", None),
        ("perhaps", 4),
    ],
)
def test_values_come_back_as_they_went(values: ModuleType, function: str, given: Any) -> None:
    found = getattr(values, function)(given)
    assert found == given and (function == "number" or type(found) is type(given))


def test_tensors_and_lists_come_back_as_they_went(values: ModuleType) -> None:
    x, y = tenure.ones(2), tenure.zeros(3)
    assert values.tensor(x).data_ptr() == x.data_ptr()
    assert [each.data_ptr() for each in values.tensors([x, y])] == [x.data_ptr(), y.data_ptr()]
    assert values.tensors([]) == [] and values.integers([]) == ()
    scalars = [tenure.tensor(1), tenure.tensor(2)]
    assert [each.item() for each in values.tensors(scalars)] == [1, 2], "tensors of one integer stay tensors"
    assert values.integers([3, -4]) == (3, -4)
    first, second, third = values.several(x, 1.5)
    assert first.data_ptr() == x.data_ptr() and (second, third) == (1.5, "three")
    assert values.nothing() is None
    assert values.device(tenure.device("cpu")) == -1


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        ("tensor", (1,), "tensor(Tensor) -> Tensor: argument 1 must be Tensor"),
        ("tensor", (), "takes 1 arguments, got 0"),
        (
            "several",
            (tenure.ones(1), "x"),
            "(Tensor, float) -> tuple[Tensor, float, str]: argument 2 must be float",
        ),
        ("byte", (256,), "argument 1 must be int"),
        ("byte", (-1,), "argument 1 must be int"),
        ("boolean", (1,), "argument 1 must be bool"),
        ("integer", (1.0,), "argument 1 must be int"),
        ("tensors", ([tenure.ones(1), 1],), "tensors(): argument 1 must be a list of tensors or a list of integers"),
        ("tensor", ({},), "tensor(): argument 1 must not be of <class 'dict'>"),
    ],
)
def test_arguments_of_other_types_are_refused(
    values: ModuleType, function: str, given: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(TypeError) as raised:
        getattr(values, function)(*given)
    assert message in str(raised.value)


def test_an_integer_that_is_too_large_is_refused(values: ModuleType) -> None:
    for function, given in ((values.integer, 1 << 63), (values.integers, [0, 1 << 63])):
        message = re.escape(f"{function.__name__}(): argument 1 must be less than 2^63")
        with pytest.raises(OverflowError, match=f"^{message}"):
            function(given)


def test_a_function_s_exception_is_raised(values: ModuleType) -> None:
    with pytest.raises(tenure.Error, match="^why it fails$"):
        values.fails("why it fails")
    with pytest.raises(tenure.Error, match="other than a std::exception"):
        values.throws_a_number()
    with pytest.raises(tenure.Error, match=r"^matmul: .*\[2, 3\]"):
        values.product(tenure.ones(2, 3), tenure.ones(2, 3))
    assert values.nothing() is None, "a failure leaves nothing behind"


def test_settings_that_a_function_leaves_switched_off_are_on_again(values: ModuleType) -> None:
    values.leaves_gradients_off()
    assert tenure.is_grad_enabled()


def test_a_failed_result_gives_back_what_was_made_for_it(values: ModuleType) -> None:
    x = tenure.ones(4096)
    held = tenure.memory.stats("cpu")["allocated_bytes.all.current"]
    for _ in range(3):
        with pytest.raises(tenure.Error, match="a tensor that is none"):
            values.half(x)
    assert tenure.memory.stats("cpu")["allocated_bytes.all.current"] == held


def test_an_entry_without_documentation_or_function_is_no_fault() -> None:
    source = """
        static tenure_status succeeds(void *, const tenure_value *, size_t, tenure_value *result) {
            *result = tenure_int(3);
            return TENURE_OK;
        }
        static tenure_status fails(void *, const tenure_value *, size_t, tenure_value *) { return TENURE_INVALID; }
        static const tenure_function functions[] = {
            {"bare", nullptr, succeeds, nullptr}, {"silent", "", fails, nullptr}, {"empty", "", nullptr, nullptr}};
        static const tenure_extension table = {TENURE_ABI, 3, functions};
        const tenure_extension *tenure_extension_entry(void) { return &table; }
    """
    module = load_inline("bare", source)
    assert module.bare() == 3
    with pytest.raises(tenure.Error, match="has failed, and gives no reason"):
        module.silent()
    with pytest.raises(tenure.Error, match="empty has no function to call"):
        module.empty()


def test_a_function_has_a_name_and_documentation(lltm: ModuleType) -> None:
    assert lltm.forward.__name__ == "forward" and lltm.__name__ == "lltm"
    signature, _, text = lltm.forward.__doc__.partition("\n\n")
    assert signature in (
        "forward(Tensor, Tensor, Tensor, Tensor, Tensor) -> list[Tensor]",
        "forward(input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> list[Tensor]",
    )
    assert text == "Returns the new state and cell, and what backward() needs."


def test_several_threads_call_a_function(lltm: ModuleType) -> None:
    given = arguments()
    expected = lltm.cell(*given)[0]
    differing: list[int] = []

    def call(number: int) -> None:
        for _ in range(50):
            if not tenure.equal(lltm.cell(*given)[0], expected):
                differing.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert differing == []


def test_an_extension_is_compiled_once_and_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, source, calls = tmp_path / "factor.h", tmp_path / "scaled.cpp", tmp_path / "calls"
    header.write_text("const double factor = 2;\n")
    source.write_text(
        '#include <tenure_extension.hpp>\n#include "factor.h"\n'
        "static double scaled(double x) { return x * factor; }\n"
        'TENURE_EXTENSION(module) { module.def("scaled", scaled); }\n'
    )
    compiler = tmp_path / "counting"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) echo >> "{calls}";; esac\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))

    def built() -> int:
        return len(calls.read_text()) if calls.exists() else 0

    assert load("scaled", source).scaled(1.5) == 3 and built() == 1
    assert load("scaled", [source]).scaled(1.5) == 3 and built() == 1
    header.write_text("const double factor = 4;\n")
    assert load("scaled", source).scaled(1.5) == 6 and built() == 2
    source.write_text(source.read_text().replace("x *", "x +"))
    assert load("scaled", source).scaled(1.5) == 5.5 and built() == 3
    assert load("scaled", source, extra_cflags=["-O1"]).scaled(1.5) == 5.5 and built() == 4
    (library,) = {Path(str(load("scaled", source).__file__))}
    part = library.read_bytes()[:1000]
    # The old file stays in this process's memory.
    library.unlink()
    library.write_bytes(part)
    assert load("scaled", source).scaled(1.5) == 5.5 and built() == 5


def test_paths_of_any_characters_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / "it's a d$r #1"
    folder.mkdir()
    header, source = folder / "a b.h", folder / "one.cpp"
    header.write_text("#define ONE 1\n")
    source.write_text(
        '#include <tenure_extension.hpp>\n#include "a b.h"\nstatic int one() { return ONE; }\n'
        'TENURE_EXTENSION(module) { module.def("one", one); }\n'
    )
    assert load("one", source, extra_cflags="-O1 -Wall", extra_ldflags="-lm").one() == 1
    header.write_text("#define ONE 2\n")
    assert load("one", source, extra_cflags=["-O1", "-Wall"], extra_ldflags=["-lm"]).one() == 2


def test_sources_that_differ_in_bytes_of_another_encoding_are_different(tmp_path: Path) -> None:
    source = tmp_path / "letter.cpp"
    for letter in (0xE9, 0xE8):
        source.write_bytes(
            b'#include <tenure_extension.hpp>\nstatic int code() { return static_cast<unsigned char>("%c"[0]); }\n'
            b'TENURE_EXTENSION(module) { module.def("code", code); }\n' % letter
        )
        assert load("letter", source).code() == letter


def test_flags_may_be_none_as_in_pytorch() -> None:
    module = load_inline(
        "plain",
        "static int one() { return 1; }",
        "one",
        extra_cflags=None,
        extra_cuda_cflags=None,
        extra_ldflags=None,
        extra_include_paths=None,
    )
    assert module.one() == 1


def test_a_header_that_changes_while_it_is_compiled_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = tmp_path / "changing.h"
    header.write_text("#define NUMBER 1\n")
    compiler = tmp_path / "changing"
    change = f'echo "#define NUMBER 2" > "{header}"'
    compiler.write_text(f'#!/bin/sh\nc++ "$@" || exit 1\ncase "$*" in *" -c "*) {change};; esac\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    source = '#include "changing.h"\nstatic int number() { return NUMBER; }'
    found = [load_inline("changing", source, "number", extra_include_paths=[tmp_path]).number() for _ in range(2)]
    assert found == [1, 2]


def refusal(build: Any) -> str:
    with pytest.raises(tenure.Error) as raised:
        build()
    message = str(raised.value)
    assert "\n" not in message and raised.value.__cause__ is None
    return message


def test_a_failed_build_says_why_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "wrong.cpp"
    source.write_text("#include <tenure_extension.hpp>\nint unfinished(\n")
    message = refusal(lambda: load("wrong", source))
    assert message.startswith(f"the extension wrong cannot be built: the compiler refused: {source}:2")
    assert ".log)" in message
    assert "there is no file" in refusal(lambda: load("gone", tmp_path / "gone.cpp"))
    assert "its name must end with" in refusal(lambda: load("other", tmp_path / "other.txt"))
    assert "has no sources" in refusal(lambda: load("none", []))
    assert "must be an identifier" in refusal(lambda: load("a-b", source))
    assert "give them as a list" in refusal(lambda: load("wrong", source, extra_cflags='-DTEXT="'))
    assert "must be an identifier" in refusal(lambda: load_inline("../evil", ""))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "there is no program 'no-such-compiler'" in refusal(lambda: load("wrong", source))
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no C++ compiler: install one" in refusal(lambda: load("wrong", source))


def test_an_invalid_extension_is_refused(tmp_path: Path) -> None:
    assert "has no tenure_extension_entry" in refusal(lambda: load_inline("plain", "int one() { return 1; }"))
    assert "cannot be opened" in refusal(lambda: extension.open_library(tmp_path / "gone.so"))
    older = """
        static const tenure_extension older = {99, 0, nullptr};
        const tenure_extension *tenure_extension_entry(void) { return &older; }
    """
    assert "was built for version 99" in refusal(lambda: load_inline("older", older))
    throwing = 'TENURE_EXTENSION(module) { (void)module; throw std::runtime_error("no licence"); }'
    assert refusal(lambda: load_inline("throwing", throwing)) == "no licence"
    unknown = 'Tensor missing(Tensor); TENURE_EXTENSION(module) { module.def("missing", missing); }'
    assert "undefined symbol" in refusal(lambda: load_inline("unknown", unknown))


def test_two_functions_of_a_name_are_refused() -> None:
    twice = "int one() { return 1; } int two() { return 2; }"
    define = 'TENURE_EXTENSION(module) { module.def("one", one).def("one", two); }'
    assert "defines the function one twice" in refusal(lambda: load_inline("twice", [twice, define]))


def test_an_extension_loads_in_a_process_of_its_own_where_the_home_cannot_be_written(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("")
    program = (
        "from tenure.extension import load_inline\n"
        "print(load_inline('one', 'int64_t one() { return 1; }', ['one']).one())\n"
    )
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.stdout == "1\n", result.stderr
