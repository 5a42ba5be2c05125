"""Writer of golden files: PyTorch's results, forward and backward, which `harness.rs` compares with.

A family is a script that lists cases and calls `write`. `python harness.py` runs all of them.
"""

import itertools
import json
import pathlib
import runpy
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8,
    "bool": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LIMIT_BYTES = 400_000
# The distance that a result may have from the expected one: see `is_near`.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2.5e-3, torch.bfloat16: 1e-2}
# These dtypes have samples in every layout; the others in one.
EVERY_LAYOUT = ("f32", "bf16")


@dataclass
class Input:
    """A tensor of random values from `low` to `high`, or of given values. Without a `dtype` it has the sample's."""

    sizes: Sequence[int]
    low: float = -2.0
    high: float = 2.0
    dtype: torch.dtype | None = None
    grad: bool = True
    # No two elements are nearer than the range over their number: for operations that compare them.
    distinct: bool = False
    given: Sequence | None = None

    def values(self, sizes: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
        if self.given is not None:
            return torch.tensor(self.given, dtype=dtype).reshape(sizes)
        generator = torch.Generator().manual_seed(seed)
        count = max(1, int(torch.Size(sizes).numel()))
        if self.distinct:
            unit = (torch.randperm(count, generator=generator) + 0.5) / count
        else:
            unit = torch.rand(count, generator=generator)
        values = self.low + (self.high - self.low) * unit
        if dtype == torch.bool:
            return (unit > 0.5)[: torch.Size(sizes).numel()].reshape(sizes)
        if not dtype.is_floating_point:
            values = values.floor()
        return values[: torch.Size(sizes).numel()].reshape(sizes).to(dtype)


VARIANTS = ("contiguous", "transposed", "sliced", "expanded")


@dataclass
class Case:
    """A function of tensors, and its inputs.

    `exact` is the same function for float64, for functions of PyTorch that have constants of float32.
    `empty` and `scalar` are the sizes of inputs of which one has no elements, and of inputs without dimensions; if they
    are missing, these variants are left out. `second` says whether second derivatives are checked too.
    """

    name: str
    function: Callable
    inputs: Sequence[Input]
    empty: Sequence[Sequence[int]] | None = None
    scalar: Sequence[Sequence[int]] | None = None
    variants: Sequence[str] = VARIANTS
    dtypes: Sequence[str] = ("f32", "bf16", "f16", "f64")
    gradcheck: bool = True
    second: bool = True
    exact: Callable | None = None

    def __post_init__(self) -> None:
        if all(spec.dtype is not None for spec in self.inputs):
            self.dtypes = ("f32",)


def laid_out(variant: str, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the values in this layout: the storage's elements, and the view. An expanded view repeats the first."""
    rank = values.dim()
    if variant == "transposed" and rank >= 2:
        base = values.transpose(-1, -2).contiguous()
        return base, base.transpose(-1, -2)
    if variant == "sliced":
        # The view has every other element of the last dimension, and leaves out the first row.
        padded = [size + (dim == 0) for dim, size in enumerate(values.shape)] or [1]
        padded[-1] = 2 * padded[-1] + 1
        base = torch.full(padded, 9, dtype=values.dtype)
        view = base[..., 1::2]
        view = view[1:] if rank else view[0]
        view.copy_(values)
        return base, view
    if variant == "expanded" and rank >= 1 and values.numel():
        base = values[:1].contiguous()
        return base, base.expand(values.shape)
    base = values.contiguous()
    return base, base


class File:
    """A golden file: the samples, and for each dtype all elements, one after the other."""

    def __init__(self) -> None:
        self.data: dict[str, bytearray] = {}
        self.places: dict[tuple[str, bytes], int] = {}
        self.samples: list[dict] = []
        # The cases in which PyTorch is farther from the truth than the tolerance allows.
        self.corrected: dict[str, None] = {}

    def put(self, base: torch.Tensor) -> list:
        # A dimension of one element may have any stride in a contiguous tensor; in a clone it is 1.
        flat = base.reshape(-1).clone(memory_format=torch.contiguous_format)
        name, raw = NAMES[base.dtype], flat.view(torch.uint8).numpy().tobytes()
        data = self.data.setdefault(name, bytearray())
        if (name, raw) not in self.places:
            self.places[name, raw] = len(data) // base.element_size()
            data += raw
        return [name, self.places[name, raw]]

    def tensor(self, value: torch.Tensor) -> list:
        return [*self.put(value.detach()), list(value.shape)]

    def view(self, base: torch.Tensor, view: torch.Tensor) -> list:
        return [*self.put(base), base.numel(), list(view.shape), list(view.stride()), view.storage_offset()]

    def write(self, path: pathlib.Path) -> None:
        kinds = {"f64": "F64", "f32": "F32", "f16": "F16", "bf16": "BF16", "i64": "I64", "i32": "I32", "i16": "I16"}
        kinds |= {"i8": "I8", "u8": "U8", "bool": "BOOL"}
        samples = json.dumps(self.samples, separators=(",", ":"))
        header: dict = {"__metadata__": {"samples": samples, "torch": torch.__version__.split("+")[0]}}
        at = 0
        # Readers want wide elements first, so that all are aligned.
        order = sorted(self.data, key=lambda name: (-DTYPES[name].itemsize, name))
        for name in order:
            size = len(self.data[name])
            shape = [size // DTYPES[name].itemsize]
            header[name] = {"dtype": kinds[name], "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        content = struct.pack("<Q", len(text)) + text + b"".join(self.data[name] for name in order)
        assert len(content) <= LIMIT_BYTES, f"{path.name} has {len(content)} bytes: make it two families"
        path.write_bytes(content)
        print(f"{path.name}: {len(self.samples)} samples, {len(content)} bytes; truth in {', '.join(self.corrected) or 'none'}")


def layouts(case: Case) -> dict[str, list[tuple[str, Sequence[int]]]]:
    """Returns the layout and sizes of each input, by the name of the variant."""
    found = {name: [(name, spec.sizes) for spec in case.inputs] for name in case.variants}
    if len(case.inputs) > 1 and len(case.variants) > 1:
        turns = itertools.cycle(case.variants[1:])
        found["mixed"] = [(next(turns), spec.sizes) for spec in case.inputs]
    if case.empty is not None:
        found["zero-size"] = [("contiguous", sizes) for sizes in case.empty]
    if case.scalar is not None:
        found["0-d"] = [("sliced", sizes) for sizes in case.scalar]
    return found


Tensors = list[torch.Tensor | None]


def sample(file: File, case: Case, name: str, layout: list[tuple[str, Sequence[int]]], dtype: str) -> None:
    inputs, places = [], []
    for index, (spec, (variant, sizes)) in enumerate(zip(case.inputs, layout, strict=True)):
        values = spec.values(sizes, spec.dtype or DTYPES[dtype], zlib.crc32(f"{case.name} {index}".encode()))
        base, view = laid_out(variant, values)
        needs_grad = spec.grad and view.is_floating_point()
        places.append([*file.view(base, view), needs_grad])
        inputs.append(view.detach().requires_grad_(needs_grad))
    outputs, upstream, grads, truth = expected(case, inputs, dtype)
    if any(tensor is not None for tensor in truth):
        file.corrected[f"{case.name} ({dtype})"] = None
    file.samples.append(
        {
            "case": case.name,
            "variant": name,
            "dtype": dtype,
            "gradcheck": case.gradcheck and dtype == "f32" and any(grad is not None for grad in upstream),
            "second": case.second,
            "inputs": places,
            "outputs": [file.tensor(output) for output in outputs],
            "upstream": [grad if grad is None else file.tensor(grad) for grad in upstream],
            "grads": [grad if grad is None else file.tensor(grad) for grad in grads],
            "truth": [tensor if tensor is None else file.tensor(tensor) for tensor in truth],
        }
    )


def expected(case: Case, inputs: Tensors, dtype: str) -> tuple[Tensors, Tensors, Tensors, Tensors]:
    """Returns PyTorch's results, and the truth for each output and gradient that is not near it: PyTorch's result in
    float64 from the same numbers, rounded once. Near means within half of the tolerance for results.
    """
    exact, wide = case.exact or case.function, list(map(widened, inputs))
    try:
        outputs, upstream, grads = computed(case.name, case.function, inputs)
    except NotImplementedError:
        # PyTorch has no kernel for the dtype.
        groups = computed(case.name, exact, wide)
        outputs, upstream, grads = ([rounded(tensor, DTYPES[dtype]) for tensor in group] for group in groups)
    true_outputs, _, true_grads = computed(case.name, exact, wide, upstream)
    pairs = zip([*outputs, *grads], [*true_outputs, *true_grads], strict=True)
    truth = [None if found is None or is_near(found, true) else rounded(true, found.dtype) for found, true in pairs]
    return outputs, upstream, grads, truth


def computed(
    name: str, function: Callable, inputs: Tensors, given: Tensors | None = None
) -> tuple[Tensors, Tensors, Tensors]:
    """Returns the outputs, their gradients (given or random), and the gradients of the inputs."""
    outputs = function(*inputs)
    outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    upstream: Tensors = []
    for index, output in enumerate(outputs):
        if not output.requires_grad:
            upstream.append(None)
        elif given is None:
            upstream.append((torch.rand(output.shape, generator=generator) * 2 - 1).to(output.dtype))
        else:
            upstream.append(given[index].to(output.dtype))
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    roots = [output for output, grad in zip(outputs, upstream, strict=True) if grad is not None]
    found: dict[int, torch.Tensor | None] = {}
    if leaves and roots:
        grads = torch.autograd.grad(roots, leaves, [grad for grad in upstream if grad is not None], allow_unused=True)
        found = {id(leaf): grad for leaf, grad in zip(leaves, grads, strict=True)}
    return outputs, upstream, [found.get(id(tensor)) for tensor in inputs]


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor with floats converted to float64, in the same layout."""
    if not tensor.is_floating_point():
        return tensor
    base = tensor.detach().as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    wide = base.double().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return wide.requires_grad_(tensor.requires_grad)


def rounded(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return tensor if tensor is None or not tensor.is_floating_point() else tensor.detach().to(dtype)


def is_near(found: torch.Tensor, truth: torch.Tensor) -> bool:
    """Returns whether each element is within half of the tolerance of `harness.rs`, by the same rule."""
    if not found.numel() or not found.is_floating_point():
        return True
    tolerance = TOLERANCES[found.dtype] / 2
    truth, found = rounded(truth, found.dtype).double(), found.detach().double()
    finite = truth[truth.isfinite()].abs()
    usual = min(1.0, max(0.1, finite.mean().item() if finite.numel() else 0.0))
    close = (found - truth).abs() <= tolerance * truth.abs().clamp(min=usual)
    return bool((close | (found == truth) | (found.isnan() & truth.isnan())).all())


def write(script: str, cases: Sequence[Case]) -> None:
    """Writes the golden file of the family that `script` lists."""
    torch.set_num_threads(1)
    assert len({case.name for case in cases}) == len(cases), "two cases have one name"
    file = File()
    for case in cases:
        for dtype in case.dtypes:
            for name, layout in layouts(case).items():
                if dtype in EVERY_LAYOUT or name in (case.variants[0], "zero-size", "0-d"):
                    sample(file, case, name, layout, dtype)
    file.write(pathlib.Path(script).with_suffix(".safetensors"))


if __name__ == "__main__":
    for family in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        if family.name != "harness.py":
            runpy.run_path(str(family))
