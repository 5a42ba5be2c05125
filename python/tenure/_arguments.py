"""Checks of arguments, with errors that name them."""

from __future__ import annotations

import operator


def whole_number(name: str, value: int, least: int, most: int) -> int:
    """Returns an argument as an int, if it is a whole number in a range, its ends included.

    Raises
    ------
    TypeError
        It is no whole number.
    ValueError
        It is outside of the range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: expected a whole number") from None
    if not least <= number <= most:
        raise ValueError(f"{name}={value!r}: expected a whole number from {least} to {most}")
    return number
