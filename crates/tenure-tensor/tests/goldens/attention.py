"""Scaled dot-product attention."""

import torch
import torch.nn.functional as F
from harness import Case, Input, write

SEEN = torch.tensor([[True, False, True], [True, True, True]])
# Every query attends to one key.
ONE_SEEN = torch.tensor([[False, True, False]])


def attention(**options):
    return lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, *mask, **options)


def case(name, function, q, k, v, *more, **options):
    return Case(name, function, [Input(q), Input(k), Input(v), *more], **options)


CASES = [
    case("plain", attention(), (1, 2, 2, 2), (1, 2, 3, 2), (1, 2, 3, 3), empty=[(0, 2, 2, 2), (0, 2, 3, 2), (0, 2, 3, 3)]),
    case("matrices", attention(), (2, 2), (3, 2), (3, 2)),
    case("scaled", attention(scale=0.3), (2, 2, 2), (2, 3, 2), (2, 3, 2)),
    case("causal", attention(is_causal=True), (1, 2, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2)),
    case("seen", lambda q, k, v: attention()(q, k, v, SEEN), (1, 2, 2, 2), (1, 2, 3, 2), (1, 2, 3, 2)),
    case("one_seen", lambda q, k, v: attention()(q, k, v, ONE_SEEN), (1, 1, 2, 2), (1, 1, 3, 2), (1, 1, 3, 2)),
    case("added", attention(), (1, 2, 2, 2), (1, 2, 3, 2), (1, 2, 3, 2), Input((2, 1, 3), grad=False)),
    case("added_with_gradient", attention(), (2, 2, 2), (2, 3, 2), (2, 3, 2), Input((2, 3))),
    case("grouped", attention(enable_gqa=True), (1, 4, 2, 2), (1, 2, 2, 2), (1, 2, 2, 2)),
    case("grouped_causal", attention(enable_gqa=True, is_causal=True), (1, 4, 2, 2), (1, 2, 2, 2), (1, 2, 2, 2)),
]

write(__file__, CASES)
