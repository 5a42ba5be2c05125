"""Concatenation and repetition of tensors."""

import torch
from harness import Case, Input, write

X = Input((2, 3))


def case(name, function, inputs=(X,), empty=((0, 3),), **options):
    return Case(name, function, inputs, empty, **options)


CASES = [
    Case("cat", lambda *x: torch.cat(x, 1), [Input((2, 3)), Input((2, 1)), Input((2, 4))], [(0, 3), (0, 1), (0, 2)]),
    case("cat_none", lambda *x: torch.cat(x, 0), [X, Input((0,)), X], [(0, 3), (0,), (0, 3)]),
    case("cat_promoted", lambda *x: torch.cat(x), [Input((2,)), Input((3,), dtype=torch.float64)], None),
    case("cat_integers", lambda *x: torch.cat(x), [Input((2,), -9, 9, torch.int32), Input((3,))], None),
    case("cat_twice", lambda x: torch.cat([x, x], 0)),
    Case("stack", lambda *x: torch.stack(x, -1), [X, X, X], [(0, 3)] * 3, [()] * 3),
    case("meshgrid", lambda *x: torch.meshgrid(*x, indexing="ij"), [Input((2,)), Input((3,))], [(0,), (3,)], scalar=[()] * 2),
    case("repeat", lambda x: x.repeat(2, 1, 3), scalar=[()]),
    case("repeat_once", lambda x: x.repeat(1, 1), [X], [(0, 3)]),
    case("repeat_none", lambda x: x.repeat(0, 2)),
    case("tile", lambda x: x.tile(2), [X], scalar=[()]),
    case("repeat_interleave", lambda x: x.repeat_interleave(3, 0)),
    case("roll", lambda x: x.roll((1, -4), (0, 1)), [Input((2, 5))], [(0, 5)]),
    case("roll_one", lambda x: x.roll(2, -1), [X]),
    case("flip_last", lambda x: x.flip(-1), [X], scalar=[()]),
    case("flip", lambda x: x.flip(0, -1), [Input((2, 3, 2))], [(2, 0, 2)]),
    Case("tril", lambda x: x.tril(-1), [Input((2, 3, 4))], [(2, 0, 4)]),
    Case("triu", lambda x: x.triu(1), [Input((2, 3, 4))], [(2, 0, 4)]),
    case("triu_integers", lambda x: x.triu(), [Input((3, 3), -9, 9, torch.int64)]),
]

write(__file__, CASES)
