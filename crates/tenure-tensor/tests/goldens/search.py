"""Searches in sorted sequences, distinct elements, medians, quantiles, and extremes so far."""

import torch
from harness import Case, Input, write

# The values of a search may be equal to elements of the sequence, and lie outside of it.
SEQUENCE = Input((5,), dtype=torch.float32, grad=False, given=[-1.0, 0.0, 0.0, 1.5, 2.0])
PROBES = Input((2, 3), dtype=torch.float32, grad=False, given=[-2.0, -1.0, 0.0, 1.0, 2.0, 3.0])
ROWS = Input((2, 4), 0, 9, torch.int64)
FEW = Input((3, 4), 0, 3, torch.int32)
X = Input((3, 4), distinct=True)
# Few different numbers, of any dtype: half of the elements are equal to another.
REPEATED = Input((2, 3), given=[1.0, -2.0, 1.0, 0.5, -2.0, 1.0])
NAN = float("nan")
WITH_NAN = Input((3, 3), given=[1.0, NAN, 0.5, NAN, NAN, NAN, -1.0, 2.0, 0.0])
# Values of an expanded tensor are equal: which of them is the median is not said.
UNEXPANDED = ("contiguous", "transposed", "sliced")


def found(*, right):
    return lambda s, x: torch.searchsorted(s, x, right=right)


def in_rows(s, x):
    s = s.sort(-1).values
    return [torch.searchsorted(s, x), torch.searchsorted(s, x, side="right")]


def distinct(x, dim=None):
    return torch.unique(x, return_inverse=True, return_counts=True, dim=dim)


def halves(function):
    """Computes 16-bit floats as single precision, which PyTorch does not."""
    return lambda x, *more: function(x.float(), *(q.float() for q in more)).to(x.dtype) if x.element_size() == 2 else function(x, *more)


def quantiles(interpolation):
    return halves(lambda x: x.quantile(0.4, 1, interpolation=interpolation))


CASES = [
    Case("searchsorted", found(right=False), [SEQUENCE, PROBES]),
    Case("searchsorted_right", found(right=True), [SEQUENCE, PROBES]),
    Case("searchsorted_rows", in_rows, [ROWS, Input((2, 3), -1, 10, torch.int64)], [(2, 0), (2, 3)], [(3,), ()]),
    Case("searchsorted_nothing", found(right=True), [Input((3,), 0, 9, torch.int64), ROWS], [(3,), (0, 4)]),
    Case("searchsorted_number", lambda s: torch.searchsorted(s, 0.5), [SEQUENCE]),
    Case("bucketize", lambda x, b: [torch.bucketize(x, b), torch.bucketize(x, b, right=True)], [PROBES, SEQUENCE]),
    Case("bucketize_of_one", lambda x, b: torch.bucketize(x, b.sort().values), [ROWS, Input((3,), 0, 9, torch.int64)], [(0, 4), (3,)], [(), (3,)]),
    Case("isin", lambda x, t: [torch.isin(x, t.contiguous()), torch.isin(x, t.contiguous(), invert=True)], [ROWS, FEW], [(2, 4), (0, 4)], [(), ()]),
    Case("isin_floats", torch.isin, [WITH_NAN, REPEATED], [(3, 3), (2, 3)], variants=("contiguous",)),
    Case("isin_number", lambda x: torch.isin(x, 2), [ROWS]),
    Case("unique", distinct, [FEW], [(0, 4)], [()]),
    Case("unique_floats", distinct, [Input((2, 3), grad=False, given=REPEATED.given)], variants=("contiguous",)),
    Case("unique_bool", distinct, [Input((3, 4), dtype=torch.bool)]),
    Case("unique_only", lambda x: torch.unique(x), [FEW]),
    Case("unique_rows", lambda x: distinct(x, 0), [Input((5, 3), 0, 2, torch.int32)], [(0, 3)]),
    Case("unique_columns", lambda x: distinct(x, -1), [Input((2, 5), 0, 2, torch.int32)]),
    Case("unique_slices", lambda x: distinct(x, 1), [Input((2, 6, 2), 0, 2, torch.int64)]),
    Case("unique_of_vector", lambda x: distinct(x, 0), [Input((6,), 0, 3, torch.int64)]),
    Case("cummax", lambda x: x.cummax(-1), [X], [(3, 0)], [()]),
    Case("cummin", lambda x: x.cummin(-1), [X], [(0, 4)], [()]),
    Case("cummax_first", lambda x: x.cummax(0), [Input((5, 2, 2), distinct=True)]),
    Case("cummin_repeated", lambda x: x.cummin(1), [Input((2, 9), 0, 4, torch.int32)]),
    Case("cummax_repeated", lambda x: x.cummax(1), [Input((2, 9), 0, 4, torch.int32)]),
    Case("cummax_nan", lambda x: [*x.cummax(1), *x.cummin(1)], [WITH_NAN], variants=("contiguous",), gradcheck=False),
    Case("median_all", lambda x: x.median(), [X], [(0, 4)], [()], variants=UNEXPANDED),
    Case("median_all_shared", lambda x: x.median(), [REPEATED], variants=("contiguous", "expanded"), gradcheck=False),
    Case("median", lambda x: x.median(-1), [X], [(0, 4)], [()], variants=UNEXPANDED),
    Case("median_kept", lambda x: x.median(0, True), [X], variants=UNEXPANDED),
    Case("median_integers", lambda x: x.median(0), [Input((4, 3), 0, 90, torch.int16, distinct=True)], variants=UNEXPANDED),
    Case("median_nan", lambda x: [x.median(), *x.median(1)], [WITH_NAN], variants=("contiguous",), gradcheck=False),
    Case("nanmedian_all", lambda x: x.nanmedian(), [X], [(0, 4)], [()], variants=UNEXPANDED),
    Case("nanmedian", lambda x: x.nanmedian(-1), [X], [(0, 4)], [()], variants=UNEXPANDED),
    Case("nanmedian_nan", lambda x: [x.nanmedian(), *x[::2].nanmedian(1)], [WITH_NAN], variants=("contiguous",), gradcheck=False),
    Case("quantile", quantiles("linear"), [X], None, None),
    *(Case(f"quantile_{how}", quantiles(how), [X]) for how in ("lower", "higher", "nearest", "midpoint")),
    Case("quantile_all", halves(lambda x: x.quantile(0.3)), [X], scalar=[()]),
    Case("quantile_all_kept", halves(lambda x: x.quantile(0.3, keepdim=True)), [X], scalar=[()]),
    Case("quantile_several", halves(lambda x, q: x.quantile(q, -1)), [X, Input((3,), 0.05, 0.95, distinct=True)], variants=UNEXPANDED),
    Case("quantile_several_kept", halves(lambda x, q: x.quantile(q, 0, True)), [Input((3, 2, 2), distinct=True), Input((2,), 0.1, 0.9, grad=False)], variants=UNEXPANDED),
    Case("quantile_several_of_all", halves(lambda x, q: x.quantile(q, keepdim=True)), [X, Input((2,), 0.1, 0.9, grad=False)], variants=("contiguous",)),
    Case("quantile_nan", halves(lambda x: x.quantile(0.4, 1)), [WITH_NAN], variants=("contiguous",), gradcheck=False),
]  # fmt: skip

write(__file__, CASES)
