"""The contents of a module's image: the bytes of its parameters and buffers, each once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from tenure import Error

__all__ = ["Contents", "Layer", "Shape", "contents_of"]

#: The place of a tensor's bytes: a file and an offset, or an address.
Place: TypeAlias = "tuple[str, int] | int"

#: The alignment in bytes of spans in their storage: one that suits elements of any type.
_ALIGNMENT = 16

#: The data types by their names in safetensors.
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}


@dataclass(frozen=True)
class Shape:
    """The layout of a tensor in an entry of the image."""

    entry: int
    #: The offset in bytes from the entry's first byte.
    offset: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    is_parameter: bool
    #: Attributes that the program has set on the tensor.
    attributes: dict[str, Any]

    def __call__(self, image: Tensor, begin: int) -> Tensor:
        """Returns the tensor in the bytes of an image in which its entry begins at `begin`."""
        first = begin + self.offset
        reach = _reach(self.size, self.stride) * self.dtype.itemsize
        tensor = image[first : first + reach].view(self.dtype).as_strided(self.size, self.stride)
        made = nn.Parameter(tensor, requires_grad=False) if self.is_parameter else tensor
        made.__dict__.update(self.attributes)
        return made


@dataclass(frozen=True)
class Layer:
    """A module with tensors of its own. Maps their names in the module to numbers of shapes; None for no tensor."""

    module: nn.Module
    path: str
    #: The shapes of its parameters, and of its buffers.
    tensors: tuple[dict[str, int | None], dict[str, int | None]]

    def numbers(self) -> list[int]:
        """Returns the numbers of all its shapes."""
        return [number for names in self.tensors for number in names.values() if number is not None]


@dataclass
class Contents:
    """The contents of a module's image."""

    layers: list[Layer] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    #: The name of each entry, its size in bytes, and the place of its bytes.
    entries: list[tuple[str, int, Place]] = field(default_factory=list)
    #: Tensors that own the bytes at the entries' addresses.
    tensors: list[Tensor] = field(default_factory=list)


@dataclass
class _Found:
    """A tensor of a module, with all its names."""

    tensor: Tensor
    names: list[str]
    #: Whether it is part of the module's state, so that files have it.
    is_persistent: bool
    number: int


def contents_of(name: str, module: nn.Module, weights: str | PathLike[str] | None) -> Contents:
    """Returns a module's contents, with its own values or those in a safetensors file or folder."""
    contents = Contents()
    found = _find(name, module, contents)
    filed = dict(_read_headers(Path(weights))) if weights is not None else {}
    shapes: dict[int, Shape] = {}
    by_storage: dict[int, list[_Found]] = {}
    for one in found:
        at = next((filed[path] for path in one.names if path in filed), None)
        if at is not None:
            shapes[one.number] = _of_file(name, one, at, contents)
        elif filed and one.is_persistent:
            raise Error(f"{name}: {weights} has no tensor {one.names[0]!r}: is it of another model?")
        elif one.tensor.is_meta:
            raise Error(f"{name}: {one.names[0]!r} has no values: give weights=, or a module that is not on meta")
        else:
            by_storage.setdefault(one.tensor.untyped_storage()._cdata, []).append(one)
    for together in by_storage.values():
        shapes.update(_of_storage(together, contents))
    contents.shapes = [shapes[number] for number in range(len(found))]
    return contents


def _find(name: str, module: nn.Module, contents: Contents) -> list[_Found]:
    """Returns all tensors of a module, each once. Adds its layers to `contents`."""
    found: dict[int, _Found] = {}

    def number_of(tensor: Tensor | None, path: str, is_persistent: bool) -> int | None:
        if tensor is None:
            return None
        is_plain = type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and tensor.layout is torch.strided
        if not is_plain or tensor.is_quantized:
            raise Error(
                f"{name}: {path!r} is {_kind(tensor)}, of which Tenure does not know the bytes: convert it first"
            )
        if tensor.is_conj() or tensor.is_neg():
            raise Error(
                f"{name}: {path!r} has other values than its bytes: have the module keep its "
                "resolve_conj().resolve_neg() instead"
            )
        if tensor.device.type not in ("cpu", "meta"):
            raise Error(f"{name}: {path!r} is on {tensor.device}: give a module that is on the CPU or on meta")
        one = found.setdefault(id(tensor), _Found(tensor, [], False, len(found)))
        one.names.append(path)
        one.is_persistent |= is_persistent
        return one.number

    for prefix, child in module.named_modules():
        if isinstance(child, torch.jit.ScriptModule):
            raise Error(f"{name}: {prefix or 'it'!r} is compiled by TorchScript, which takes weights past Tenure")
        dot = prefix and prefix + "."
        buffers = {
            key: number_of(buffer, dot + key, key not in child._non_persistent_buffers_set)
            for key, buffer in child._buffers.items()
        }
        parameters = {key: number_of(parameter, dot + key, True) for key, parameter in child._parameters.items()}
        layer = Layer(child, prefix, (parameters, buffers))
        if layer.numbers():
            contents.layers.append(layer)
    for prefix, child in module.named_modules():
        for key, value in vars(child).items():
            if key in ("_parameters", "_buffers") or isinstance(child, nn.RNNBase) and key == "_flat_weights":
                continue
            held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
            if any(id(one) in found for one in held):
                raise Error(
                    f"{name}: {prefix or 'the module'!r} has one of its tensors in the attribute {key!r} too, where "
                    "Tenure would not see it used: register it once"
                )
    return list(found.values())


def _kind(tensor: Tensor) -> str:
    if tensor.is_quantized:
        return "quantized"
    return type(tensor).__name__ if tensor.layout is torch.strided else str(tensor.layout)


def _reach(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Returns the number of elements from a tensor's first to its last in memory."""
    if 0 in size:
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))


def _of_storage(together: list[_Found], contents: Contents) -> Iterator[tuple[int, Shape]]:
    """Adds the tensors of one storage. Overlapping tensors share an entry."""

    def span(one: _Found) -> tuple[int, int]:
        tensor = one.tensor
        begin = tensor.storage_offset() * tensor.itemsize
        reach = _reach(tuple(tensor.shape), tensor.stride()) * tensor.itemsize
        return begin // _ALIGNMENT * _ALIGNMENT, begin + reach

    first, end = 0, -1
    for one in sorted(together, key=span):
        begin, until = span(one)
        tensor = one.tensor
        start = tensor.untyped_storage().data_ptr()
        if begin >= end:
            first, end = begin, until
            contents.entries.append((one.names[0], until - begin, start + begin))
            contents.tensors.append(tensor)
        elif until > end:
            end = until
            named, *_ = contents.entries[-1]
            contents.entries[-1] = (named, end - first, start + first)
        offset = tensor.storage_offset() * tensor.itemsize - first
        size, is_parameter = tuple(tensor.shape), isinstance(tensor, nn.Parameter)
        entry, attributes = len(contents.entries) - 1, vars(tensor).copy()
        yield one.number, Shape(entry, offset, tensor.dtype, size, tensor.stride(), is_parameter, attributes)


def _of_file(name: str, one: _Found, at: tuple[str, int, str, tuple[int, ...]], contents: Contents) -> Shape:
    """Adds a tensor of a file, as it lies there."""
    path, begin, kind, size = at
    tensor = one.tensor
    if _DTYPES.get(kind) != tensor.dtype or size != tuple(tensor.shape):
        raise Error(
            f"{name}: {one.names[0]!r} is {tensor.dtype} of {tuple(tensor.shape)}, and in {path} {kind} of {size}: "
            "is it of another model, or of another type?"
        )
    if not tensor.is_contiguous():
        raise Error(
            f"{name}: {one.names[0]!r} lies in another order than in {path}, such as channels_last: load the file into "
            "the module, and add that without weights"
        )
    contents.entries.append((one.names[0], tensor.numel() * tensor.itemsize, (path, begin)))
    steps, step = [], 1
    for length in reversed(size):
        steps.append(step)
        step *= max(length, 1)
    is_parameter = isinstance(tensor, nn.Parameter)
    return Shape(
        len(contents.entries) - 1, 0, tensor.dtype, size, tuple(reversed(steps)), is_parameter, vars(tensor).copy()
    )


def _read_headers(path: Path) -> Iterator[tuple[str, tuple[str, int, str, tuple[int, ...]]]]:
    """Yields the name of each tensor in a safetensors file or folder, with its file, offset, type and size."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise Error(f"{path}: there is no file *.safetensors in this folder")
    for file in files:
        try:
            yield from _read_header(file)
        except OSError as error:
            raise Error(f"{file}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Error(f"{file}: it is not a safetensors file, or it is damaged ({error}): get it again") from error


def _read_header(file: Path) -> Iterator[tuple[str, tuple[str, int, str, tuple[int, ...]]]]:
    if file.exists() and not file.is_file():
        raise ValueError("it is not a regular file")
    bytes_there = file.stat().st_size
    with open(file, "rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > bytes_there - 8:
            raise ValueError(f"a header of {length} bytes in a file of {bytes_there}")
        header: dict[str, dict[str, Any]] = json.loads(opened.read(length))
    header.pop("__metadata__", None)
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        size, kind = tuple(tensor["shape"]), tensor["dtype"]
        count = 1
        for one in size:
            count *= one
        if not 0 <= begin <= end <= bytes_there - 8 - length:
            raise ValueError(f"{name!r} lies outside of it")
        if kind in _DTYPES and count * _DTYPES[kind].itemsize != end - begin:
            raise ValueError(f"{name!r} has {end - begin} bytes")
        yield name, (os.fspath(file), 8 + length + begin, kind, size)
