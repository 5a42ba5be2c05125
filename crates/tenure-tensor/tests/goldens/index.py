"""Indexing with numbers, ranges, new dimensions, index tensors and masks."""

import torch
from harness import Case, Input, write


def index(*sizes, low=0, high):
    return Input(sizes, low, high, torch.int64)


# Second derivatives are checked for these cases only: the others are built from the same operations.
SECOND = {"basic", "pair", "apart", "mask", "put_added", "masked_select"}


def case(name, function, inputs=(), empty=None, scalar=None, **options):
    return Case(name, function, [BLOCK, *inputs], empty, scalar, second=name in SECOND, **options)


BLOCK = Input((2, 3, 4))
MASK = Input((2, 3), dtype=torch.bool)


def put(x, i, j, values, accumulate):
    return x.index_put((i, j), values, accumulate)


CASES = [
    case("basic", lambda x: x[1, :, 1:3]),
    case("negative", lambda x: x[..., -2, -3:-1]),
    case("new", lambda x: x[:, None, ..., 0, None]),
    case("steps", lambda x: x[:, ::2, 1::2]),
    case("nothing", lambda x: x[...], empty=[(2, 0, 4)], scalar=[()]),
    case("one", lambda x, i: x[i], [index(3, low=-2, high=2)], [(2, 0, 4), (3,)]),
    case("middle", lambda x, i: x[:, i], [index(2, 2, low=-3, high=3)]),
    case("last", lambda x, i: x[..., i], [index(5, low=-4, high=4)]),
    case("empty", lambda x, i: x[:, i], [index(0, high=3)], variants=("contiguous",)),
    case("pair", lambda x, i, j: x[i, j], [index(3, high=2), index(2, 1, low=-3, high=3)]),
    case("apart", lambda x, i, j: x[i, :, j], [index(3, high=2), index(3, high=4)]),
    case("last_pair", lambda x, i, j: x[:, i, j], [index(3, high=3), index(3, high=4)]),
    case("number_and_index", lambda x, i: x[1, :, i], [index(3, high=4)]),
    case("single", lambda x, i: x[i], [index(high=2)]),
    case("mask", lambda x, m: x[m], [MASK]),
    case("mask_of_all", lambda x, m: x[m], [Input((2, 3, 4), dtype=torch.bool)]),
    case("mask_of_last", lambda x, m: x[..., m], [Input((4,), dtype=torch.bool)]),
    case("mask_and_index", lambda x, m, i: x[m, i], [MASK, index(1, high=4)]),
    case("put", lambda x, v: put(x, torch.tensor([1, 0]), torch.tensor([2, 0]), v, False), [Input((4,))]),
    case("put_added", lambda x, i, j, v: put(x, i, j, v, True), [index(3, high=2), index(3, high=2), Input((3, 4))], [(2, 3, 4), (0,), (0,), (0, 4)]),
    case("put_masked", lambda x, m, v: x.index_put((m,), v), [Input((2, 3, 4), dtype=torch.bool), Input(())]),
    Case("nonzero", torch.nonzero, [Input((2, 3, 4), -2, 3, torch.int8)], [(2, 0, 4)], [()]),
    case("masked_select", lambda x, m: x.masked_select(m), [Input((3, 1), dtype=torch.bool)], [(2, 3, 0), (3, 1)], [(), ()]),
]

write(__file__, CASES)
