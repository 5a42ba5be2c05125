"""Reductions, softmax."""

import torch
from harness import Case, Input, write

X = Input((3, 4, 2))
DISTINCT = Input((3, 4, 2), distinct=True)
ORDER = Input((3, 4, 2), distinct=True, grad=False)
CONSTANT = Input((3, 4, 2), grad=False)
# An expanded view has equal elements: which of them is found is not said, and how they change together has no derivative.
UNEXPANDED = ("contiguous", "transposed", "sliced")


def over(name, function, x=X, empty=((0, 3, 2),), scalar=((),), **more):
    """All, the last, the first, and two dimensions."""
    yield Case(f"{name}_all", lambda x: function(x, None, False), [x], empty, scalar, **more)
    yield Case(f"{name}_last", lambda x: function(x, -1, False), [x], empty, scalar, **more)
    yield Case(f"{name}_first", lambda x: function(x, 0, True), [x], **more)
    yield Case(f"{name}_two", lambda x: function(x, (0, 2), False), [x], **more)


def all_or(function):
    """With no dimensions for all."""
    return lambda x, dims, keep: function(x, () if dims is None else dims, keep)


def norm(p):
    return lambda x, dims, keep: torch.linalg.vector_norm(x, p, dims, keep)


CASES = [
    *over("sum", torch.sum),
    *over("mean", all_or(torch.mean), empty=None),
    *over("amax", all_or(torch.amax), DISTINCT, None, variants=UNEXPANDED),
    *over("amin", all_or(torch.amin), DISTINCT, None, variants=UNEXPANDED),
    *over("var", lambda x, dims, keep: torch.var(x, dims, correction=1, keepdim=keep), empty=None, scalar=None),
    *over(
        "std",
        lambda x, dims, keep: torch.std(x, dims, correction=0, keepdim=keep),
        empty=None,
        scalar=None,
        variants=UNEXPANDED,
    ),
    *over("norm_1", norm(1), Input((3, 4, 2), 0.5)),
    *over("norm_2", norm(2), empty=None, scalar=None),
    Case("norm_inf", lambda x: norm(float("inf"))(x, -1, False), [DISTINCT]),
    Case("norm_3", lambda x: norm(3)(x, (0, 2), True), [Input((3, 4, 2), 0.5)]),
    *over("logsumexp", lambda x, dims, keep: torch.logsumexp(x, tuple(range(x.dim())) if dims is None else dims, keep)),
    Case("var_mean", lambda x: torch.var_mean(x, 1, correction=1), [X]),
    Case("prod_all", torch.prod, [X], [(0, 2)], [()]),
    Case("prod_last", lambda x: x.prod(-1), [X]),
    Case("prod_zeros", lambda x: (x > 0).to(x.dtype).mul(x).prod(1), [Input((4, 3), -1, 3)], second=False),
    Case("max", lambda x: x.max(1), [DISTINCT], variants=UNEXPANDED, scalar=None),
    Case("min", lambda x: x.min(-1, True), [DISTINCT], variants=UNEXPANDED),
    Case("argmax_all", torch.argmax, [ORDER], variants=UNEXPANDED),
    Case("argmin", lambda x: x.argmin(0), [ORDER], variants=UNEXPANDED),
    Case("all", lambda x: (x > -1.9).all(1), [CONSTANT], [(0, 2, 0)]),
    Case("any", lambda x: (x > 1.9).any(0, True), [CONSTANT], [(0, 2, 0)]),
    Case("count_nonzero", lambda x: (x > 0).count_nonzero((0, 1)), [CONSTANT]),
    Case("sum_integers", lambda x: x.sum(0), [Input((3, 4), -9, 9, torch.int32)]),
    Case("prod_integers", lambda x: x.prod(1), [Input((3, 4), -9, 9, torch.int16)]),
    Case("amax_integers", lambda x: x.amax(1), [Input((3, 4), 0, 9, torch.uint8)]),
    Case("sum_bool", lambda x: x.sum(1), [Input((3, 4), dtype=torch.bool)]),
    Case("sum_to", lambda x: x.sum_to_size(4, 1), [X], [(0, 4, 2)]),
    Case("softmax_last", lambda x: x.softmax(-1), [X], [(0, 3)], [()]),
    Case("softmax_first", lambda x: x.softmax(0), [X], [(2, 0)]),
    Case("log_softmax_last", lambda x: x.log_softmax(-1), [X], [(3, 0)], [()]),
    Case("log_softmax_middle", lambda x: x.log_softmax(1), [X]),
]

write(__file__, CASES)
