"""Views. PyTorch's and Tenure's have the same layouts, so that as_strided reads the same elements."""

import torch
from harness import Case, Input, write

X = Input((3, 4))
BLOCK = Input((2, 3, 4))


def case(name, function, inputs=(BLOCK,), empty=((0, 3, 4),), **options):
    return Case(name, function, inputs, empty, **options)


CASES = [
    case("reshape", lambda x: x.reshape(4, -1), empty=None),
    case("reshape_scalar", lambda x: x.reshape(1, 1), [Input((1, 1, 1))], None, scalar=[()]),
    case("view", lambda x: x.contiguous().view(6, 2, 2), empty=None),
    case("view_flat", lambda x: x.contiguous().view(x.numel()), scalar=[()]),
    case("reshape_flat", lambda x: x.reshape(x.numel()), scalar=[()]),
    case("view_as", lambda x: x.contiguous().view_as(torch.zeros(x.shape)), scalar=[()]),
    case("contiguous", lambda x: x.contiguous(), scalar=[()]),
    case("channels_last", lambda x: x.contiguous(memory_format=torch.channels_last), [Input((1, 2, 2, 3))], [(0, 2, 2, 3)]),
    case("copy", lambda x: x.clone(), scalar=[()]),
    case("flatten", lambda x: x.flatten(1, 2)),
    case("flatten_all", lambda x: x.flatten(), scalar=[()]),
    case("unflatten", lambda x: x.unflatten(-1, (2, -1))),
    case("expand", lambda x: x.expand(2, -1, 5), [Input((3, 1))], [(0, 1)]),
    case("expand_scalar", lambda x: x.expand(2, *x.shape), [X], [(0, 1)], scalar=[()]),
    case("expand_as", lambda x: x.expand_as(torch.zeros(2, *x.shape)), [X], [(0, 1)], scalar=[()]),
    case("transpose", lambda x: x.transpose(0, -1), scalar=[()]),
    case("t", lambda x: x.t(), [X], [(0, 4)], scalar=[()]),
    case("mt", lambda x: x.mT),
    case("permute", lambda x: x.permute(2, 0, -2)),
    case("permute_back", lambda x: x.permute(tuple(reversed(range(x.dim())))), scalar=[()]),
    case("movedim", lambda x: x.movedim((0, 1), (-1, 0))),
    case("squeeze", lambda x: x.squeeze(1 if x.dim() else 0), [Input((3, 1, 4, 1))], [(3, 1, 0, 1)], scalar=[()]),
    case("squeeze_dims", lambda x: x.squeeze((0, 1, -1)), [Input((3, 1, 4, 1))], [(3, 1, 0, 1)]),
    case("squeeze_first", lambda x: x.squeeze((0,)), [Input((1, 3))], [(1, 0)], scalar=[()]),
    case("squeeze_all", lambda x: x.squeeze(), [Input((3, 1, 4, 1))], [(3, 1, 0, 1)], scalar=[()]),
    case("unsqueeze", lambda x: x.unsqueeze(-1), scalar=[()]),
    case("select", lambda x: x.select(1, -2)),
    case("slice", lambda x: x[:, :, -3:9:2]),
    case("slice_empty", lambda x: x[:, 2:1]),
    case("narrow", lambda x: x.narrow(1, 1, 2)),
    case("unfold", lambda x: x.unfold(2, 3, 1)),
    case("unfold_steps", lambda x: x.unfold(1, 2, 1).unfold(2, 2, 2)),
    case("unfold_last", lambda x: x.unfold(-1, 1, 1), [X], [(0, 4)]),
    case("diagonal", lambda x: x.diagonal(), [X], [(0, 4)]),
    case("diagonal_above", lambda x: x.diagonal(1, -1, 0)),
    case("diagonal_below", lambda x: x.diagonal(-2, 1, 2)),
    case("diagonal_outside", lambda x: x.diagonal(5, 1, 2)),
    case("as_strided", lambda x: x.as_strided((2, 3), (4, 2), 1), [X], None, variants=("contiguous",)),
    case("as_strided_overlapping", lambda x: x.as_strided((2, 2), (1, 1), 0), [X], None, variants=("contiguous",)),
    # Differences are taken with contiguous inputs, in which this view reads other elements.
    case("as_strided_of_views", lambda x: x.as_strided((2, 2), (1, 1), 0), [X], None, gradcheck=False),
    case("split", lambda x: x.split(2, 1)),
    case("split_sizes", lambda x: x.split([1, 0, 3], -1)),
    case("chunk", lambda x: x.chunk(3, 2)),
    case("unbind", lambda x: x.unbind(1)),
    case("one_of_unbind", lambda x: x.unbind(1)[1]),
    case("integers", lambda x: x.mT.select(1, 0), [Input((2, 3, 4), -9, 9, torch.int16)]),
]

write(__file__, CASES)
