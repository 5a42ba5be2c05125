"""What arguments must be, said with their names."""

from __future__ import annotations

import operator


def whole_number(name: str, value: int, least: int, most: int) -> int:
    """An argument that is a whole number in a range, its ends included.

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
