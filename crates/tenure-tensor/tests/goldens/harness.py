"""Golden files: what PyTorch computes, forward and backward, for `tests/common/goldens.rs` to compare with.

A family is a script of cases, which calls `write`. `python harness.py` runs all of them.
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
LIMIT_BYTES = 300_000


@dataclass
class Input:
    """Random values from `low` to `high`. Of the sample's dtype, unless it has its own."""

    sizes: Sequence[int]
    low: float = -2.0
    high: float = 2.0
    dtype: torch.dtype | None = None
    grad: bool = True
    # No two elements are nearer than the range over their number: for operations that compare them.
    distinct: bool = False

    def values(self, sizes: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
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
    """A function of tensors, and what it is called with.

    `empty` and `scalar` are the sizes of the inputs where one has no element, and where they have no dimension; without
    them these variants are left out. `second` says whether second derivatives are checked too.
    """

    name: str
    function: Callable
    inputs: Sequence[Input]
    empty: Sequence[Sequence[int]] | None = None
    scalar: Sequence[Sequence[int]] | None = None
    variants: Sequence[str] = VARIANTS
    dtypes: Sequence[str] = ("f32", "bf16")
    tolerance: float | None = None
    gradcheck: bool = True
    second: bool = True


def laid_out(variant: str, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The values in this layout: the elements of the storage, and the view. An expanded view repeats its first."""
    rank = values.dim()
    if variant == "transposed" and rank >= 2:
        base = values.transpose(-1, -2).contiguous()
        return base, base.transpose(-1, -2)
    if variant == "sliced":
        # Every other element of the last dimension, and not the first row.
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
    """All elements of a dtype, one after the other."""

    def __init__(self) -> None:
        self.data: dict[str, bytearray] = {}
        self.places: dict[tuple[str, bytes], int] = {}
        self.samples: list[dict] = []

    def put(self, base: torch.Tensor) -> dict:
        # Of one element, what counts as contiguous may have any stride: cloned, it is 1.
        flat = base.reshape(-1).clone(memory_format=torch.contiguous_format)
        name, raw = NAMES[base.dtype], flat.view(torch.uint8).numpy().tobytes()
        data = self.data.setdefault(name, bytearray())
        if (name, raw) not in self.places:
            self.places[name, raw] = len(data) // base.element_size()
            data += raw
        return {"dtype": name, "at": self.places[name, raw]}

    def tensor(self, value: torch.Tensor) -> dict:
        return {**self.put(value.detach()), "sizes": list(value.shape)}

    def view(self, base: torch.Tensor, view: torch.Tensor) -> dict:
        layout = {"sizes": list(view.shape), "strides": list(view.stride()), "offset": view.storage_offset()}
        return {**self.put(base), "elements": base.numel(), **layout}

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
        print(f"{path.name}: {len(self.samples)} samples, {len(content)} bytes")


def layouts(case: Case) -> dict[str, list[tuple[str, Sequence[int]]]]:
    """The layout and sizes of each input, by the name of the sample."""
    found = {name: [(name, spec.sizes) for spec in case.inputs] for name in case.variants}
    if len(case.inputs) > 1 and len(case.variants) > 1:
        turns = itertools.cycle(case.variants[1:])
        found["mixed"] = [(next(turns), spec.sizes) for spec in case.inputs]
    if case.empty is not None:
        found["zero-size"] = [("contiguous", sizes) for sizes in case.empty]
    if case.scalar is not None:
        found["0-d"] = [("sliced", sizes) for sizes in case.scalar]
    return found


def sample(file: File, case: Case, name: str, layout: list[tuple[str, Sequence[int]]], dtype: str) -> None:
    inputs, places = [], []
    for index, (spec, (variant, sizes)) in enumerate(zip(case.inputs, layout, strict=True)):
        values = spec.values(sizes, spec.dtype or DTYPES[dtype], zlib.crc32(f"{case.name} {index}".encode()))
        base, view = laid_out(variant, values)
        needs_grad = spec.grad and view.is_floating_point()
        places.append({**file.view(base, view), "grad": needs_grad})
        inputs.append(view.detach().requires_grad_(needs_grad))
    outputs = case.function(*inputs)
    outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    differentiable = [output for output in outputs if output.requires_grad]
    generator = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))
    upstream = [(torch.rand(out.shape, generator=generator) * 2 - 1).to(out.dtype) for out in differentiable]
    grads = iter(())
    if leaves and differentiable:
        found = torch.autograd.grad(differentiable, leaves, upstream, allow_unused=True)
        grads = iter(torch.zeros_like(x) if grad is None else grad for x, grad in zip(leaves, found, strict=True))
    waiting = iter(upstream)
    file.samples.append(
        {
            "case": case.name,
            "variant": name,
            "dtype": dtype,
            "tolerance": case.tolerance or {"f64": 1e-9, "f32": 1e-5, "f16": 1e-3, "bf16": 1e-2}[dtype],
            "gradcheck": case.gradcheck and dtype == "f32" and bool(differentiable),
            "second": case.second,
            "inputs": places,
            "outputs": [file.tensor(output) for output in outputs],
            "upstream": [file.tensor(next(waiting)) if output.requires_grad else None for output in outputs],
            "grads": [file.tensor(next(grads)) if tensor.requires_grad else None for tensor in inputs],
        }
    )


def write(script: str, cases: Sequence[Case]) -> None:
    """Writes the golden file of the family whose script this is."""
    torch.set_num_threads(1)
    assert len({case.name for case in cases}) == len(cases), "two cases have one name"
    file = File()
    for case in cases:
        for dtype in case.dtypes:
            for name, layout in layouts(case).items():
                sample(file, case, name, layout, dtype)
    file.write(pathlib.Path(script).with_suffix(".safetensors"))


if __name__ == "__main__":
    for family in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        if family.name != "harness.py":
            runpy.run_path(str(family))
