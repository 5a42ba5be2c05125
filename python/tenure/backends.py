"""The precision of matrix products and convolutions of `float32` on CUDA devices, by the names of `torch.backends`.

Matrix units can take `float32` as TF32, which has 10 of the 23 bits of the mantissa, and are several times as fast.
As in PyTorch, convolutions do so by default and matrix products do not.

=====================================  =====================================================
`cuda.matmul.allow_tf32`               whether matrix products may take `float32` as TF32
`cuda.matmul.fp32_precision`           the same, as ``"tf32"`` or ``"ieee"``
`cudnn.allow_tf32`                     whether convolutions may take `float32` as TF32
`cudnn.conv.fp32_precision`            the same, as ``"tf32"`` or ``"ieee"``
=====================================  =====================================================

Examples
--------
>>> import tenure
>>> tenure.backends.cudnn.allow_tf32
True
>>> tenure.set_float32_matmul_precision("high")
>>> tenure.backends.cuda.matmul.allow_tf32
True
>>> tenure.set_float32_matmul_precision("highest")
"""

from __future__ import annotations

from collections.abc import Callable

from tenure import _native

__all__ = ["cuda", "cudnn", "get_float32_matmul_precision", "set_float32_matmul_precision"]

# The words for products of which TF32 is allowed.
_FAST = ("high", "medium")
_fast_word = "high"


class _Precision:
    """Whether some operations may take `float32` as TF32."""

    __slots__ = ("_allow", "_is_allowed")

    def __init__(self, is_allowed: Callable[[], bool], allow: Callable[[bool], None]) -> None:
        self._is_allowed = is_allowed
        self._allow = allow

    @property
    def fp32_precision(self) -> str:
        """The precision of `float32`: ``"tf32"`` or ``"ieee"``."""
        return "tf32" if self._is_allowed() else "ieee"

    @fp32_precision.setter
    def fp32_precision(self, precision: str) -> None:
        if precision not in ("tf32", "ieee"):
            raise ValueError(f"fp32_precision must be 'tf32' or 'ieee', got {precision!r}")
        self._allow(precision == "tf32")


class _Products(_Precision):
    __slots__ = ()

    @property
    def allow_tf32(self) -> bool:
        """Whether matrix products may take `float32` as TF32."""
        return self._is_allowed()

    @allow_tf32.setter
    def allow_tf32(self, is_allowed: bool) -> None:
        self._allow(is_allowed)


class _Cuda:
    __slots__ = ()

    matmul = _Products(_native.tf32_in_products, _native.allow_tf32_in_products)


class _Cudnn:
    __slots__ = ()

    conv = _Precision(_native.tf32_in_convolutions, _native.allow_tf32_in_convolutions)

    @property
    def allow_tf32(self) -> bool:
        """Whether convolutions may take `float32` as TF32."""
        return _native.tf32_in_convolutions()

    @allow_tf32.setter
    def allow_tf32(self, is_allowed: bool) -> None:
        _native.allow_tf32_in_convolutions(is_allowed)


cuda = _Cuda()
cudnn = _Cudnn()


def set_float32_matmul_precision(precision: str) -> None:
    """Sets the precision of matrix products of `float32` on CUDA devices.

    Parameters
    ----------
    precision : {"highest", "high", "medium"}
        With ``"highest"``, products have the precision of `float32`. With ``"high"`` and ``"medium"``, which are the
        same here, they may take `float32` as TF32.
    """
    global _fast_word
    if precision != "highest" and precision not in _FAST:
        raise ValueError(f"precision must be 'highest', 'high' or 'medium', got {precision!r}")
    if precision in _FAST:
        _fast_word = precision
    _native.allow_tf32_in_products(precision in _FAST)


def get_float32_matmul_precision() -> str:
    """Returns the precision of matrix products of `float32`: ``"highest"``, ``"high"`` or ``"medium"``."""
    return _fast_word if _native.tf32_in_products() else "highest"
