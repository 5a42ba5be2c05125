"""Reductions and softmax."""

import torch
from harness import VARIANTS, Case, Input, write

X = Input((3, 4, 2))
DISTINCT = Input((3, 4, 2), distinct=True)
ORDER = Input((3, 4, 2), distinct=True, grad=False)
CONSTANT = Input((3, 4, 2), grad=False)
# An expanded view has equal elements in the first dimension: they change together, which has no derivative.
UNEXPANDED = ("contiguous", "transposed", "sliced")


def over(name, function, x=X, empty=((0, 3, 2),), scalar=((),), of_nothing=True, **more):
    """Yields cases over all dimensions, the last, the first, and two. Over no elements there may be no result."""
    yield Case(f"{name}_all", lambda x: function(x, None, False), [x], empty if of_nothing else None, scalar, **more)
    yield Case(f"{name}_last", lambda x: function(x, -1, False), [x], empty, scalar, **{**more, "variants": VARIANTS})
    yield Case(f"{name}_first", lambda x: function(x, 0, True), [x], **more)
    yield Case(f"{name}_two", lambda x: function(x, (0, 2), False), [x], **more)


def all_or(function):
    """Passes `()` instead of `None` for all dimensions."""
    return lambda x, dims, keep: function(x, () if dims is None else dims, keep)


def norm(p):
    return lambda x, dims, keep: torch.linalg.vector_norm(x, p, dims, keep)


CASES = [
    *over("sum", torch.sum),
    *over("mean", all_or(torch.mean)),
    *over("amax", all_or(torch.amax), DISTINCT, of_nothing=False, variants=UNEXPANDED),
    *over("amin", all_or(torch.amin), DISTINCT, of_nothing=False, variants=UNEXPANDED),
    *over("var", lambda x, dims, keep: torch.var(x, dims, correction=1, keepdim=keep), scalar=None),
    *over(
        "std",
        lambda x, dims, keep: torch.std(x, dims, correction=0, keepdim=keep),
        scalar=None,
        variants=UNEXPANDED,
    ),
    *over("norm_1", norm(1), Input((3, 4, 2), 0.5)),
    *over("norm_2", norm(2)),
    Case("norm_inf", lambda x: norm(float("inf"))(x, -1, False), [DISTINCT]),
    Case("norm_3", lambda x: norm(3)(x, (0, 2), True), [Input((3, 4, 2), 0.5)]),
    *over("logsumexp", lambda x, dims, keep: torch.logsumexp(x, tuple(range(x.dim())) if dims is None else dims, keep)),
    Case("var_one", lambda x: [torch.var(x, -1, correction=1), torch.std(x, -1, correction=0)], [X], scalar=[()], variants=("contiguous",), gradcheck=False),
    Case("var_mean", lambda x: torch.var_mean(x, 1, correction=1), [X], [(0, 2, 3)]),
    Case("prod_all", torch.prod, [X], [(0, 2)], [()]),
    Case("prod_last", lambda x: x.prod(-1), [X]),
    Case("prod_zeros", lambda x: (x > 0).to(x.dtype).mul(x).prod(1), [Input((4, 3), -1, 3)], second=False),
    Case("max", lambda x: x.max(1), [DISTINCT], [(0, 4, 2)], variants=UNEXPANDED),
    Case("min", lambda x: x.min(-1, True), [DISTINCT], [(0, 2)], [()]),
    Case("max_last", lambda x: x.max(-1), [DISTINCT], scalar=[()]),
    Case("argmax_last", lambda x: x.argmax(-1), [ORDER], [(0, 2)], [()]),
    Case("argmin_last", lambda x: x.argmin(-1, True), [ORDER], [(0, 2)], [()]),
    Case("argmax_all", torch.argmax, [ORDER], variants=UNEXPANDED),
    Case("argmin", lambda x: x.argmin(0), [ORDER], variants=UNEXPANDED),
    Case("sum_whole", torch.sum, [X], [(0, 2)], [()]),
    Case("mean_whole", torch.mean, [X], [(0, 2)], [()]),
    Case("max_whole", torch.max, [DISTINCT], scalar=[()], variants=UNEXPANDED),
    Case("largest_equal", lambda x: [x.max(), x.min(), x.amax(0), x.amin()], [DISTINCT], variants=("expanded",), gradcheck=False),
    Case("min_whole", torch.min, [DISTINCT], scalar=[()], variants=UNEXPANDED),
    Case("var_mean_last", lambda x: torch.var_mean(x, -1, correction=0), [X], scalar=[()]),
    Case("all_last", lambda x: (x > 0).all(-1), [CONSTANT], [(2, 0)], [()]),
    Case("any_last", lambda x: (x > 0).any(-1), [CONSTANT], [(2, 0)], [()]),
    Case("count_nonzero_last", lambda x: (x > 0).count_nonzero(-1), [CONSTANT], [(2, 0)], [()]),
    Case("all", lambda x: (x > -1.9).all(1), [CONSTANT], [(0, 2, 0)]),
    Case("any", lambda x: (x > 1.9).any(0, True), [CONSTANT], [(0, 2, 0)]),
    Case("count_nonzero", lambda x: (x > 0).count_nonzero((0, 1)), [CONSTANT]),
    Case("sum_integers", lambda x: x.sum(0), [Input((3, 4), -9, 9, torch.int32)]),
    Case("prod_integers", lambda x: x.prod(1), [Input((3, 4), -9, 9, torch.int16)]),
    Case("amax_integers", lambda x: x.amax(1), [Input((3, 4), 0, 9, torch.uint8)]),
    Case("sum_bool", lambda x: x.sum(1), [Input((3, 4), dtype=torch.bool)]),
    Case("sum_to", lambda x: x.sum_to_size(4, 1), [X], [(0, 4, 2)]),
    Case("sum_to_scalar", lambda x: x.sum_to_size(()), [X], [(0, 2)], [()]),
    Case("softmax_last", lambda x: x.softmax(-1), [X], [(0, 3)], [()]),
    Case("softmax_first", lambda x: x.softmax(0), [X], [(2, 0)]),
    Case("log_softmax_last", lambda x: x.log_softmax(-1), [X], [(3, 0)], [()]),
    Case("log_softmax_middle", lambda x: x.log_softmax(1), [X]),
]

write(__file__, CASES)
