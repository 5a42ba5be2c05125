"""Normalisation, rotary position embedding, cumulative sums and products, sorting."""

import torch
import torch.nn.functional as F
from harness import Case, Input, write

ROWS, WEIGHT, BIAS = Input((2, 3, 4)), Input((4,)), Input((4,))
IMAGES, PER_CHANNEL = Input((2, 4, 2, 3)), Input((4,))
RUNNING = [Input((4,), grad=False), Input((4,), 0.5, grad=False)]
# Equal elements would be sorted in their original order, and change together.
DISTINCT = Input((3, 4, 2), distinct=True)
UNEXPANDED = ("contiguous", "transposed", "sliced")


def layer(x, *affine):
    return F.layer_norm(x, (4,), *affine)


def batch(x, w, b):
    return F.batch_norm(x, None, None, w, b, training=True)


def residual(x, w, b, carried):
    return (batch(x, w, b) + carried).relu()


def running(x, mean, variance):
    """Returns the output and the updated running averages."""
    mean, variance = mean.clone(), variance.clone()
    return F.batch_norm(x, mean, variance, None, None, training=True, momentum=0.3), mean, variance


def rotary(x, cos, sin):
    """Applies Hugging Face's rotary embedding, with an angle for each pair."""
    first, second = x.chunk(2, -1)
    return x * torch.cat([cos, cos], -1) + torch.cat([-second, first], -1) * torch.cat([sin, sin], -1)


ANGLES = Input((3, 2), grad=False)

CASES = [
    Case("layer_norm", layer, [ROWS, WEIGHT, BIAS], [(0, 3, 4), (4,), (4,)]),
    Case("layer_norm_plain", lambda x: F.layer_norm(x, (3, 4)), [ROWS]),
    Case("layer_norm_weight", layer, [ROWS, WEIGHT]),
    Case("rms_norm", lambda x, w: F.rms_norm(x, (4,), w, 1e-5), [ROWS, WEIGHT], [(0, 4), (4,)]),
    Case("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), [IMAGES, PER_CHANNEL, PER_CHANNEL]),
    Case("group_norm_plain", lambda x: F.group_norm(x, 2), [Input((2, 4, 3))], [(0, 4, 3)]),
    Case("batch_norm", batch, [IMAGES, PER_CHANNEL, PER_CHANNEL]),
    Case("batch_norm_2d", batch, [Input((5, 4)), PER_CHANNEL, PER_CHANNEL], variants=UNEXPANDED),
    Case("batch_norm_5d", batch, [Input((2, 4, 1, 2, 2)), PER_CHANNEL, PER_CHANNEL], variants=("contiguous",)),
    Case("batch_norm_running", running, [Input((5, 4, 2)), *RUNNING], variants=("contiguous",), gradcheck=False),
    Case(
        "batch_norm_evaluated",
        lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b),
        [IMAGES, PER_CHANNEL, PER_CHANNEL, *RUNNING],
        [(0, 4, 2, 3), *[(4,)] * 4],
        variants=UNEXPANDED,
    ),
    Case("batch_norm_relu", lambda x, w, b: batch(x, w, b).relu(), [IMAGES, PER_CHANNEL, PER_CHANNEL]),
    Case("batch_norm_add_relu", residual, [IMAGES, PER_CHANNEL, PER_CHANNEL, IMAGES]),
    Case(
        "batch_norm_relu_running",
        lambda x, mean, var: (lambda y, *moved: (y.relu(), *moved))(*running(x, mean, var)),
        [Input((5, 4, 2)), *RUNNING],
        variants=("contiguous",),
        gradcheck=False,
    ),
    Case(
        "batch_norm_relu_evaluated",
        lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b).relu(),
        [IMAGES, PER_CHANNEL, PER_CHANNEL, *RUNNING],
        [(0, 4, 2, 3), *[(4,)] * 4],
        variants=UNEXPANDED,
    ),
    Case(
        "batch_norm_add_relu_evaluated",
        lambda x, carried, mean, var: (F.batch_norm(x, mean, var) + carried).relu(),
        [IMAGES, IMAGES, *RUNNING],
        variants=UNEXPANDED,
    ),
    Case("rotary", rotary, [Input((2, 3, 4)), ANGLES, ANGLES], [(0, 3, 4), (3, 2), (3, 2)]),
    Case("rotary_angles", rotary, [Input((3, 4)), Input((3, 2)), Input((3, 2))], variants=("contiguous",)),
    Case("cumsum", lambda x: x.cumsum(1), [Input((3, 4, 2))], [(0, 3, 2)]),
    Case("cumsum_last", lambda x: x.cumsum(-1), [Input((3, 4))], [(2, 0)], [()]),
    Case("cumsum_integers", lambda x: x.cumsum(0), [Input((3, 4), -9, 9, torch.int32)]),
    Case("cumprod", lambda x: x.cumprod(1), [Input((3, 4, 2), 0.5)], [(0, 3, 2)]),
    Case("cumprod_last", lambda x: x.cumprod(-1), [Input((3, 4))], [(2, 0)], [()]),
    Case("cumprod_zeros", lambda x: (x > 0).to(x.dtype).mul(x).cumprod(0), [Input((4, 5), -1, 3)], second=False),
    Case("sort", lambda x: x.sort(1), [DISTINCT], [(0, 3, 2)], variants=UNEXPANDED),
    Case("sort_descending", lambda x: x.sort(-1, True), [DISTINCT], [(2, 0)], [()]),
    Case("sort_stable", lambda x: torch.sort(x, dim=0, stable=True), [Input((12,), -2, 2, torch.int32)]),
    Case("argsort", lambda x: x.argsort(-1, True), [Input((3, 4), distinct=True, grad=False)], [(2, 0)], [()]),
    Case("topk_one", lambda x: x.topk(1, -1), [DISTINCT], [(0, 3)], [()]),
    Case("kthvalue_first", lambda x: x.kthvalue(1, -1, True), [DISTINCT], [(0, 3)], [()]),
    Case("topk", lambda x: x.topk(2, 1), [DISTINCT], variants=UNEXPANDED),
    Case("topk_smallest", lambda x: x.topk(3, 0, largest=False), [DISTINCT], variants=UNEXPANDED),
    Case("kthvalue", lambda x: x.kthvalue(2, 1), [DISTINCT], variants=UNEXPANDED),
]

write(__file__, CASES)
