"""Tests of `tenure.onnx`: ONNX Runtime computes the same as each operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import tenure
import tenure.nn.functional as F
from tenure import Tensor

from .onnx_comparison import check, compare, numbers

X = numbers(2, 3, 4)
POSITIVE = X.abs() + 0.1
UNIT = X.tanh() * 0.9
INTEGERS = tenure.tensor([[5, -3, 7], [2, 8, -6]])
DIVISORS = tenure.tensor([[2, 2, -3], [-5, 3, 4]])
MASK = X > 0
IMAGE = numbers(2, 4, 8, 8)
ROWS = numbers(2, 3)
PLACES = tenure.tensor([[0, 2], [1, 0]])
INDEX = tenure.tensor([2, 0, 1, 1])
WEIGHT = numbers(4)

UNARY = (
    "abs neg square sign floor ceil round trunc frac exp expm1 sin cos tan sinh cosh tanh asinh atan erf erfc sigmoid"
    " relu isnan isinf isfinite logical_not"
).split()
CURVES = (
    "relu relu6 leaky_relu elu selu celu softsign softplus gelu silu mish hardswish hardsigmoid hardtanh logsigmoid"
).split()

POSITIVES = "log log1p log2 log10 sqrt rsqrt reciprocal".split()

TABLE: dict[str, tuple[Callable[..., Any], Sequence[Tensor]]] = {
    **{name: (lambda x, name=name: getattr(tenure, name)(x), [X]) for name in UNARY},
    **{f"F.{name}": (lambda x, name=name: getattr(F, name)(x), [X * 3]) for name in CURVES},
    **{name: (lambda x, name=name: getattr(tenure, name)(x), [POSITIVE]) for name in POSITIVES},
    **{name: (lambda x, name=name: getattr(tenure, name)(x), [UNIT]) for name in "asin acos atanh".split()},
    "acosh": (lambda x: tenure.acosh(x + 1), [POSITIVE]),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), [X]),
    "threshold": (lambda x: F.threshold(x, 0.1, 20.0), [X]),
    "prelu": (F.prelu, [IMAGE, WEIGHT]),
    "swiglu": (lambda x, y: tenure.swiglu(x, y), [X, POSITIVE]),
    "softmax": (lambda x: F.softmax(x, 1), [X]),
    "log_softmax": (lambda x: F.log_softmax(x, -1), [X]),
    "softmax of integers": (lambda x: F.softmax(x, 1, dtype=tenure.float32), [INTEGERS]),
    "dropout": (lambda x: F.dropout(x, 0.5, training=False) * 1, [X]),
    "add": (lambda x, y: x + y, [X, WEIGHT]),
    "add of integer and float": (lambda x, y: x + y, [INTEGERS, numbers(2, 3)]),
    "add of integer and number": (lambda x: x + 1.5, [INTEGERS]),
    "add alpha": (lambda x, y: tenure.add(x, y, alpha=2), [X, WEIGHT]),
    "sub": (lambda x, y: x - y, [X, WEIGHT]),
    "sub alpha": (lambda x, y: tenure.sub(x, y, alpha=0.5), [X, WEIGHT]),
    "rsub": (lambda x: 1 - x, [X]),
    "mul": (lambda x, y: x * y, [X, WEIGHT]),
    "div": (lambda x, y: x / y, [X, POSITIVE]),
    "div of integers": (lambda x, y: x / y, [INTEGERS, DIVISORS]),
    "rdiv": (lambda x: 2 / x, [POSITIVE]),
    "floor_divide": (lambda x, y: x // y, [INTEGERS, DIVISORS]),
    "floor_divide of floats": (lambda x: x // 0.3, [X]),
    "div trunc": (lambda x, y: tenure.div(x, y, rounding_mode="trunc"), [INTEGERS, DIVISORS]),
    "div floor": (lambda x, y: tenure.div(x, y, rounding_mode="floor"), [X, POSITIVE]),
    "remainder": (lambda x, y: x % y, [INTEGERS, DIVISORS]),
    "remainder of floats": (lambda x: x % 0.7, [X]),
    "fmod": (lambda x, y: tenure.fmod(x, y), [INTEGERS, DIVISORS]),
    "fmod of floats": (lambda x: tenure.fmod(x, 0.7), [X]),
    "pow": (lambda x, y: x**y, [POSITIVE, X]),
    "pow of number": (lambda x: x**3, [X]),
    "maximum": (lambda x, y: tenure.maximum(x, y), [X, WEIGHT]),
    "minimum": (lambda x, y: tenure.minimum(x, y), [X, WEIGHT]),
    "hypot": (lambda x, y: tenure.hypot(x, y), [X, WEIGHT]),
    "nan_to_num": (lambda x: tenure.nan_to_num(x / (x > 0), 7.0, neginf=-3.0), [X * (X < 1)]),
    "copysign": (lambda x, y: (tenure.copysign(x, y), tenure.copysign(x, -1)), [X, WEIGHT]),
    "lerp": (lambda x, y: tenure.lerp(x, y, 0.3), [X, POSITIVE]),
    "addcmul": (lambda x, y: tenure.addcmul(x, x, y, value=0.5), [X, POSITIVE]),
    "addcdiv": (lambda x, y: tenure.addcdiv(x, x, y, value=0.5), [X, POSITIVE]),
    "logaddexp": (lambda x, y: tenure.logaddexp(x, y), [X, POSITIVE]),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), [X]),
    "clamp min": (lambda x: x.clamp(min=0.1), [X]),
    "clamp max": (lambda x: x.clamp(max=0.1), [X]),
    "clamp of tensors": (lambda x, y: x.clamp(-y, y), [X, WEIGHT.abs()]),
    "clamp of integers": (lambda x: x.clamp(0, 6), [INTEGERS]),
    "where": (lambda m, x, y: tenure.where(m, x, y), [MASK, X, WEIGHT]),
    "where number": (lambda m, x: tenure.where(m, x, 2.0), [MASK, X]),
    "masked_fill": (lambda x, m: x.masked_fill(m, -1.0), [X, MASK]),
    "eq": (lambda x, y: x == y, [INTEGERS, DIVISORS]),
    "ne": (lambda x: x != 2, [INTEGERS]),
    "lt": (lambda x: x < 0.5, [X]),
    "le of integer and float": (lambda x: x <= 2.5, [INTEGERS]),
    "gt": (lambda x, y: x > y, [X, WEIGHT]),
    "ge": (lambda x, y: x >= y, [INTEGERS, numbers(2, 3)]),
    "logical": (lambda x, m: (tenure.logical_and(x, m), tenure.logical_or(x, m), tenure.logical_xor(x, m)), [X, MASK]),
    "bitwise": (lambda x, y: (x & y, x | y, x ^ y, ~x), [INTEGERS, DIVISORS]),
    "bitwise of bools": (lambda x: (x & ~x, x | x, x ^ x), [MASK]),
    "casts": (lambda x: (x.to(tenure.int32), x.to(tenure.float64), x.bool(), x.half()), [X]),
    "view": (lambda x: x.view(6, 4), [X]),
    "reshape": (lambda x: x.transpose(0, 1).reshape(3, -1), [X]),
    "flatten": (lambda x: x.flatten(1), [X]),
    "unflatten": (lambda x: x.unflatten(2, (2, 2)), [X]),
    "squeeze": (lambda x: x.unsqueeze(1).squeeze(1) * x[:, None].squeeze(), [X]),
    "unsqueeze": (lambda x: x.unsqueeze(-1), [X]),
    "expand": (lambda x: x.expand(2, 3, 4) + 1, [WEIGHT]),
    "transpose": (lambda x: x.transpose(0, 2), [X]),
    "permute": (lambda x: x.permute(2, 0, 1), [X]),
    "movedim": (lambda x: x.movedim(0, -1), [X]),
    "t": (lambda x: x.t(), [numbers(2, 3)]),
    "mT": (lambda x: x.mT, [X]),
    "cat": (lambda x, y: tenure.cat([x, y], 1), [X, X + 1]),
    "cat of dtypes": (lambda x, y: tenure.cat([x, y]), [INTEGERS, numbers(2, 3)]),
    "stack": (lambda x, y: tenure.stack([x, y], -1), [X, X + 1]),
    "split": (lambda x: x.split(3, 2), [X]),
    "split sizes": (lambda x: x.split([1, 3], 2), [X]),
    "chunk": (lambda x: x.chunk(2, -1), [X]),
    "unbind": (lambda x: x.unbind(1), [X]),
    "slices": (lambda x: x[:, 1:, ::2], [X]),
    "select": (lambda x: x[1, -1], [X]),
    "narrow": (lambda x: x.narrow(1, 1, 2), [X]),
    "repeat": (lambda x: x.repeat(2, 1, 1, 3), [X]),
    "tile": (lambda x: x.tile(2), [X]),
    "flip": (lambda x: x.flip(0, 2), [X]),
    "roll": (lambda x: x.roll((1, -1), (0, 2)), [X]),
    "tril": (lambda x: (x.tril(), x.triu(1)), [X]),
    "matmul": (lambda x, y: x @ y.mT, [X, POSITIVE]),
    "matmul of vectors": (lambda x, y: (x @ y, tenure.dot(y, y)), [X, WEIGHT]),
    "bmm": (lambda x, y: tenure.bmm(x, y.transpose(1, 2)), [X, X]),
    "mv": (lambda x, y: tenure.mv(x, y), [numbers(3, 4), WEIGHT]),
    "outer": (lambda x, y: tenure.outer(x, y), [WEIGHT, WEIGHT]),
    "addmm": (lambda c, a, b: tenure.addmm(c, a, b, beta=0.5, alpha=2), [WEIGHT, numbers(2, 3), numbers(3, 4)]),
    "baddbmm": (lambda c, a: tenure.baddbmm(c, a, a.mT, beta=0.5, alpha=2), [numbers(2, 3, 3), X]),
    "linear": (lambda x, w, b: F.linear(x, w, b), [X, numbers(5, 4), numbers(5)]),
    "linear of matrices": (lambda x, w: F.linear(x, w), [numbers(2, 4), numbers(5, 4)]),
    "einsum": (lambda x, y: tenure.einsum("bij, bkj -> bik", x, y), [X, X]),
    "conv1d": (lambda x, w: F.conv1d(x, w, stride=2, padding=1), [numbers(2, 4, 9), numbers(6, 4, 3)]),
    "conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, padding=(1, 2), dilation=2, groups=2),
        [IMAGE, numbers(6, 2, 3, 3), numbers(6)],
    ),
    "conv2d same": (lambda x, w: F.conv2d(x, w, padding="same"), [IMAGE, numbers(6, 4, 4, 3)]),
    "conv2d of one image": (lambda x, w: F.conv2d(x, w), [numbers(4, 8, 8), numbers(6, 4, 3, 3)]),
    "conv3d": (lambda x, w: F.conv3d(x, w), [numbers(1, 2, 4, 5, 6), numbers(3, 2, 2, 2, 2)]),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2), [numbers(2, 4, 5), numbers(4, 3, 3)]),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1, groups=2),
        [IMAGE, numbers(4, 3, 3, 3), numbers(6)],
    ),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, stride=2), [numbers(2, 4, 9)]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, stride=2, padding=1, dilation=2), [IMAGE]),
    "max_pool2d ceil": (lambda x: F.max_pool2d(x, 3, stride=2, ceil_mode=True), [IMAGE]),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), [numbers(1, 2, 4, 4, 4)]),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, stride=2), [numbers(2, 4, 9)]),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, stride=2, padding=1), [IMAGE]),
    "avg_pool2d without padding": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), [IMAGE]),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), [numbers(1, 2, 4, 4, 4)]),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 2), [numbers(2, 4, 8)]),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (1, 1)), [IMAGE]),
    "adaptive_avg_pool2d of windows": (lambda x: F.adaptive_avg_pool2d(x, (2, 4)), [IMAGE]),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (2, 4)), [IMAGE]),
    "batch_norm": (lambda x, m, w: F.batch_norm(x, m, w.abs(), w, m), [IMAGE, WEIGHT, WEIGHT]),
    "batch_norm without weight": (lambda x, m: F.batch_norm(x, m, m.abs()), [IMAGE, WEIGHT]),
    "batch_norm_relu": (lambda x, m: tenure.batch_norm_relu(x, x, m, m.abs(), m, m), [IMAGE, WEIGHT]),
    "instance_norm": (lambda x, w: F.instance_norm(x, weight=w, bias=w), [IMAGE, WEIGHT]),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w, w), [X, WEIGHT]),
    "layer_norm without weight": (lambda x: F.layer_norm(x, (3, 4)), [X]),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w, w), [IMAGE, WEIGHT]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), [X, WEIGHT]),
    "sum": (lambda x: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True)), [X]),
    "sum of bools": (lambda x: x.sum(1), [MASK]),
    "mean": (lambda x: (x.mean(), x.mean(1)), [X]),
    "prod": (lambda x: x.prod(1), [X]),
    "amax": (lambda x: (x.amax(1), x.amin((0, 1)), x.max(), x.min()), [X]),
    "max": (lambda x: x.max(1), [X]),
    "min": (lambda x: x.min(1, keepdim=True), [X]),
    "argmax": (lambda x: (x.argmax(), x.argmax(1), x.argmin(-1, keepdim=True)), [X]),
    "any": (lambda x: (x.any(), x.all(1)), [MASK]),
    "count_nonzero": (lambda x: tenure.count_nonzero(x, 1), [MASK]),
    "var": (lambda x: (x.var(), x.var(1), x.std(1, correction=0), x.var(1, unbiased=False)), [X]),
    "var_mean": (lambda x: tenure.var_mean(x, 1), [X]),
    "vector_norm": (lambda x: [tenure.vector_norm(x, p, 1) for p in (1, 2, 3, float("inf"))], [X]),
    "logsumexp": (lambda x: x.logsumexp(1), [X]),
    "cumsum": (lambda x: x.cumsum(1), [X]),
    "cumsum of integers": (lambda x: x.cumsum(0), [INTEGERS]),
    "sort": (lambda x: x.sort(1), [X]),
    "argsort": (lambda x: x.argsort(-1, descending=True), [X]),
    "topk": (lambda x: x.topk(2, 1, largest=False), [X]),
    "median": (lambda x: (*x.median(1), *x.median(2, keepdim=True)), [X]),
    "kthvalue": (lambda x: x.kthvalue(2, 2), [X]),
    "embedding": (lambda w, i: F.embedding(i, w), [numbers(3, 5), INDEX]),
    "index_select": (lambda x, i: x.index_select(1, i), [X, INDEX]),
    "gather": (lambda x, i: x.gather(1, i), [numbers(2, 3), tenure.tensor([[0, 2], [1, 1]])]),
    "take": (lambda x, i: x.take(i), [X, INDEX]),
    "one_hot": (lambda i: F.one_hot(i, 3), [INDEX]),
    "index": (lambda x, i: x[:, i], [X, INDEX]),
    "index by two": (lambda x, i: x[i % 2, i], [X, INDEX]),
    "index by two behind": (lambda x, i: x[:, i, i], [X, INDEX]),
    "scatter": (
        lambda x, i: (x.scatter(1, i, x[:, :2]), x.scatter(1, i, 9.0)),
        [ROWS, PLACES],
    ),
    "scatter_add": (lambda x, i: x.scatter_add(1, i, x[:, :2]), [numbers(2, 3), tenure.tensor([[0, 2], [1, 1]])]),
    "scatter_reduce": (
        lambda x, i: x.scatter_reduce(1, i, x[:, :2], "amax"),
        [numbers(2, 3), tenure.tensor([[0, 2], [1, 1]])],
    ),
    "index_add": (lambda x, i: x.index_add(1, i, tenure.cat([x, x[:, :1]], 1)), [X, INDEX]),
    "index_copy": (lambda x, i: x.index_copy(1, i, x[:, :2] * 5), [X, INDEX[:2]]),
    "index_fill": (lambda x, i: x.index_fill(1, i, 7.0), [X, INDEX[:2]]),
    "index_put": (lambda x, i, v: x.index_put((i % 2, i), v), [X, INDEX[:3], WEIGHT]),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1), value=3.0), [X]),
    "pad reflect": (lambda x: F.pad(x, (1, 2), mode="reflect"), [X]),
    "pad replicate": (lambda x: F.pad(x, (1, 2), mode="replicate"), [X]),
    "pad negative": (lambda x: F.pad(x, (-1, 2)), [X]),
    "interpolate nearest": (lambda x: F.interpolate(x, scale_factor=2.0), [IMAGE]),
    "interpolate nearest 1.3": (lambda x: F.interpolate(x, scale_factor=1.3), [IMAGE]),
    "interpolate size": (lambda x: F.interpolate(x, size=(5, 11)), [IMAGE]),
    "interpolate bilinear": (lambda x: F.interpolate(x, size=(5, 11), mode="bilinear"), [IMAGE]),
    "interpolate corners": (lambda x: F.interpolate(x, size=(5, 11), mode="bilinear", align_corners=True), [IMAGE]),
    "interpolate bicubic": (lambda x: F.interpolate(x, size=(13, 11), mode="bicubic"), [IMAGE]),
    "attention": (F.scaled_dot_product_attention, [numbers(2, 4, 5, 8), numbers(2, 4, 6, 8), numbers(2, 4, 6, 8) * 2]),
    "attention causal": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), [numbers(2, 4, 5, 8)]),
    "attention mask": (
        lambda x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m, scale=0.5),
        [numbers(2, 4, 5, 8), tenure.ones(5, 5).tril() > 0],
    ),
    "attention added mask": (
        lambda x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m),
        [numbers(2, 4, 5, 8), numbers(5, 5)],
    ),
    "attention groups": (
        lambda x, y: F.scaled_dot_product_attention(x, y, y, enable_gqa=True),
        [numbers(2, 4, 5, 8), numbers(2, 2, 5, 8)],
    ),
    "rotary": (lambda x, a: tenure.rotary(x, a.cos(), a.sin()), [numbers(2, 3, 4, 8), numbers(4, 4)]),
    "zeros": (lambda x: x + tenure.zeros(2, 3, 4) + tenure.ones_like(x) + tenure.full((4,), 2.5), [X]),
    "arange": (lambda x: x + tenure.arange(4) + tenure.linspace(0, 1, 4) + tenure.eye(3, 4), [X]),
    "add_": (lambda x: x.exp().add_(1).mul_(2).relu_().clamp_(0, 3), [X]),
    "fill_": (lambda x: tenure.empty(2, 3).fill_(2) + tenure.zeros(2, 3).copy_(x), [numbers(3)]),
    "masked_fill_": (lambda x, m: x.exp().masked_fill_(m, 0.5), [X, MASK]),
}


@pytest.mark.parametrize("name", TABLE)
def test_an_operation_computes_the_same_in_onnx_runtime(name: str, tmp_path: Path) -> None:
    function, inputs = TABLE[name]
    check(function, inputs, tmp_path)


#: Functions whose sizes depend on the first axis of their input.
DYNAMIC: dict[str, Callable[[Tensor], Any]] = {
    "view": lambda x: x.view(-1, 12),
    "view of both": lambda x: x.view(x.shape[0] * 3, 4),
    "reshape": lambda x: x.reshape(x.shape[0], 2, 6),
    "flatten": lambda x: x.flatten(0, 1),
    "expand": lambda x: x.sum(0).expand(x.shape[0], 3, 4) * 1,
    "expand_as": lambda x: x.sum(0, keepdim=True).expand_as(x) * 1,
    "zeros": lambda x: tenure.zeros(x.shape[0], 2) + 1,
    "arange": lambda x: tenure.arange(x.shape[0]) + 1,
    "arange from one": lambda x: tenure.arange(1, x.shape[0] + 1),
    "cat": lambda x: tenure.cat([x, x], 0),
    "slice": lambda x: x[1:],
    "last": lambda x: x[-1],
    "repeat": lambda x: x.repeat(2, 1, 1),
    "mean": lambda x: (x.mean(0), x.var(0), x.sum() / x.shape[0]),
    "softmax": lambda x: x.softmax(0),
    "sort": lambda x: x.sort(0),
    "flip": lambda x: (x.flip(0), x.roll(1, 0)),
    "triangle": lambda x: tenure.ones(x.shape[0], x.shape[0]).tril(),
    "causal": lambda x: F.scaled_dot_product_attention(
        x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1), is_causal=True
    ),
    "pad": lambda x: F.pad(x, (0, 0, 0, 0, 1, 2)),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_sizes_are_computed_in_the_graph(name: str, tmp_path: Path) -> None:
    function = DYNAMIC[name]
    found = check(function, [numbers(2, 3, 4)], tmp_path, input_names=["x"], dynamic_axes={"x": [0]})
    compare(found, function, [numbers(5, 3, 4)])
