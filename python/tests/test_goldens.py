"""Every operation of the table against PyTorch's results, by the goldens of `tenure-tensor`.

The scripts of the goldens are PyTorch programs. They run here with a module in PyTorch's place that has Tenure's
functions, and the results are compared with those that PyTorch wrote to the golden files.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import _native

GOLDENS = Path(__file__).parents[2] / "crates/tenure-tensor/tests/goldens"
FAMILIES = sorted(path.stem for path in GOLDENS.glob("*.safetensors"))
# The names of dtypes in the samples' places.
DTYPES = {
    "f64": tenure.float64,
    "f32": tenure.float32,
    "f16": tenure.float16,
    "bf16": tenure.bfloat16,
    "i64": tenure.int64,
    "i32": tenure.int32,
    "i16": tenure.int16,
    "i8": tenure.int8,
    "u8": tenure.uint8,
    "bool": tenure.bool,
}
# See "Tolerances" in the README of the goldens.
# The tensors are there: `TENURE_TEST_DEVICE=cuda` runs the operations on a GPU.
DEVICE = os.environ.get("TENURE_TEST_DEVICE", "cpu")
#: Functions that make the constants of cases.
CREATING = ("arange", "eye", "full", "linspace", "ones", "tensor", "zeros")
TOLERANCES = {tenure.float64: 1e-12, tenure.float32: 1e-5, tenure.float16: 2.5e-3, tenure.bfloat16: 1e-2}

Row = tuple[str, bool, list[tuple[str, str, str | None]], int | None, Sequence[str] | None, str, str]
Call = tuple[str, tuple[Any, ...], dict[str, Any]]
TABLE = _native.operation_table()
FUNCTIONS = _native.operation_functions()


class Calls:
    """The calls of operations while it is entered: those of functions through `noting`, and those of methods."""

    def __init__(self) -> None:
        self.found: list[Call] | None = None

    def noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that notes its calls under a name."""

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if self.found is not None and name in FUNCTIONS:
                self.found.append((name, args, kwargs))
            return result

        return call

    def of(self, program: Callable[[], object]) -> list[Call]:
        """Runs a program, and returns the calls that succeeded."""
        with pytest.MonkeyPatch.context() as patch:
            for name in FUNCTIONS:
                method = vars(tenure.Tensor).get(name)
                if callable(method):
                    noting = self.noting(name, method)
                    patch.setattr(tenure.Tensor, name, lambda *args, _call=noting, **named: _call(*args, **named))
            # The functions of `tenure.linalg` call the table's by other names.
            patch.setattr(tenure.linalg, "_ops", Standin("tenure._operations", tenure._operations))
            self.found = []
            try:
                program()
                return self.found
            finally:
                self.found = None


CALLS = Calls()


class Standin(types.ModuleType):
    """A module that has Tenure's functions by PyTorch's names, and notes their calls."""

    def __init__(self, name: str, *places: object, **more: object) -> None:
        super().__init__(name)
        self._places = places
        self.__dict__.update(more)

    def __getattr__(self, name: str) -> Any:
        for place in self._places:
            if hasattr(place, name):
                value = getattr(place, name)
                return CALLS.noting(name, value) if name in FUNCTIONS else value
        raise AttributeError(f"Tenure has no {self.__name__}.{name}")


@pytest.fixture(autouse=True)
def whole_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goldens are exact: a GPU must not round the factors of convolutions to TF32."""
    monkeypatch.setattr(tenure.backends.cudnn, "allow_tf32", False)


def silu(input: tenure.Tensor, inplace: bool = False) -> tenure.Tensor:
    return input.silu_() if inplace else input.silu()


def embedding(input: tenure.Tensor, weight: tenure.Tensor, *padding_idx: int) -> tenure.Tensor:
    """PyTorch's function in `torch.nn.functional` has the other order than `torch.embedding`."""
    return weight.embedding(input, *padding_idx)


def adaptive_max_pool(dims: int, input: tenure.Tensor, size: Any, return_indices: bool) -> Any:
    """PyTorch's function returns the indices if it is asked to."""
    values, indices = getattr(input, f"adaptive_max_pool{dims}d")(size)
    return (values, indices) if return_indices else values


@cache
def cases(family: str) -> dict[str, Callable[..., Any]]:
    """Returns the functions of a family's cases, which call Tenure's operations."""
    pools = {f"adaptive_max_pool{dims}d": partial(adaptive_max_pool, dims) for dims in (1, 2, 3)}
    functional = Standin("torch.nn.functional", tenure, silu=silu, embedding=embedding, **pools)
    nn = Standin("torch.nn", functional=functional)
    linalg = Standin("torch.linalg", tenure.linalg)
    trace = CALLS.noting("trace", tenure._operations.trace)
    made = {name: CALLS.noting(name, partial(getattr(tenure, name), device=DEVICE)) for name in CREATING}
    torch = Standin("torch", tenure, nn=nn, linalg=linalg, trace=trace, **made)
    modules = {"torch": torch, "torch.nn": nn, "torch.nn.functional": functional, "torch.linalg": linalg}
    found: dict[str, Callable[..., Any]] = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        harness = types.ModuleType("harness")
        patch.setitem(sys.modules, "harness", harness)
        run(GOLDENS / "harness.py", harness.__dict__)
        harness.__dict__["write"] = lambda _, listed: found.update({case.name: case.function for case in listed})
        run(GOLDENS / f"{family}.py", {"__name__": family, "__file__": f"{family}.py"})
    return found


def run(path: Path, names: dict[str, Any]) -> None:
    exec(compile(path.read_text(), path, "exec"), names)


class Golden:
    """A golden file, whose format `harness.py` describes."""

    def __init__(self, family: str) -> None:
        content = (GOLDENS / f"{family}.safetensors").read_bytes()
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8 : 8 + length])
        self.samples: list[dict[str, Any]] = json.loads(header.pop("__metadata__")["samples"])
        names = {"BOOL": "bool"}
        self.data = {}
        for entry in header.values():
            start, end = entry["data_offsets"]
            name = names.get(entry["dtype"], entry["dtype"].lower())
            self.data[name] = content[8 + length + start : 8 + length + end]

    def tensor(self, dtype: str, at: int, sizes: Sequence[int]) -> tenure.Tensor:
        kind = DTYPES[dtype]
        start, size = at * kind.itemsize, math.prod(sizes) * kind.itemsize
        part = self.data[dtype][start : start + size]
        return _native.rebuild_tensor(tenure.Tensor, part, sizes, kind.name, DEVICE, False)

    def inputs(self, sample: dict[str, Any]) -> list[tenure.Tensor]:
        tensors = []
        for dtype, at, count, sizes, strides, offset, needs_grad in sample["inputs"]:
            view = self.tensor(dtype, at, [count]).as_strided(sizes, strides, offset)
            tensors.append(view.requires_grad_(needs_grad))
        return tensors

    def check(self, sample: dict[str, Any], function: Callable[..., Any]) -> None:
        """Compares the results and the gradients of a function with PyTorch's."""
        inputs = self.inputs(sample)
        results = function(*inputs)
        outputs = list(results) if isinstance(results, (tuple, list)) else [results]
        assert len(outputs) == len(sample["outputs"])
        for output, expected, truth in zip(outputs, sample["outputs"], sample["truth"], strict=False):
            self.compare(output, expected, truth)
        roots, upstream = [], []
        for output, grad in zip(outputs, sample["upstream"], strict=True):
            assert output.requires_grad == (grad is not None)
            if grad is not None:
                roots.append(output)
                upstream.append(self.tensor(*grad))
        leaves = [tensor for tensor in inputs if tensor.requires_grad]
        if not roots or not leaves:
            return
        truths = sample["truth"][len(outputs) :]
        wanted = [pair for tensor, pair in zip(inputs, zip(sample["grads"], truths, strict=True), strict=True)
                  if tensor.requires_grad]  # fmt: skip
        grads = tenure.autograd.grad(roots, leaves, upstream, allow_unused=True)
        for found, (expected, truth) in zip(grads, wanted, strict=True):
            assert (found is None) == (expected is None)
            if expected is not None:
                self.compare(found, expected, truth)

    def compare(self, found: tenure.Tensor, expected: list[Any], truth: list[Any] | None) -> None:
        theirs = self.tensor(*expected)
        assert found.shape == theirs.shape and found.dtype == theirs.dtype
        is_near = near(found, theirs) or truth is not None and near(found, self.tensor(*truth))
        assert is_near, f"{found} is not PyTorch's {theirs}"


def near(found: tenure.Tensor, expected: tenure.Tensor) -> bool:
    """Returns whether each element is within the tolerance, as `near` in `harness.rs` does."""
    ours, theirs = numbers(found), numbers(expected)
    if found.dtype not in TOLERANCES:
        return ours == theirs
    finite = [abs(number) for number in theirs if math.isfinite(number)]
    usual = min(1.0, max(0.1, sum(finite) / len(finite))) if finite else 0.1
    tolerance = TOLERANCES[found.dtype]
    return all(
        a == b or math.isnan(a) and math.isnan(b) or abs(a - b) <= tolerance * max(abs(b), usual)
        for a, b in zip(ours, theirs, strict=True)
    )


def numbers(tensor: tenure.Tensor) -> list[Any]:
    return list(tensor.detach().reshape(-1).tolist())


@cache
def golden(family: str) -> Golden:
    return Golden(family)


def listed() -> Iterator[Any]:
    for family in FAMILIES:
        for case in dict.fromkeys(sample["case"] for sample in golden(family).samples):
            yield pytest.param(family, case, id=f"{family}-{case}")


@pytest.mark.parametrize(("family", "case"), list(listed()))
def test_results_and_gradients_are_those_of_pytorch(family: str, case: str) -> None:
    function = cases(family)[case]
    for sample in golden(family).samples:
        if sample["case"] == case:
            golden(family).check(sample, function)


#: Parameters whose elements may be separate arguments.
COLLECTED = ("size", "shape", "dims", "repeats")


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, tenure.Tensor) and value.dim() == 0)


# A type that fits each kind of parameter of which operations of one name have different ones.
KINDS: dict[str, Callable[[Any], bool]] = {
    "Tensor": lambda value: isinstance(value, tenure.Tensor),
    "Int": lambda value: isinstance(value, int),
    "Size": lambda value: isinstance(value, int),
    "Ints": lambda value: isinstance(value, (tuple, list, int, type(None))) and not isinstance(value, bool),
    "Sizes": lambda value: isinstance(value, (tuple, list, int)),
    "Float": lambda value: is_number(value) and not isinstance(value, bool),
    "OptionalFloat": lambda value: value is None or is_number(value),
    "Scalar": lambda value: is_number(value),
    "Bool": lambda value: isinstance(value, bool),
    "Text": lambda value: isinstance(value, str),
    "Generator": lambda value: isinstance(value, (tenure.Generator, type(None))),
    "DType": lambda value: isinstance(value, tenure.dtype),
    "Device": lambda value: isinstance(value, (str, tenure.device)),
}


def fits(row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether an operation takes these arguments."""
    parameters = row[2]
    names = {
        "axis": "dim",
        "keepdims": "keepdim",
        "split_size": "split_size_or_sections",
        "tensor": "input",
    }
    named = {names.get(name, name): value for name, value in kwargs.items() if name != "requires_grad"}
    listed = [kind for name, kind, _ in parameters[:2] if kind == "Tensors" or name in COLLECTED]
    if any(kind in ("Tensors", "Ints", "Sizes") for kind in listed):
        names_fit = all(name in {name for name, _, _ in parameters} for name in named)
        return names_fit and not any(isinstance(value, tenure.dtype) for value in args)
    if len(args) > len(parameters):
        return False
    positional = dict(zip((name for name, _, _ in parameters), args, strict=False))
    if positional.keys() & named.keys():
        return False
    given = positional | named
    needed = {name for name, _, default in parameters if default is None}
    kinds = {name: kind for name, kind, _ in parameters}
    return (
        needed <= given.keys()
        and given.keys() <= kinds.keys()
        and all(KINDS.get(kinds[name], lambda _: True)(value) for name, value in given.items())
    )


def row_of(call: Call) -> int:
    """Returns the number of the table's entry that a call runs: the first of its name that takes the arguments."""
    name, args, kwargs = call
    if name == "tensordot" and isinstance(args[-1], tuple):
        # The package's function gives the table's the two lists one by one.
        args = (*args[:-1], *args[-1])
    return next(index for index, row in enumerate(TABLE) if row[0] == name and fits(row, args, kwargs))


@cache
def covered() -> set[int]:
    """Returns the entries of the table that the goldens' cases run."""
    calls: list[Call] = []
    for family in FAMILIES:
        first = {sample["case"]: sample for sample in reversed(golden(family).samples)}
        for case, sample in first.items():
            calls += CALLS.of(partial(cases(family)[case], *golden(family).inputs(sample)))
    return {row_of(call) for call in calls}


# Programs of what the goldens do not run: with `t` for the module, and PyTorch's own if the name there is another.
Program = Callable[..., Any]
DIRECT: list[tuple[Program, Program | None]] = [
    (lambda t, x, y: t.gelu_tanh(x), lambda t, x, y: t.nn.functional.gelu(x, approximate="tanh")),
    (lambda t, x, y: t.swiglu(x, y), lambda t, x, y: t.nn.functional.silu(x) * y),
    (lambda t, x, y: t.floor_divide(x.detach(), 0.3), None),
    (lambda t, x, y: t.div_trunc(x, y), lambda t, x, y: t.div(x, y, rounding_mode="trunc")),
    (lambda t, x, y: t.sub(x, y, alpha=2), None),
    (lambda t, x, y: t.allclose(x, x + 1e-9), None),
    (lambda t, x, y: t.allclose(x, y, rtol=1e-3, atol=1e-3), None),
    (lambda t, x, y: t.equal(x, x), None),
    (lambda t, x, y: t.max(x, y), None),
    (lambda t, x, y: t.min(x, y), None),
    (lambda t, x, y: t.clamp(x, min=0.1), None),
    (lambda t, x, y: t.clamp(x, max=0.1), None),
    (lambda t, x, y: t.equal(x, y), None),
    (lambda t, x, y: x.to("cpu"), None),
    (
        lambda t, x, y: t.tensor([2, 0, 1]).one_hot(4),
        lambda t, x, y: t.nn.functional.one_hot(t.tensor([2, 0, 1]), 4),
    ),
    (lambda t, x, y: t.meshgrid(x[0], y[1]), None),
    (
        lambda t, x, y: x.reshape(1, 3, 4).adaptive_avg_pool((2, 3)),
        lambda t, x, y: t.nn.functional.adaptive_avg_pool2d(x.reshape(1, 3, 4), (2, 3)),
    ),
    (
        lambda t, x, y: t.adaptive_avg_pool3d(x.reshape(1, 3, 2, 2), 2),
        lambda t, x, y: t.nn.functional.adaptive_avg_pool3d(x.reshape(1, 3, 2, 2), 2),
    ),
    (lambda t, x, y: t.index(x, [t.tensor([2, 0])]), lambda t, x, y: x[t.tensor([2, 0])]),
    (lambda t, x, y: t.index(x, [t.tensor([2, 0])], 1), lambda t, x, y: x[:, t.tensor([2, 0])]),
    (
        lambda t, x, y: t.batch_norm_relu(x, y, t.zeros(4), t.ones(4)),
        lambda t, x, y: t.relu(t.nn.functional.batch_norm(x, t.zeros(4), t.ones(4)) + y),
    ),
    (lambda t, x, y: t.sum(x, 0, dtype=t.float64), None),
    (lambda t, x, y: t.mean(x, (0, 1), keepdim=True, dtype=t.float64), None),
    (lambda t, x, y: x.prod(1, dtype=t.float64), None),
    (lambda t, x, y: t.cumsum(x, 0, dtype=t.float64), None),
    (lambda t, x, y: t.cumprod(x, 1, dtype=t.float64), None),
    (lambda t, x, y: t.softmax(x, 1, dtype=t.float64), None),
    (lambda t, x, y: t.log_softmax(x, -1, dtype=t.float64), None),
    (
        lambda t, x, y: t.rotary(x.reshape(1, 1, 3, 4), y[:, :2].cos(), y[:, :2].sin()),
        lambda t, x, y: rotated(t, x.reshape(1, 1, 3, 4), y[:, :2]),
    ),
    (lambda t, x, y: t.mT(x), lambda t, x, y: x.mT),
    (lambda t, x, y: t.slice(x, 1, 0, 4, 2), lambda t, x, y: x[:, 0:4:2]),
    (lambda t, x, y: t.empty_like(x).fill_(2), None),
    (lambda t, x, y: t.empty(2, 3, dtype=t.int16).fill_(2), None),
    (lambda t, x, y: t.empty_like(x, dtype=t.int32).fill_(2), None),
    (lambda t, x, y: t.full_like(x, 3, dtype=t.int32), None),
    (lambda t, x, y: t.zeros_like(x, dtype=t.float64), None),
    (lambda t, x, y: t.ones_like(x, dtype=t.bool), None),
    (lambda t, x, y: t.eye(2, 3), None),
    (lambda t, x, y: t.nonzero(x > 0, as_tuple=True), None),
    (lambda t, x, y: t.tensor(3.0).nonzero(as_tuple=True), None),
    (lambda t, x, y: (x > 0).nonzero(as_tuple=False), None),
    (lambda t, x, y: t.where(x > 0), None),
    (lambda t, x, y: x.where(y > 0, 2.0) * x.where(x > y, y), None),
    (lambda t, x, y: t.meshgrid(x[0], y[1], indexing="xy"), None),
    (lambda t, x, y: t.meshgrid([x[0], y[1][:3], x[1][:2]], indexing="xy"), None),
    (lambda t, x, y: t.var(x, False), None),
    (lambda t, x, y: t.var(x, unbiased=True), None),
    (lambda t, x, y: x.var(0, False), None),
    (lambda t, x, y: x.var(dim=1, unbiased=False, keepdim=True), None),
    (lambda t, x, y: x.std(unbiased=False), None),
    (lambda t, x, y: t.std(x, (0, 1), True), None),
    (lambda t, x, y: t.std(x, -1, unbiased=False), None),
    (lambda t, x, y: t.var_mean(x, False), None),
    (lambda t, x, y: t.var_mean(x, 1, unbiased=False), None),
    (lambda t, x, y: x.detach().view(t.int32), None),
    (lambda t, x, y: x.detach().view(t.uint8)[1:, 4:12].view(t.int16), None),
    (lambda t, x, y: x.detach().view(t.float64), None),
    (lambda t, x, y: x.reshape(1, 3, 2, 2).contiguous(memory_format=t.channels_last), None),
    (lambda t, x, y: x.reshape(1, 3, 2, 2).clone(memory_format=t.channels_last), None),
    (lambda t, x, y: t.clone(x, memory_format=t.preserve_format), None),
    (lambda t, x, y: t.conv1d(x, y.reshape(2, 3, 2), padding="same"), None),
    (lambda t, x, y: t.conv1d(x, y.reshape(2, 3, 2), stride=2, padding="valid"), None),
    (lambda t, x, y: t.conv2d(x.reshape(1, 3, 4), y.reshape(2, 1, 3, 2), padding="same", dilation=(1, 3)), None),
    (lambda t, x, y: t.conv3d(x.reshape(1, 1, 3, 2, 2), y.reshape(1, 1, 2, 3, 2), padding="same"), None),
    (lambda t, x, y: t.div(x, y, rounding_mode=None), None),
    (lambda t, x, y: t.div(x, y, rounding_mode="floor"), None),
    (lambda t, x, y: t.split(x, split_size_or_sections=2, dim=1), None),
    (lambda t, x, y: x.split(split_size=3, dim=1), None),
    (lambda t, x, y: t.split(tensor=x, split_size_or_sections=[1, 3], dim=1), None),
    (lambda t, x, y: t.tensor([-2, 3], dtype=t.int8).relu_(), None),
    (lambda t, x, y: t.norm(x), None),
    (lambda t, x, y: t.norm(x, "fro", dim=1), None),
    (lambda t, x, y: x.norm(p=3, dim=(0, 1), keepdim=True), None),
    (lambda t, x, y: x.norm(1, -1, dtype=t.float64), None),
    (lambda t, x, y: t.std_mean(x, 1, correction=0, keepdim=True), None),
    (lambda t, x, y: t.std_mean(x), None),
    (lambda t, x, y: t.std_mean(x, False), None),
    (lambda t, x, y: t.std_mean(x, (0, 1), unbiased=False, keepdim=True), None),
    (lambda t, x, y: t.tensor_split(x, 3, dim=1), None),
    (lambda t, x, y: x.tensor_split((1, -1), -1), None),
    (lambda t, x, y: x.tensor_split([2, 1]), None),
    (lambda t, x, y: x.tensor_split(t.tensor([1, 3]), 1), None),
    (lambda t, x, y: x.tensor_split(t.tensor(2), dim=1), None),
    (lambda t, x, y: t.is_nonzero(x[0, 0]), None),
    (lambda t, x, y: t.tensor([[0]]).is_nonzero(), None),
    (lambda t, x, y: t.add(x, 1.5, alpha=2), None),
    (lambda t, x, y: x.sub(3, alpha=-2), None),
    (lambda t, x, y: x.clone().add_(1.5, alpha=2), None),
    (lambda t, x, y: x.clone().sub_(y, alpha=3), None),
    (lambda t, x, y: x.clone().sub_(2, alpha=0.5), None),
    (lambda t, x, y: x.clone().div_(y, rounding_mode=None), None),
    (lambda t, x, y: t.tensor([7, -7]).div_(2, rounding_mode="floor"), None),
    (lambda t, x, y: t.tensor([7, -7]).div_(2, rounding_mode="trunc"), None),
    (lambda t, x, y: x.clone().clamp_(min=0.3), None),
    (lambda t, x, y: x.clone().clamp_(max=0.3), None),
    (lambda t, x, y: x.clone().clamp_(min=y), None),
    (lambda t, x, y: x.clone().clamp_(y - 1, y), None),
    (lambda t, x, y: t.index_add(x, 0, t.tensor([2, 0]), y[:2], alpha=2), None),
    (lambda t, x, y: x.clone().index_add_(1, t.tensor([3]), y[:, :1], alpha=-0.5), None),
    (lambda t, x, y: t.all(t.tensor([[1, 0], [1, 2]], dtype=t.uint8), 1), None),
    (lambda t, x, y: t.any(t.tensor([], dtype=t.uint8)), None),
    (lambda t, x, y: t.round(x * 3, decimals=1), None),
    (lambda t, x, y: (x * 300).round(decimals=-2), None),
    (lambda t, x, y: t.roll(x, -3), None),
    (lambda t, x, y: t.repeat_interleave(x, 2), None),
    (lambda t, x, y: t.repeat_interleave(x, t.tensor([2, 0, 1]), dim=0), None),
    (lambda t, x, y: x.repeat_interleave(t.tensor([2])), None),
    (lambda t, x, y: x.take_along_dim(t.tensor([[3, 0], [11, 5]])), None),
    (lambda t, x, y: t.threshold(t.tensor([3, -2]), 1, 7), None),
    (lambda t, x, y: t.square(x > 0), None),
    (lambda t, x, y: t.sign(x > 0), None),
    (lambda t, x, y: t.logsumexp(t.tensor([[1, 2], [3, 5]]), 1), None),
    (lambda t, x, y: t.equal(t.tensor([1, 2]), t.tensor([1.0, 2.0])), None),
    (lambda t, x, y: t.bucketize(x, t.tensor([-1, 0, 1])), None),
    (lambda t, x, y: t.searchsorted(t.tensor([0.5, 1.5]), t.tensor([1, 2])), None),
]
COUNT = 20_000
RANDOM: list[tuple[Program, Program | None]] = [
    (lambda t, g, x: t.rand(COUNT, generator=g), None),
    (lambda t, g, x: t.randn(4, COUNT // 4, dtype=t.float64, generator=g), None),
    (lambda t, g, x: t.randint(-3, 5, (COUNT,), generator=g), None),
    (lambda t, g, x: t.randint(7, (COUNT,), generator=g), None),
    (lambda t, g, x: t.randperm(COUNT, generator=g), None),
    (lambda t, g, x: t.rand_like(x), None),
    (lambda t, g, x: t.randn_like(x), None),
    (lambda t, g, x: t.bernoulli(x * 0.3, generator=g), None),
    (lambda t, g, x: t.bernoulli(x, 0.3, generator=g), None),
    (lambda t, g, x: x.bernoulli(p=0.6, generator=g), None),
    (lambda t, g, x: x.bernoulli_(0.3, generator=g), None),
    (lambda t, g, x: x.reshape(2, -1).bernoulli_(t.full((COUNT // 2,), 0.3), generator=g), None),
    (lambda t, g, x: x.uniform_(-1, 3, generator=g), None),
    (lambda t, g, x: x.uniform_(-1, to=2, generator=g), None),
    (lambda t, g, x: x.normal_(1, 2, generator=g), None),
    (lambda t, g, x: t.dropout(x, 0.25, train=True), None),
]


def rotated(t: Any, x: Any, angles: Any) -> Any:
    """Rotates each pair of an element in the first half of the last dimension and one in the second."""
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return t.cat([first * cos - second * sin, second * cos + first * sin], -1)


def operands(t: Any) -> tuple[Any, Any]:
    x = t.tensor([[0.5, -1.25, 2.0, 0.75], [-0.3, 1.7, -2.1, 0.1], [1.1, 0.2, -0.6, 1.9]], requires_grad=True)
    y = t.tensor([[1.5, 0.25, -1.0, 0.5], [0.3, -0.7, 1.1, 2.1], [-1.9, 0.9, 0.4, 1.3]], requires_grad=True)
    return x, y


def described(tensor: Any) -> tuple[str, tuple[int, ...]]:
    """Returns a tensor's dtype and sizes, of either library."""
    return str(tensor.dtype).rpartition(".")[2], tuple(tensor.shape)


def results_and_gradients(t: Any, program: Program) -> list[Any]:
    """Returns the results of a program, and the gradients of its operands."""
    x, y = operands(t)
    results = program(t, x, y)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    for result in results:
        if not isinstance(result, bool) and result.requires_grad:
            (result * result).sum().backward(retain_graph=True)
    return [*results, x.grad, y.grad]


@pytest.mark.filterwarnings("ignore:torch.meshgrid")
@pytest.mark.parametrize("index", range(len(DIRECT)))
def test_operations_without_a_golden_do_as_in_pytorch(index: int) -> None:
    torch = pytest.importorskip("torch")
    program, other = DIRECT[index]
    found, expected = results_and_gradients(tenure, program), results_and_gradients(torch, other or program)
    for ours, theirs in zip(found, expected, strict=True):
        if theirs is None or isinstance(theirs, bool):
            assert ours is theirs
        else:
            assert described(ours) == described(theirs)
            assert near(ours, tenure.tensor(theirs.tolist(), dtype=ours.dtype)), f"{ours} is not PyTorch's {theirs}"


@pytest.mark.parametrize("index", range(len(RANDOM)))
def test_random_numbers_are_distributed_as_in_pytorch(index: int) -> None:
    torch = pytest.importorskip("torch")
    program, other = RANDOM[index]

    def drawn(t: Any, program: Program) -> Any:
        t.manual_seed(7)
        return program(t, t.Generator().manual_seed(7), t.ones(COUNT))

    ours, theirs = drawn(tenure, program), drawn(torch, other or program)
    assert described(ours) == described(theirs)
    assert ours.tolist() == drawn(tenure, program).tolist(), "a seed gives the same numbers"
    for measure in ("mean", "std"):
        found = getattr(ours.to(tenure.float64), measure)().item()
        expected = getattr(theirs.to(torch.float64), measure)().item()
        assert found == pytest.approx(expected, rel=0.03, abs=0.03)


def test_every_operation_of_the_table_is_compared_with_pytorch() -> None:
    ones = tenure.ones(COUNT)
    calls = [
        *CALLS.of(lambda: [program(Standin("tenure", tenure), *operands(tenure)) for program, _ in DIRECT]),
        *CALLS.of(lambda: [program(Standin("tenure", tenure), None, ones.clone()) for program, _ in RANDOM]),
    ]
    rows = covered() | {row_of(call) for call in calls}
    missing = [
        f"{row[0]}({', '.join(name for name, _, _ in row[2])})" for index, row in enumerate(TABLE) if index not in rows
    ]
    assert not missing, "a golden, or a program in DIRECT, must run these"
