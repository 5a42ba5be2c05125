"""Comparisons, logic and selection."""

import torch
from harness import Case, Input, write

NAN, INF = float("nan"), float("inf")
RELATIONS = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor")
ONE = {"empty": [(0, 4)], "scalar": [()]}


def relation(name):
    inputs = [Input((2, 5), -2, 2, torch.int16), Input((5,), -2, 2, torch.int16)]
    return Case(name, getattr(torch, name), inputs, [(0, 5), (5,)], [(), ()])


def special(x):
    return torch.where(x > 1, INF, torch.where(x < -1, -INF, torch.where(x.abs() < 0.3, NAN, x)))


CONDITION = Input((3, 4), dtype=torch.bool)

CASES = [
    *[relation(name) for name in RELATIONS],
    Case("lt_floats", torch.lt, [Input((3, 4), grad=False), Input((3, 1), grad=False)]),
    Case("ge_number", lambda x: x >= 0.25, [Input((3, 4), grad=False)]),
    Case("eq_promoted", torch.eq, [Input((3, 4), 0, 3, torch.int64), Input((4,), 0, 3, torch.uint8)]),
    Case("logical_not", torch.logical_not, [Input((3, 4), -2, 2, torch.int8)], **ONE),
    Case("bitwise_not", torch.bitwise_not, [Input((3, 4), -2, 2, torch.int8)], **ONE),
    Case("not_bool", torch.bitwise_not, [CONDITION], **ONE),
    Case("isnan", lambda x: torch.isnan(special(x)), [Input((3, 4), grad=False)], **ONE),
    Case("isinf", lambda x: torch.isinf(special(x)), [Input((3, 4), grad=False)], **ONE),
    Case("isfinite", lambda x: torch.isfinite(special(x)), [Input((3, 4), grad=False)], **ONE),
    Case("isclose", lambda x, y: torch.isclose(x, y, rtol=0.1, atol=0.2), [Input((3, 4), grad=False)] * 2, [(0, 4), (4,)], [(), ()]),
    Case("where", torch.where, [CONDITION, Input((3, 4)), Input((4,))], [(0, 4), (4,), (4,)], [(), (), ()]),
    Case("where_number", lambda c, x: torch.where(c, x, 2.5), [CONDITION, Input((3, 4))]),
    Case("masked_fill", lambda x, m: x.masked_fill(m, -INF), [Input((2, 3, 4)), CONDITION], [(0, 4), (4,)], [(), ()], gradcheck=False),
    Case("masked_fill_tensor", lambda x, m, v: x.masked_fill(m, v), [Input((3, 4)), CONDITION, Input(())], [(0, 4), (4,), ()], [(), (), ()]),
    Case("clamp", lambda x: x.clamp(-0.5, 1.0), [Input((3, 4))], [(0, 3)], [()]),
    Case("clamp_min", lambda x: x.clamp_min(0.1), [Input((3, 4))], **ONE),
    Case("clamp_max", lambda x: x.clamp_max(0.1), [Input((3, 4))], **ONE),
    Case("clamp_integers", lambda x: x.clamp(2, 4), [Input((3, 4), -9, 9, torch.uint8)]),
    Case("clamp_tensors", torch.clamp, [Input((3, 4)), Input((4,), -1.0, 0.0), Input((3, 1), 0.0, 1.0)]),
    Case("nan_to_num", lambda x: special(x).nan_to_num(0.5, 7.0), [Input((3, 4))], **ONE),
]

write(__file__, CASES)
