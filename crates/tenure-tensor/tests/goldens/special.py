"""Special values (NaN, infinities, zeros, large and missing ones), and integers that overflow."""

import torch
import torch.nn.functional as F
from harness import Case, Input, write

NAN, INF = float("nan"), float("inf")
LINE = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -3.0, 60.0, -60.0]
# The rows have NaN, infinities, one value only, no finite value, or large values.
ROWS = [[1.0, NAN, 3.0, NAN], [INF, -INF, 2.0, 0.5], [NAN] * 4, [-INF] * 4, [INF, 1.0, INF, 0.0], [60.0, -60.0, 59.0, 0.0]]
# No two elements of a row are equal, for operations that do not say which of them comes first.
ORDERS = [[1.0, NAN, 3.0, -2.0], [INF, -INF, 2.0, 0.5], [4.0, 3.0, 2.0, 1.0]]


def line(name, function, **options):
    return case(name, function, Input((len(LINE),), given=LINE), **options)


def ramp(x):
    """Computes hardsigmoid exactly: PyTorch's has a constant of float32 in its gradient."""
    return torch.where((x > -3) & (x < 3), x / 6 + 0.5, (x >= 3).to(x.dtype))


def rows(name, function, given=ROWS, grad=True):
    return case(name, function, Input((len(given), len(given[0])), given=given, grad=grad))


def case(name, function, *inputs, **options):
    return Case(name, function, inputs, variants=("contiguous",), gradcheck=False, **options)


def integers(name, function, *given, dtype=torch.int8):
    return case(name, function, *[Input((len(x),), given=x, dtype=dtype) for x in given])


def pairs(name, function):
    """Returns a case of each value with each value."""
    column, row = [[x] for x in LINE], [LINE]
    inputs = [Input((len(LINE), 1), given=column, grad=False), Input((1, len(LINE)), given=row, grad=False)]
    return case(name, function, *inputs)


FUNCTIONS = [
    *"abs sign square frac floor ceil round trunc sqrt rsqrt reciprocal exp expm1 log log1p log2 log10 sin cos".split(),
    *"tan asin acos atan sinh cosh tanh erf erfc erfinv lgamma sigmoid relu".split(),
]
ACTIVATIONS = ["relu6", "selu", "gelu", "silu", "mish", "logsigmoid", "hardswish", "softsign"]
ENDS, OTHERS = [127, -128, -1, 5, 100], [1, -1, -128, 3, 100]

CASES = [
    *[line(name, getattr(torch, name)) for name in FUNCTIONS],
    *[line(name, getattr(F, name)) for name in ACTIVATIONS],
    case("digamma", torch.digamma, Input((len(LINE),), given=LINE, grad=False)),
    line("hardsigmoid", F.hardsigmoid, exact=ramp),
    line("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    line("softplus", F.softplus),
    line("elu", F.elu),
    line("clamp", lambda x: x.clamp(-1, 1)),
    line("to_bool", lambda x: x.to(torch.bool)),
    *[pairs(name, getattr(torch, name)) for name in "div remainder fmod pow atan2 maximum minimum eq ne lt ge".split()],
    case("atan2_at_origin", torch.atan2, *[Input((4,), given=x) for x in ([0.0, 0.0, 0.0, 1.0], [0.0, 1.0, -1.0, 0.0])]),
    pairs("div_floor", lambda x, y: torch.div(x, y, rounding_mode="floor")),
    pairs("div_trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
    pairs("isclose", lambda x, y: torch.isclose(x.expand(11, 11), y, equal_nan=True)),
    rows("softmax", lambda x: x.softmax(1)),
    rows("log_softmax", lambda x: x.log_softmax(1)),
    rows("softmax_columns", lambda x: x.softmax(0)),
    rows("logsumexp", lambda x: x.logsumexp(1)),
    rows("cross_entropy", lambda x: F.cross_entropy(x, torch.arange(6) % 4, reduction="none")),
    rows("extremes", lambda x: [*x.max(1), *x.min(1), x.amax(1), x.amin(0)], grad=False),
    rows("places", lambda x: [x.argmax(1), x.argmin(0), x.argmax(), x.argmin()], grad=False),
    rows("sort", lambda x: [*x.sort(dim=1, stable=True), *x.sort(dim=1, descending=True, stable=True)], grad=False),
    rows("topk", lambda x: [*x.topk(3, 1), *x.topk(3, 1, largest=False), *x.kthvalue(2, 1)], ORDERS),
    rows("sums", lambda x: [x.sum(1), x.mean(0), x.prod(1), x.cumsum(1), x.cumprod(0), x.var(1)]),
    rows("norms", lambda x: [torch.linalg.vector_norm(x, p, 1) for p in (0.0, 1.0, 2.0, 3.0, INF, -INF)], grad=False),
    rows("truths", lambda x: [x.all(1), x.any(0), x.count_nonzero(1), x.isnan(), x.isinf(), x.isfinite()], grad=False),
    rows("norm_of_zeros", lambda x: [torch.linalg.vector_norm(x, p, 1) for p in (1.0, 2.0)], [[0.0, 0.0], [3.0, 0.0]]),
    rows("std_of_equal", lambda x: [x.std(1), x.var(1)], [[2.0, 2.0], [3.0, 0.0]]),
    integers("wrapped", lambda x, y: [x + y, x - y, x * y, -x, x.abs(), x.square()], ENDS, OTHERS),
    integers("wrapped_unsigned", lambda x, y: [x + y, x - y, x * y, -x], [255, 0, 128], [1, 1, 2], dtype=torch.uint8),
    integers("wrapped_long", lambda x, y: [x + y, x * y], [2**63 - 1, -(2**63)], [1, -1], dtype=torch.int64),
    integers("wrapped_sums", lambda x: [x.sum(), x.prod(), x.cumsum(0), x.cumprod(0)], [127, 127, 3], dtype=torch.int8),
    integers("powers", lambda x, y: [x.pow(y), x.pow(2), x.pow(3)], [2, -3, 100, 0], [7, 5, 3, 0]),
    integers("rests", lambda x, y: [x % y, x.fmod(y), x // y, x.div(y, rounding_mode="trunc")], [7, -7, 7, -7], [3, 3, -3, -3]),
    integers("shifts", lambda x, y: [x << y, x >> y], [1, -1, 100, -128], [3, 7, 1, 2]),
    integers("bools", lambda x, y: [x + y, x * y, x & y, x | y, x ^ y, ~x], [1, 1, 0, 0], [1, 0, 1, 0], dtype=torch.bool),
    integers("bool_sums", lambda x: [x.sum(), x.prod(), x.cumsum(0), x.max()], [0, 1, 1], dtype=torch.bool),
    integers("integer_functions", lambda x: [x.exp(), x.sqrt(), x.sigmoid(), x / 3, x.to(torch.float16)], ENDS),
]

write(__file__, CASES)
