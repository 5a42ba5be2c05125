"""Sums, differences, products and quotients, with broadcasting."""

import torch
from harness import Case, Input, write


def pair(name, function, low=-2.0):
    """Yields a case of a matrix and a row, and one of a column and a block."""
    wide, narrow = Input((3, 4), low), Input((4,), low)
    empty, scalar = [(0, 4), (4,)], [(), ()]
    yield Case(name, function, [wide, narrow], empty, scalar)
    yield Case(f"{name}_column", function, [Input((3, 1), low), Input((2, 3, 4), low)], [(0, 1), (2, 0, 4)])


CASES = [
    *pair("add", torch.add),
    *pair("sub", torch.sub),
    *pair("mul", torch.mul),
    *pair("div", torch.div, low=0.5),
    Case("neg", torch.neg, [Input((2, 3, 2))], [(2, 0)], [()]),
    Case("mul_number", lambda x: x * 2.5 - 1, [Input((3, 4))], [(0, 4)], [()]),
    Case("add_integers", torch.add, [Input((2, 3), -9, 9, torch.int32), Input((3,), -9, 9, torch.int64)], [(0, 3), (3,)], [(), ()]),
    Case("div_integers", torch.div, [Input((2, 3), -9, 9, torch.int32), Input((3,), 1, 9, torch.int64)], [(0, 3), (3,)], [(), ()]),
    Case("mul_promoted", torch.mul, [Input((2, 3)), Input((3,), dtype=torch.float64)]),
]

write(__file__, CASES)
