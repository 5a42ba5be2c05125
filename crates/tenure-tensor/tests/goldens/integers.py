"""Operations on integers of every width."""

import torch
import torch.nn.functional as F
from harness import Case, Input, write

X, ROW, SOME = Input((3, 4), 0, 9), Input((4,), 1, 6), Input((3, 4), 0, 2)
MASK = Input((3, 4), dtype=torch.bool)
PLACES = Input((2, 4), 0, 3, torch.int64)


def case(name, function, *inputs, empty=None, scalar=None):
    dtypes = ("u8", "i8", "i16", "i32", "i64")
    return Case(name, function, inputs or (X,), empty, scalar, variants=("contiguous",), dtypes=dtypes)


def pair(name, function):
    return case(name, function, X, ROW, empty=[(0, 4), (4,)], scalar=[(), ()])


CASES = [
    *[pair(name, getattr(torch, name)) for name in "add sub mul div remainder fmod pow maximum minimum eq lt ge".split()],
    pair("div_floor", lambda x, y: torch.div(x, y, rounding_mode="floor")),
    pair("div_trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
    pair("bits", lambda x, y: [x & y, x | y, x ^ y, ~x, x << y, x >> y]),
    pair("logic", lambda x, y: [x.logical_and(y), x.logical_or(y), x.logical_xor(y), x.logical_not()]),
    case("functions", lambda x: [-x, x.abs(), x.sign(), x.square(), x.floor(), x.round(), x.clamp(2, 5), x.relu()]),
    case("fused", lambda x, y, z: [torch.add(x, y, alpha=3), torch.addcmul(x, y, z, value=2)], X, ROW, X),
    case("sums", lambda x: [x.sum(), x.sum(0), x.prod(1), x.cumsum(1), x.cumprod(0)], empty=[(0, 4)]),
    case("extremes", lambda x: [*x.max(1), *x.min(0), x.amax(0), x.amin(1), x.max(), x.argmax(1), x.argmin()], Input((3, 4), 0, 40, distinct=True)),
    # PyTorch returns the truth values of uint8 as uint8.
    case("truths", lambda x: [x.all(1).bool(), x.any(0).bool(), x.count_nonzero(1), x.isnan(), x.isfinite()], SOME, empty=[(0, 4)]),
    case("order", lambda x: [*x.sort(dim=1, stable=True), x.argsort(dim=0, stable=True), *x.topk(2, 1)], Input((3, 4), 0, 40, distinct=True)),
    case("products", lambda x, y: [x @ y, x.mv(y[:, 0]), x[0].dot(y[:, 1]), torch.einsum("ij,jk->ik", x, y)], X, Input((4, 2), 0, 3)),
    case("chosen", lambda x, m, y: [torch.where(m, x, y), x.masked_fill(m, 7), x.masked_select(m)], X, MASK, ROW),
    case("joined", lambda x, y: [torch.cat([x, x]), torch.stack([y, y], 1), x.repeat(1, 2), x.flip(0), x.roll(1, 1)], X, ROW),
    case("moved", lambda x, i, s: [x.gather(0, i), x.scatter_add(0, i, s), x.index_add(0, i[:, 0], s), x[i[:, 1]]], X, PLACES, Input((2, 4), 0, 5)),
    case("shaped", lambda x: [x.tril(), x.triu(1), F.pad(x, (1, 2), value=3), x.nonzero(), x.t().contiguous()], SOME),
    case("converted", lambda x: [x.to(torch.bool), x.to(torch.float16), x.to(torch.float64), x.to(torch.uint8), x.to(torch.int64)]),
]

write(__file__, CASES)
