"""Single writes in place. `in_place.py` tests their effect on views and graphs."""

import torch
import torch.nn.functional as F
from harness import Case, Input, write

X, ROW = Input((3, 4)), Input((4,))
MASK, CLASSES = Input((3, 4), dtype=torch.bool), Input((3, 4), 0, 3, torch.int64)
ROWS, FIRST = Input((2,), 0, 3, torch.int64), Input((1,), 0, 1, torch.int64)


def case(name, change, *more, x=X, scalar=True, **options):
    """Returns a case that writes to a tensor which is no leaf and is used afterwards."""

    def function(x, *more):
        written = x * 2
        change(written, *more)
        return written * x

    empty = [(0, 4)] * (1 + len(more))
    return Case(name, function, [x, *more], **{"empty": empty, "scalar": [()] * len(empty) if scalar else None, **options})


def unary(name, low=-2.0, function=None):
    return case(name, function or getattr(torch, name), x=Input((3, 4), low))


CASES = [
    case("add_", lambda a, b: a.add_(b), ROW),
    case("sub_", lambda a, b: a.sub_(b), ROW),
    case("mul_", lambda a, b: a.mul_(b), ROW),
    case("div_", lambda a, b: a.div_(b), Input((4,), 0.5)),
    case("add_scaled_", lambda a, b: a.add_(b, alpha=-0.5), ROW),
    case("addcmul_", lambda a, b, c: a.addcmul_(b, c, value=0.5), ROW, X),
    case("addcdiv_", lambda a, b, c: a.addcdiv_(b, c, value=0.5), ROW, Input((3, 4), 0.5)),
    case("lerp_", lambda a, b, c: a.lerp_(b, c), X, Input((3, 4), 0.0, 1.0)),
    case("fill_", lambda a: a.fill_(1.5)),
    case("zero_", lambda a: a.zero_()),
    case("copy_", lambda a, b: a.copy_(b), ROW),
    case("masked_fill_", lambda a, m: a.masked_fill_(m, 3), MASK),
    case("clamp_", lambda a: a.clamp_(-0.75, 1.5)),
    unary("sqrt_", 0.2),
    unary("rsqrt_", 0.5),
    unary("reciprocal_", 0.3),
    unary("exp_"),
    unary("log_", 0.2),
    unary("tanh_"),
    unary("sigmoid_"),
    unary("relu_"),
    unary("silu_", function=lambda x: F.silu(x, inplace=True)),
    case("scatter_", lambda a, i: a.scatter_(-1, i, 2.5), CLASSES, scalar=False),
    case("scatter_one", lambda a, i: a.scatter_(0, i, 2.5), FIRST, x=Input((1,)), empty=[(1,), (0,)]),
    case("scatter_add_", lambda a, i, s: a.scatter_add_(0, i, s), Input((2, 4), 0, 3, torch.int64), Input((2, 4)), scalar=False),
    case("scatter_add_one", lambda a, i, s: a.scatter_add_(0, i, s), FIRST, Input((1,)), x=Input((1,)), empty=[(1,), (0,), (0,)]),
    case("index_add_", lambda a, i, s: a.index_add_(0, i, s), ROWS, Input((2, 4)), empty=[(3, 0), (2,), (2, 0)], scalar=False),
    case("index_put_", lambda a, i, s: a.index_put_((i,), s, True), ROWS, Input((2, 4)), empty=[(3, 0), (2,), (2, 0)], scalar=False),
]

write(__file__, CASES)
