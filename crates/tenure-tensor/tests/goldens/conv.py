"""Convolutions, their transposes, and pooling."""

import torch
import torch.nn.functional as F
from harness import Case, Input, write


def case(name, function, *sizes, empty=None, **options):
    return Case(name, function, [Input(size) for size in sizes], empty, **options)


def pool(name, function, *sizes, distinct=False, **options):
    inputs = [Input(size, distinct=distinct) for size in sizes]
    return Case(name, function, inputs, [(0, *sizes[0][1:])], **options)


PAIR = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}

CASES = [
    case("conv1d", lambda x, w, b: F.conv1d(x, w, b, 2, 1), (2, 2, 5), (3, 2, 3), (3,), empty=[(0, 2, 5), (3, 2, 3), (3,)]),
    case("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1), (1, 2, 3, 4), (2, 2, 3, 3), (2,)),
    case("conv2d_pair", lambda x, w: F.conv2d(x, w, **PAIR), (1, 2, 4, 5), (2, 2, 3, 2)),
    case("conv2d_groups", lambda x, w: F.conv2d(x, w, groups=2), (1, 4, 3, 3), (4, 2, 2, 2)),
    case("conv2d_depthwise", lambda x, w: F.conv2d(x, w, padding=1, groups=3), (1, 3, 3, 3), (3, 1, 3, 3)),
    case("conv2d_pointwise", lambda x, w: F.conv2d(x, w, stride=2), (2, 2, 3, 3), (2, 2, 1, 1)),
    case("conv2d_unbatched", lambda x, w, b: F.conv2d(x, w, b), (2, 3, 3), (2, 2, 2, 2), (2,)),
    case("conv3d", lambda x, w: F.conv3d(x, w, stride=(1, 2, 1), padding=1), (1, 1, 2, 3, 2), (2, 1, 2, 3, 2)),
    case("conv_transpose1d", lambda x, w, b: F.conv_transpose1d(x, w, b, 3, 1, 2), (1, 2, 3), (2, 2, 3), (2,), empty=[(0, 2, 3), (2, 2, 3), (2,)]),
    case("conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w, groups=2, **PAIR), (1, 2, 3, 3), (2, 2, 3, 2)),
    case("conv_transpose3d", lambda x, w: F.conv_transpose3d(x, w, stride=2), (1, 1, 2, 1, 2), (1, 2, 2, 2, 1)),
    pool("max_pool1d", lambda x: F.max_pool1d(x, 3, 2, 1), (2, 2, 7), distinct=True),
    pool("max_pool2d", lambda x: F.max_pool2d(x, (2, 3), 2, 1), (1, 2, 4, 5), distinct=True),
    pool("max_pool2d_dilated", lambda x: F.max_pool2d(x, 2, 1, 0, 2), (1, 1, 4, 5), distinct=True),
    pool("max_pool2d_ceil", lambda x: F.max_pool2d(x, 2, ceil_mode=True), (1, 1, 3, 5), distinct=True),
    pool("max_pool3d", lambda x: F.max_pool3d(x, 2, 1), (1, 1, 2, 3, 3), distinct=True),
    pool("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2, 1), (2, 2, 7)),
    pool("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), (1, 2, 4, 5)),
    pool("avg_pool2d_inside", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (1, 2, 4, 5)),
    pool("avg_pool2d_ceil", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (1, 1, 4, 6)),
    pool("avg_pool3d", lambda x: F.avg_pool3d(x, 2, 1), (1, 1, 2, 3, 3)),
    pool("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 3), (2, 2, 7)),
    pool("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (2, 7)), (1, 2, 3, 5)),
]

write(__file__, CASES)
