"""`tenure.backends`: whether products and convolutions may take `float32` as TF32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tenure
from tenure import backends


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    yield
    tenure.set_float32_matmul_precision("highest")
    backends.cudnn.allow_tf32 = True


def test_convolutions_take_tf32_and_products_do_not_as_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    assert tenure.get_float32_matmul_precision() == torch.get_float32_matmul_precision() == "highest"
    assert backends.cuda.matmul.allow_tf32 == torch.backends.cuda.matmul.allow_tf32 == False  # noqa: E712
    assert backends.cudnn.allow_tf32 == torch.backends.cudnn.allow_tf32 == True  # noqa: E712


@pytest.mark.parametrize(("word", "is_allowed"), [("high", True), ("medium", True), ("highest", False)])
def test_the_precision_of_products_is_the_one_that_was_set(word: str, is_allowed: bool) -> None:
    tenure.set_float32_matmul_precision(word)
    assert tenure.get_float32_matmul_precision() == word
    assert backends.cuda.matmul.allow_tf32 == is_allowed
    assert backends.cuda.matmul.fp32_precision == ("tf32" if is_allowed else "ieee")
    assert backends.cudnn.allow_tf32, "the precision of convolutions is another setting"


def test_a_switch_of_products_is_a_precision() -> None:
    backends.cuda.matmul.allow_tf32 = True
    assert tenure.get_float32_matmul_precision() in ("high", "medium")
    backends.cuda.matmul.fp32_precision = "ieee"
    assert tenure.get_float32_matmul_precision() == "highest"


def test_tf32_of_convolutions_is_switched_off_and_on() -> None:
    backends.cudnn.allow_tf32 = False
    assert backends.cudnn.conv.fp32_precision == "ieee"
    backends.cudnn.conv.fp32_precision = "tf32"
    assert backends.cudnn.allow_tf32
    assert tenure.get_float32_matmul_precision() == "highest", "the precision of products is another setting"


def test_a_wrong_name_or_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="'highest', 'high' or 'medium', got 'low'"):
        tenure.set_float32_matmul_precision("low")
    with pytest.raises(ValueError, match="'tf32' or 'ieee', got 'bf16'"):
        backends.cudnn.conv.fp32_precision = "bf16"
    with pytest.raises(AttributeError):
        backends.cudnn.allow_tf23 = True  # type: ignore[attr-defined]
