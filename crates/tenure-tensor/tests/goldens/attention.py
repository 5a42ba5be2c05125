"""Scaled dot-product attention."""

import torch
import torch.nn.functional as F
from harness import Case, Input, write

SEEN = torch.tensor([[True, False, True], [True, True, True]])
# One key for every query.
ONE_SEEN = torch.tensor([[False, True, False]])

# PyTorch rounds weights and their gradients to bf16 between its products; the gradients of queries and keys are
# differences of those.
ROUNDED = 3e-2


def attention(**options):
    return lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, *mask, **options)


def case(name, function, q, k, v, *more, **options):
    return Case(name, function, [Input(q), Input(k), Input(v), *more], **options)


CASES = [
    case("plain", attention(), (1, 2, 2, 2), (1, 2, 3, 2), (1, 2, 3, 3), dtypes=("f32",)),
    case("plain_halves", attention(), (1, 2, 2, 2), (1, 2, 3, 2), (1, 2, 3, 3), dtypes=("bf16",), tolerance=ROUNDED),
    case("matrices", attention(), (2, 2), (3, 2), (3, 2), dtypes=("f32",)),
    case("scaled", attention(scale=0.3), (2, 2, 2), (2, 3, 2), (2, 3, 2), dtypes=("f32",)),
    case("causal", attention(is_causal=True), (1, 2, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2)),
    case("seen", lambda q, k, v: attention()(q, k, v, SEEN), (1, 2, 2, 2), (1, 2, 3, 2), (1, 2, 3, 2)),
    case("one_seen", lambda q, k, v: attention()(q, k, v, ONE_SEEN), (1, 1, 2, 2), (1, 1, 3, 2), (1, 1, 3, 2), dtypes=("f32",)),
    case("added", attention(), (1, 2, 2, 2), (1, 2, 3, 2), (1, 2, 3, 2), Input((2, 1, 3), grad=False), dtypes=("f32",)),
    case("added_with_gradient", attention(), (2, 2, 2), (2, 3, 2), (2, 3, 2), Input((2, 3)), dtypes=("f32",)),
    case("grouped", attention(enable_gqa=True), (1, 4, 2, 2), (1, 2, 2, 2), (1, 2, 2, 2)),
    case("grouped_causal", attention(enable_gqa=True, is_causal=True), (1, 4, 2, 2), (1, 2, 2, 2), (1, 2, 2, 2), dtypes=("f32",)),
]

write(__file__, CASES)
