"""Contractions, diagonals, distances, reductions by index, interpolation, and functions composed of others."""

import torch
import torch.nn.functional as F
from harness import Case, Input, write

PLAIN = ("contiguous", "transposed", "sliced")


def index(*sizes, high):
    return Input(sizes, 0, high, torch.int64)


def reduced(reduce, include_self=True):
    """Yields cases along the last and the first dimension."""
    name = reduce if include_self else f"{reduce}_without_self"

    def along(dim):
        return lambda x, i, s: x.scatter_reduce(dim, i, s, reduce, include_self=include_self)

    distinct = reduce in ("amax", "amin")
    x, more = Input((3, 4), 0.5, 2, distinct=distinct), Input((3, 5), 0.6, 2.3, distinct=distinct)
    variants = PLAIN if include_self else PLAIN[:1]
    second = reduce != "prod"
    empty = [(0, 4), (0, 5), (0, 5)]
    yield Case(f"scatter_{name}", along(-1), [x, index(3, 5, high=4), more], empty, None, variants, second=second)
    rows = Input((5, 4), 0.6, 2.3, distinct=distinct)
    yield Case(f"scatter_{name}_first", along(0), [x, index(5, 4, high=3), rows], None, None, PLAIN[:1], ("f32", "f64"), second=second)


def resized(name, sizes, **how):
    dtypes = ("f32", "f64") if how.keys() & {"align_corners", "scale_factor"} else ("f32", "bf16", "f16", "f64")
    return Case(name, lambda x: F.interpolate(x, **how), [Input(sizes)], [(0, *sizes[1:])], None, PLAIN, dtypes)


def distances(p):
    name = f"cdist_{p}".replace(".", "_")
    inputs = [Input((3, 4), distinct=True), Input((2, 4), 2.1, 4, distinct=True)]
    second = p not in (float("inf"),)
    return Case(name, lambda x, y: torch.cdist(x, y, p), inputs, [(0, 4), (2, 4)], None, PLAIN, second=second)


PAIR = [Input((3, 4)), Input((4,), 0.5, 2)]
NO_PAIR, ONES = [(0, 4), (4,)], [(), ()]

CASES = [
    Case("tensordot", lambda x, y: torch.tensordot(x, y), [Input((2, 3, 4)), Input((3, 4, 2))], [(0, 3, 4), (3, 4, 2)]),
    Case("tensordot_none", lambda x, y: torch.tensordot(x, y, 0), [Input((3,)), Input((2,))], [(0,), (2,)], ONES),
    Case("tensordot_over", lambda x, y: torch.tensordot(x, y, ([0, -1], [1, 0])), [Input((2, 3, 4)), Input((4, 2, 3))], [(2, 0, 4), (4, 2, 3)]),
    Case("tensordot_one", lambda x, y: torch.tensordot(x, y, ([1], [0])), [Input((3, 1)), Input((4, 2))]),
    Case("diag", torch.diag, [Input((3,))], [(0,)]),
    Case("diag_below", lambda x: torch.diag(x, -2), [Input((3,))], [(0,)]),
    Case("diag_of_matrix", lambda x: torch.diag(x, 1), [Input((3, 4))], [(0, 4)]),
    Case("diag_embed", torch.diag_embed, [Input((2, 3))], [(0, 3)]),
    Case("diag_embed_apart", lambda x: torch.diag_embed(x, 1, 0, 2), [Input((2, 3))], [(2, 0)]),
    Case("trace", torch.trace, [Input((3, 4))], [(0, 4)]),
    Case("trace_integers", torch.trace, [Input((3, 3), -9, 9, torch.int32)]),
    Case("cross", torch.linalg.cross, [Input((4, 3)), Input((1, 3))], [(0, 3), (1, 3)]),
    Case("cross_first", lambda x, y: torch.linalg.cross(x, y, dim=0), [Input((3, 2)), Input((3, 2))], [(3, 0), (3, 0)]),
    Case("cross_integers", torch.linalg.cross, [Input((2, 3), -9, 9, torch.int32), Input((2, 3), -9, 9, torch.int32)]),
    *map(distances, (1.0, 2.0, 3.0, 1.5, float("inf"))),
    Case("cdist_zero", lambda x, y: torch.cdist(x, y, 0.0), [Input((3, 4)), Input((2, 4))], [(0, 4), (2, 4)], None, PLAIN, second=False),
    Case("cdist_batches", torch.cdist, [Input((2, 1, 2, 3)), Input((3, 2, 3), 2.1, 4)], None, None, PLAIN),
    Case("cdist_many", torch.cdist, [Input((26, 2)), Input((2, 2), 80, 90)], [(26, 2), (0, 2)], None, PLAIN[:1]),
    *[case for reduce in ("sum", "mean", "prod", "amax", "amin") for given in (True, False) for case in reduced(reduce, given)],
    Case("scatter_prod_zeros", lambda x, i: x.new_ones(2).scatter_reduce(0, i, x, "prod"), [Input((6,), given=[0, 2, 0, 0, 3, 4]), Input((6,), 0, 2, torch.int64, given=[0, 0, 1, 1, 1, 0])], variants=PLAIN[:1], second=False, gradcheck=False),
    Case("scatter_amax_equal", lambda x, i: x.new_ones(2).scatter_reduce(0, i, x, "amax"), [Input((6,), given=[0, 1, 2, 2, 2, 1]), Input((6,), 0, 2, torch.int64, given=[0, 0, 1, 1, 1, 0])], variants=PLAIN[:1], second=False, gradcheck=False),
    *[
        Case(f"scatter_{reduce}_integers", lambda x, i, s, reduce=reduce: x.scatter_reduce(0, i, s, reduce), [Input((3,), -9, 9, torch.int32), index(6, high=3), Input((6,), -9, 9, torch.int32)])
        for reduce in ("sum", "mean", "prod", "amax", "amin")
    ],
    Case("scatter_reduce_", lambda x, i, s: x.clone().scatter_reduce_(1, i, s, "prod"), [Input((3, 4), 0.5, 2), index(3, 5, high=4), Input((3, 5), 0.5, 2)], [(0, 4), (0, 5), (0, 5)], second=False),
    Case("scatter_reduce_of_one", lambda x, i, s: x.scatter_reduce(0, i, s, "mean"), [Input(()), index(high=1), Input(())], None, [(), (), ()], variants=PLAIN[:1]),
    Case("prelu", F.prelu, [Input((2, 3, 2)), Input((3,))], [(0, 3, 2), (3,)]),
    Case("prelu_number", F.prelu, [Input((2, 3)), Input((1,))], [(0, 3), (1,)], [(), (1,)]),
    resized("nearest", (1, 2, 3), size=5),
    resized("nearest_half", (1, 2, 4, 6), scale_factor=0.5),
    resized("nearest_volume", (1, 1, 2, 3, 2), size=(3, 2, 4)),
    resized("linear", (1, 2, 4), size=7, mode="linear"),
    resized("linear_corners", (1, 2, 4), size=7, mode="linear", align_corners=True),
    resized("bilinear", (1, 2, 3, 4), size=(5, 3), mode="bilinear"),
    resized("bilinear_corners", (1, 2, 3, 4), size=(5, 1), mode="bilinear", align_corners=True),
    resized("bilinear_scaled", (1, 1, 3, 4), scale_factor=1.7, mode="bilinear"),
    resized("trilinear", (1, 1, 2, 3, 2), size=(3, 2, 4), mode="trilinear"),
    resized("bicubic", (1, 1, 4, 3), size=(6, 2), mode="bicubic"),
    resized("bicubic_corners", (1, 1, 4, 3), size=(6, 2), mode="bicubic", align_corners=True),
    resized("bicubic_scaled", (1, 1, 4, 3), scale_factor=1.7, mode="bicubic"),
    Case("nearest_integers", lambda x: F.interpolate(x, 5), [Input((1, 2, 3), 0, 9, torch.uint8)]),
    Case("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 3, True), [Input((1, 2, 5), distinct=True)], [(0, 2, 5)], None, PLAIN),
    Case("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (2, 3), True), [Input((1, 2, 5, 4), distinct=True)], [(0, 2, 5, 4)], None, PLAIN),
    Case("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, (2, 1, 4), True), [Input((2, 3, 4, 3), distinct=True)], None, None, PLAIN),
    Case("logaddexp", torch.logaddexp, PAIR, NO_PAIR, ONES),
    Case("hypot", torch.hypot, PAIR, NO_PAIR, ONES),
    Case("copysign", torch.copysign, [Input((3, 4)), Input((4,))], NO_PAIR, ONES),
    Case("copysign_number", lambda x: torch.copysign(x, -0.0), [Input((3, 4))], [(0, 4)], [()]),
    Case("copysign_integers", torch.copysign, [Input((3,), -9, 9, torch.int32), Input((3,), -9, 9, torch.int64)]),
    Case("signbit", torch.signbit, [Input((4,), given=[0.0, -0.0, -1.5, 2.0])], variants=PLAIN[:1]),
    Case("signbit_integers", torch.signbit, [Input((3,), -9, 9, torch.int32)]),
    Case("positive", torch.positive, [Input((3, 4))], [(0, 4)], [()]),
    Case("logit", torch.logit, [Input((3, 4), 0.05, 0.95)], [(0, 4)], [()]),
    Case("logit_limited", lambda x: torch.logit(x, 0.1), [Input((3, 4), 0, 1)], [(0, 4)], [()]),
    Case("asinh", torch.asinh, [Input((3, 4))], [(0, 4)], [()]),
    Case("acosh", torch.acosh, [Input((3, 4), 1.2, 3)], [(0, 4)], [()]),
    Case("atanh", torch.atanh, [Input((3, 4), -0.9, 0.9)], [(0, 4)], [()]),
]

write(__file__, CASES)
