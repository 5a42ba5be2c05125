"""Extensions in Rust that are built and opened while the program runs. `test_extension.py` has LLTM in Rust."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tenure
from tenure.extension import _building, load

pytestmark = pytest.mark.skipif(shutil.which("rustc") is None, reason="there is no Rust compiler")

SOURCE = """
use tenure_extension::{Access, Argument, DType, Device, Element, Error, Generator, Result, Tensor};
use tenure_extension::{attach, call, is_grad_enabled, no_grad, randn};

fn doubled<T: Element + Into<f64>>(x: &Tensor) -> Result<Vec<f64>> {
    Ok(x.to_vec::<T>()?.into_iter().map(|number| 2.0 * number.into()).collect())
}

tenure_extension::functions! {
    fn tensor(x: Tensor) -> Tensor { x }
    fn same(x: &Tensor) -> Tensor { x.clone() }
    fn tensors(x: &[Tensor]) -> Vec<Tensor> { x.to_vec() }
    fn owned_tensors(x: Vec<Tensor>) -> Vec<Tensor> { x }
    fn boolean(x: bool) -> bool { x }
    fn integer(x: i64) -> i64 { x }
    fn byte(x: u8) -> u8 { x }
    fn large() -> u64 { u64::MAX }
    fn number(x: f64) -> f64 { x }
    fn text(x: &str) -> String { x.to_owned() }
    fn dtype(x: DType) -> DType { x }
    fn integers(x: &[i64]) -> Vec<i64> { x.to_vec() }
    fn perhaps(x: Option<i64>) -> Option<i64> { x }
    fn several(x: Tensor, y: f64) -> (Tensor, f64, String) { (x, y, "three".to_owned()) }
    fn half(x: &Tensor) -> (Tensor, Result<i64>) { (x.clone(), Err(Error::new("the second"))) }
    fn on_cpu(x: Device) -> bool { x == Device::CPU }
    fn nothing() {}
    fn fails(why: &str) -> Result<()> { Err(Error::new(why)) }
    fn parses(text: &str) -> Result<i64> { Ok(text.parse()?) }
    fn panics(why: &str) { panic!("{why}") }
    fn product(x: &Tensor, y: &Tensor) -> Result<Tensor> { x.matmul(y) }

    /// Adds one to a tensor.
    ///
    /// In place.
    fn add_one_(x: &Tensor) -> Result<Tensor> {
        Ok(x.add_(1)?.clone())
    }

    fn arithmetic(x: &Tensor, y: &Tensor) -> Result<Tensor> {
        1.0 - ((-(x * y + x - y)?)? / (2.0 / (y + 4.0)?)?)?
    }

    fn by_name(x: &Tensor, dims: &[i64]) -> Result<Tensor> {
        call("sum", &[x.into(), dims.into(), true.into()])?.tensor()
    }

    fn wrong_result(x: &Tensor) -> Result<bool> {
        call("sigmoid", &[x.into()])?.bool()
    }

    fn text_with_zero() -> Result<Tensor> {
        let text: Argument<'_> = "a\\0b".into();
        call("einsum", &[text])?.tensor()
    }

    fn drawn(seed: u64) -> Result<Tensor> {
        randn(&[3], DType::Float32, Device::CPU, Some(&Generator::new(seed)?))
    }

    fn largest(x: &Tensor) -> Result<(Tensor, Tensor)> { x.max(1, false) }

    fn made(numbers: &[i64], sizes: &[i64]) -> Result<Tensor> {
        Tensor::from_slice(numbers, sizes, Device::CPU)
    }

    fn read(x: &Tensor) -> Result<i64> { Ok(doubled::<f32>(x)?.iter().sum::<f64>() as i64) }

    fn filled(x: &Tensor) -> Result<()> {
        let access = Access::new(&[x], &[])?;
        let data = access.data::<f32>(x)?;
        for index in 0..x.numel() {
            // SAFETY: the tensor is contiguous, and nothing else uses it during the access.
            unsafe { *data.add(index) = index as f32 };
        }
        assert!(call("sigmoid", &[x.into()]).is_err(), "an operation in an access fails");
        Ok(())
    }

    fn square(x: &Tensor) -> Result<Tensor> {
        let y = no_grad(|| {
            assert!(!is_grad_enabled());
            x.mul(x)
        })?;
        attach("square", &[&y], &[x], &[x], |saved, grads| {
            let [Some(grad)] = grads else { return Err(Error::new("a gradient is missing")) };
            Ok(vec![Some((grad * (&saved[0] * 2.0))?)])
        })?;
        Ok(y)
    }

    fn without_formula(x: &Tensor) -> Result<Tensor> {
        let y = no_grad(|| x.mul(x))?;
        attach("without_formula", &[&y], &[x], &[], |_, _| panic!("none is known"))?;
        Ok(y)
    }
}
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gives the tests a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        _building.extension_cache.cache_clear()
        _building.header_folder.cache_clear()
        yield
    _building.extension_cache.cache_clear()
    _building.header_folder.cache_clear()


@pytest.fixture(scope="module")
def values(cache: None, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    source = tmp_path_factory.mktemp("values") / "values.rs"
    source.write_text(SOURCE)
    return load("values", source, extra_cflags="-Dwarnings")


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
    assert values.tensor(x).data_ptr() == values.same(x).data_ptr() == x.data_ptr()
    for function in (values.tensors, values.owned_tensors):
        assert [each.data_ptr() for each in function([x, y])] == [x.data_ptr(), y.data_ptr()]
        assert function([]) == []
    assert values.integers([]) == () and values.integers([3, -4]) == (3, -4)
    first, second, third = values.several(x, 1.5)
    assert first.data_ptr() == x.data_ptr() and (second, third) == (1.5, "three")
    assert values.nothing() is None and values.on_cpu(tenure.device("cpu"))


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        ("tensor", (1,), "tensor(x: Tensor) -> Tensor: argument x must be Tensor"),
        ("tensor", (), "takes 1 arguments, got 0"),
        ("several", (tenure.ones(1), "x"), "-> tuple[Tensor, float, str]: argument y must be float"),
        ("byte", (256,), "argument x must be int"),
        ("byte", (-1,), "argument x must be int"),
        ("boolean", (1,), "argument x must be bool"),
        ("perhaps", (1.0,), "perhaps(x: int | None) -> int | None: argument x must be int | None"),
    ],
)
def test_arguments_of_other_types_are_refused(
    values: ModuleType, function: str, given: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(TypeError) as raised:
        getattr(values, function)(*given)
    assert message in str(raised.value)


def test_failures_and_panics_are_raised(values: ModuleType) -> None:
    with pytest.raises(tenure.Error, match="^why it fails$"):
        values.fails("why it fails")
    with pytest.raises(tenure.Error, match="^invalid digit found in string$"):
        values.parses("x")
    with pytest.raises(tenure.Error, match="^panics has panicked: beyond repair$"):
        values.panics("beyond repair")
    with pytest.raises(tenure.Error, match=r"^matmul: .*\[2, 3\]"):
        values.product(tenure.ones(2, 3), tenure.ones(2, 3))
    with pytest.raises(tenure.Error, match=r"less than 2\^63"):
        values.large()
    with pytest.raises(tenure.Error, match="^the operation returns a tensor, and not a truth value$"):
        values.wrong_result(tenure.ones(2))
    with pytest.raises(tenure.Error, match="no zero in it"):
        values.text_with_zero()
    assert values.nothing() is None, "a failure leaves nothing behind"


def test_a_failed_result_gives_back_what_was_made_for_it(values: ModuleType) -> None:
    x = tenure.ones(4096)
    held = tenure.memory.stats("cpu")["allocated_bytes.all.current"]
    for _ in range(3):
        with pytest.raises(tenure.Error, match="^the second$"):
            values.half(x.clone())
    assert tenure.memory.stats("cpu")["allocated_bytes.all.current"] == held


def test_operations_compute_what_python_computes(values: ModuleType) -> None:
    x, y = tenure.randn(3, 4), tenure.randn(3, 4)
    assert tenure.allclose(values.arithmetic(x, y), 1 - (-(x * y + x - y)) / (2 / (y + 4)))
    assert tenure.equal(values.by_name(x, [0, 1]), x.sum((0, 1), keepdim=True))
    assert tenure.equal(values.drawn(3), tenure.randn(3, generator=tenure.Generator().manual_seed(3)))
    assert all(map(tenure.equal, values.largest(x), x.max(1)))
    before = x.clone()
    assert values.add_one_(x).data_ptr() == x.data_ptr() and tenure.equal(x, before + 1)


def test_elements_are_read_and_written(values: ModuleType) -> None:
    made = values.made([1, 2, 3, 4], [2, 2])
    assert made.tolist() == [[1, 2], [3, 4]] and made.dtype == tenure.int64
    with pytest.raises(tenure.Error, match=r"^4 elements do not fill the sizes \[3\]$"):
        values.made([1, 2, 3, 4], [3])
    assert values.read(made.to(tenure.float32).t()) == 20
    with pytest.raises(tenure.Error, match="the elements are of Int64, and not of Float32"):
        values.read(made)
    x = tenure.zeros(2, 3)
    values.filled(x)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_formula_gives_gradients_and_its_panic_is_raised(values: ModuleType) -> None:
    x = tenure.tensor([1.0, -3.0], requires_grad=True)
    values.square(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, -6]
    result = values.without_formula(x)
    with pytest.raises(tenure.Error, match="the formula has panicked: none is known"):
        result.sum().backward()
    assert tenure.is_grad_enabled()


def test_a_function_has_a_name_and_documentation(values: ModuleType) -> None:
    assert values.add_one_.__name__ == "add_one_"
    assert values.add_one_.__doc__ == "add_one_(x: Tensor) -> Tensor\n\nAdds one to a tensor.\n\nIn place."
    assert values.nothing.__doc__ == "nothing() -> None"


def test_a_crate_is_compiled_once_and_again_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, calls = tmp_path / "it's a.rs", tmp_path / "calls"
    source.write_text("mod factor;\ntenure_extension::functions! { fn scaled(x: i64) -> i64 { x * factor::FACTOR } }\n")
    module = tmp_path / "factor.rs"
    module.write_text("pub const FACTOR: i64 = 2;\n")
    compiler = tmp_path / "counting"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *cdylib*) echo >> "{calls}";; esac\nexec rustc "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("RUSTC", str(compiler))
    assert [load("scaled", source).scaled(3) for _ in range(2)] == [6, 6]
    module.write_text("pub const FACTOR: i64 = 4;\n")
    assert [load("scaled", [source]).scaled(3) for _ in range(2)] == [12, 12]
    assert len(calls.read_text()) == 2


def refusal(build: Any) -> str:
    with pytest.raises(tenure.Error) as raised:
        build()
    message = str(raised.value)
    assert "\n" not in message and raised.value.__cause__ is None
    return message


@pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo")
def test_a_folder_with_a_manifest_is_built_by_cargo(tmp_path: Path) -> None:
    folder = tmp_path / "scaling"
    (folder / "src").mkdir(parents=True)
    assert "has no Cargo.toml" in refusal(lambda: load("scaling", folder))
    (folder / "Cargo.toml").write_text('[package]\nname = "a-name-of-its-own"\nedition = "2024"\n')
    library = folder / "src/lib.rs"
    library.write_text("tenure_extension::functions! { fn scaled(x: i64) -> i64 { x * 2 } }\n")
    assert load("scaling", folder).scaled(3) == 6
    library.write_text("tenure_extension::functions! { fn scaled(x: i64) -> i64 { x * 40 } }\n")
    assert load("scaling", folder).scaled(3) == 120
    library.write_text("tenure_extension::functions! { fn scaled(x: i64) -> i64 { y } }\n")
    message = refusal(lambda: load("scaling", folder))
    assert "cannot be built: the compiler refused: src/lib.rs:1:59: error[E0425]" in message and ".log)" in message


def test_a_failed_build_says_why_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "wrong.rs"
    source.write_text("fn one() -> i64 {\n    true\n}\n")
    message = refusal(lambda: load("wrong", source))
    assert message.startswith(f"the extension wrong cannot be built: the compiler refused: {source}:2:5: error[E0308]")
    assert ".log)" in message
    assert "must be the only source" in refusal(lambda: load("mixed", [tmp_path / "a.cpp", source]))
    assert "leave extra_include_paths out" in refusal(lambda: load("wrong", source, extra_include_paths=[tmp_path]))
    assert "there is no file" in refusal(lambda: load("gone", tmp_path / "gone.rs"))
    monkeypatch.setenv("RUSTC", "no-such-compiler")
    assert "there is no program 'no-such-compiler', which RUSTC names" in refusal(lambda: load("wrong", source))
    monkeypatch.delenv("RUSTC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no Rust compiler (rustc): install one" in refusal(lambda: load("wrong", source))
