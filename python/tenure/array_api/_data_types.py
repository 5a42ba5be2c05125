"""Data types of the standard, their promotion, and what is known of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import tenure
from tenure import _native
from tenure._native import Tensor, device, dtype

__all__ = ["astype", "can_cast", "finfo", "iinfo", "isdtype", "result_type"]

_NAMES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")

#: The standard's dtypes by name, but for the complex ones.
DTYPES: Final[dict[str, dtype]] = {name: getattr(_native, name) for name in _NAMES}

#: The bits of the fraction, and the exponent of the largest power of two.
_FLOATS: Final[dict[dtype, tuple[int, int]]] = {
    tenure.float16: (10, 15),
    tenure.bfloat16: (7, 127),
    tenure.float32: (23, 127),
    tenure.float64: (52, 1023),
}

_SIGNED = {tenure.int8, tenure.int16, tenure.int32, tenure.int64}
_UNSIGNED = {dtype for name, dtype in DTYPES.items() if name.startswith("uint")}
_KINDS: Final[dict[str, set[dtype]]] = {
    "bool": {tenure.bool},
    "signed integer": _SIGNED,
    "unsigned integer": _UNSIGNED,
    "integral": _SIGNED | _UNSIGNED,
    "real floating": set(_FLOATS),
    "complex floating": set(),
    "numeric": _SIGNED | _UNSIGNED | set(_FLOATS),
}


@dataclass(frozen=True)
class FloatInfo:
    """Limits of a floating-point dtype: what `finfo` returns."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: dtype


@dataclass(frozen=True)
class IntegerInfo:
    """Limits of an integer dtype: what `iinfo` returns."""

    bits: int
    max: int
    min: int
    dtype: dtype


def astype(x: Tensor, dtype: dtype, /, *, copy: bool = True, device: device | str | None = None) -> Tensor:
    """Converts an array to a dtype. Without `copy`, an array that has it already is returned itself."""
    return x.to(dtype=dtype, device=device, copy=copy)


def can_cast(from_: dtype | Tensor, to: dtype, /) -> bool:
    """Returns whether a dtype, or an array's, promotes to `to`."""
    try:
        return tenure.promote_types(from_.dtype if isinstance(from_, Tensor) else from_, to) == to
    except tenure.Error:
        # uint64 promotes with no signed dtype.
        return False


def finfo(type: dtype | Tensor, /) -> FloatInfo:
    """Returns the limits of a floating-point dtype."""
    of = type.dtype if isinstance(type, Tensor) else type
    if of not in _FLOATS:
        raise ValueError(f"finfo needs a floating-point dtype, not {of}: iinfo is for integers")
    fraction, exponent = _FLOATS[of]
    eps = 2.0**-fraction
    largest = (2 - eps) * 2.0**exponent
    return FloatInfo(of.itemsize * 8, eps, largest, -largest, 2.0 ** (1 - exponent), of)


def iinfo(type: dtype | Tensor, /) -> IntegerInfo:
    """Returns the limits of an integer dtype."""
    of = type.dtype if isinstance(type, Tensor) else type
    if of not in _KINDS["integral"]:
        raise ValueError(f"iinfo needs an integer dtype, not {of}: finfo is for floating-point numbers")
    bits = of.itemsize * 8
    if of in _SIGNED:
        return IntegerInfo(bits, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), of)
    return IntegerInfo(bits, 2**bits - 1, 0, of)


def isdtype(dtype: dtype, kind: dtype | str | tuple[dtype | str, ...]) -> bool:
    """Returns whether a dtype is of a kind, such as ``"integral"``, or of one of several kinds."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, part) for part in kind)
    if not isinstance(kind, str):
        return dtype == kind
    if kind not in _KINDS:
        raise ValueError(f"unknown kind of dtypes {kind!r}: the kinds are {', '.join(_KINDS)}")
    return dtype in _KINDS[kind]


def result_type(*arrays_and_dtypes: Tensor | dtype | complex) -> dtype:
    """Returns the dtype that arrays, dtypes and numbers promote to. Numbers of Python adapt to the arrays."""
    typed = [x.dtype if isinstance(x, Tensor) else x for x in arrays_and_dtypes if isinstance(x, (Tensor, dtype))]
    if not typed:
        raise ValueError("result_type needs at least one array or dtype")
    result = typed[0]
    for other in typed[1:]:
        result = tenure.promote_types(result, other)
    for number in arrays_and_dtypes:
        if not isinstance(number, (Tensor, dtype)):
            result = with_number(result, number)
    return result


def with_number(of: dtype, number: Any) -> dtype:
    """Returns the dtype of an operation on an array of a dtype and a number of Python."""
    if isinstance(number, bool) or of in _FLOATS:
        return of
    if isinstance(number, int):
        return tenure.int64 if of == tenure.bool else of
    return tenure.get_default_dtype()


def summed(of: dtype) -> dtype:
    """Returns the default dtype of sums and products of elements of a dtype."""
    if of in _UNSIGNED:
        return tenure.uint64
    return of if of in _FLOATS else tenure.int64
