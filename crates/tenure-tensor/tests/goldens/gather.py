"""Elements read and written by index, and padding."""

import torch
import torch.nn.functional as F
from harness import Case, Input, write


def index(*sizes, high):
    return Input(sizes, 0, high, torch.int64)


X = Input((3, 4))
# If an index occurs twice, PyTorch does not say which value is written: here no index does.
ONCE = Input((3, 3), 0, 4, torch.int64, distinct=True)


def once(index):
    """Returns an index whose rows have different numbers from 0 to 3."""
    return (index.argsort(-1) + 1) % 4


def of_one(name, function, *more):
    """Yields a case of tensors without dimensions."""
    inputs = [Input(()), index(high=1), *more]
    yield Case(f"{name}_of_one", function, inputs, None, [()] * len(inputs), variants=("contiguous",))


def like(source, index):
    """Returns the part of the source that the index covers: PyTorch cannot differentiate a larger one, Tenure can."""
    return source[: index.shape[0], : index.shape[1]]


CASES = [
    Case("gather", lambda x, i: x.gather(-1, i), [X, index(2, 5, high=4)], [(0, 4), (0, 5)]),
    Case("gather_whole", lambda x, i: x.gather(0, i), [Input((3,)), index(4, high=3)], [(3,), (0,)]),
    Case("gather_first", lambda x, i: x.gather(-2, i), [X, index(5, 3, high=3)], [(3, 0), (5, 0)]),
    Case("gather_integers", lambda x, i: x.gather(0, i), [Input((3,), -9, 9, torch.int16), index(5, high=3)]),
    Case("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), [X, index(1, 2, high=4)], [(0, 4), (1, 2)]),
    Case("take", lambda x, i: x.take(i), [X, index(2, 3, high=12)], [(3, 4), (0, 3)], [(3, 4), ()]),
    *of_one("gather", lambda x, i: x.gather(0, i)),
    *of_one("scatter", lambda x, i, s: x.scatter(0, i, s), Input(())),
    *of_one("scatter_add", lambda x, i, s: x.scatter_add(0, i, s), Input(())),
    Case("take_from_end", lambda x, i: x.take(i - 12), [X, index(2, 3, high=12)], [(3, 4), (0, 3)], [(3, 4), ()]),
    Case("take_of_one", lambda x, i: x.take(i), [Input(()), index(2, high=1)], variants=("contiguous",)),
    Case("scatter", lambda x, i, s: x.scatter(1, once(i), like(s, i)), [X, ONCE, Input((3, 5))], [(0, 4), (0, 3), (0, 5)]),
    Case("scatter_number", lambda x, i: x.scatter(0, i, 2.5), [X, index(2, 4, high=3)]),
    Case("scatter_add", lambda x, i, s: x.scatter_add(-1, i, like(s, i)), [X, index(2, 5, high=4), Input((3, 5))]),
    Case("scatter_add_first", lambda x, i, s: x.scatter_add(0, i, s), [X, index(5, 4, high=3), Input((5, 4))], [(3, 4), (0, 4), (0, 4)]),
    Case("index_select", lambda x, i: x.index_select(1, i), [Input((2, 3, 4)), index(5, high=3)], [(2, 3, 0), (5,)]),
    Case("index_select_last", lambda x, i: x.index_select(-1, i), [X, index(5, high=4)], [(3, 4), (0,)]),
    Case("index_add", lambda x, i, s: x.index_add(1, i, s), [Input((2, 3, 4)), index(5, high=3), Input((2, 5, 4))], [(2, 3, 4), (0,), (2, 0, 4)]),
    Case("index_copy", lambda x, i, s: x.index_copy(0, i.argsort(), s), [Input((4, 3)), index(3, high=9), Input((3, 3))], [(4, 3), (0,), (0, 3)]),
    Case("index_fill", lambda x, i: x.index_fill(1, i, -1.5), [X, index(3, high=4)], [(0, 4), (3,)]),
    Case("embedding", lambda x, i: F.embedding(i, x), [Input((5, 3)), index(2, 4, high=5)], [(5, 3), (2, 0)], [(5, 3), ()]),
    Case("embedding_padded", lambda x, i: F.embedding(i, x, 1), [Input((3, 2)), index(4, high=3)], [(3, 2), (0,)], [(3, 2), ()]),
    Case("one_hot", lambda i: F.one_hot(i, 4) if i.numel() else i.new_zeros(*i.shape, 4), [index(2, 3, high=4)], [(0, 3)], [()]),
    Case("pad_constant", lambda x: F.pad(x, (1, 2, 0, 1), value=1.5), [Input((2, 3, 2))], [(0, 3, 2)]),
    Case("pad_negative", lambda x: F.pad(x, (-1, 2, 1, -1)), [X], [(3, 4)]),
    Case("pad_reflect", lambda x: F.pad(x, (2, 1, 1, 2), "reflect"), [Input((2, 3, 4))]),
    Case("pad_replicate", lambda x: F.pad(x, (2, 3), "replicate"), [Input((2, 3))]),
    Case("pad_circular", lambda x: F.pad(x, (2, 3), "circular"), [Input((2, 3))]),
    Case("pad_nothing", lambda x: F.pad(x, ()), [X], [(0, 4)], [()]),
]

write(__file__, CASES)
