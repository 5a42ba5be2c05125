"""Tensors in files of the safetensors format: a header in JSON, then the tensors' bytes.

Files are mapped: a tensor's bytes are read when they are used, and writes to it do not change the file. A file is
replaced at once when it is complete. The format: <https://github.com/huggingface/safetensors>.

Examples
--------
>>> import tenure
>>> from tenure.safetensors import load_file, save_file
>>> save_file({"weight": tenure.ones(2)}, "/tmp/example.safetensors")
>>> load_file("/tmp/example.safetensors")
{'weight': tensor([1., 1.])}
"""

from __future__ import annotations

import json
import math
import mmap
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from tenure._buffers import on_buffer
from tenure._errors import Error
from tenure._native import Tensor, device, dtype, dtype_named
from tenure._structure import KEY, flattened, restored

__all__ = ["load_file", "safe_open", "save_file"]

_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}
_CODES = {name: code for code, name in _NAMES.items()}
#: The header begins after its length, and the format limits it to this many bytes.
_PREFIX = 8
_LARGEST_HEADER = 100_000_000


def _header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> tuple[bytes, list[str]]:
    """Returns the header with its length, and the tensors' names in the order of their bytes."""
    described: dict[str, Any] = {}
    if metadata is not None:
        if not all(isinstance(part, str) for pair in metadata.items() for part in pair):
            raise TypeError("the metadata of safetensors has strings only, as keys and as values")
        described["__metadata__"] = dict(metadata)
    # As the reference does: large elements first, so that all are aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    end = 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.nbytes
        described[name] = {
            "dtype": _CODES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _LARGEST_HEADER:
        raise ValueError(f"the header has {len(text)} bytes, and the format allows {_LARGEST_HEADER}")
    return len(text).to_bytes(_PREFIX, "little") + text, names


def save_file(
    tensors: Mapping[str, Tensor], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes tensors to a file, which appears, or replaces another, when it is complete and on the disk.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        The format knows no views: tensors that share memory are written once each.
    filename : str or PathLike
    metadata : mapping of str to str, default None
    """
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise TypeError(f"a file has tensors by name, not {type(tensor).__name__} by {name!r}")
        if name == "__metadata__":
            raise ValueError("__metadata__ cannot be a tensor's name: pass metadata")
    header, names = _header(tensors, metadata)
    size = len(header) + sum(tensor.nbytes for tensor in tensors.values())
    target = Path(os.path.realpath(filename))
    unfinished = target.with_name(f".unfinished-{uuid4().hex}")
    try:
        with unfinished.open("xb+") as stream:
            # Reserves the blocks: a full disk is an error here, and not a signal where the mapping is written.
            os.posix_fallocate(stream.fileno(), 0, size)
            view = memoryview(mmap.mmap(stream.fileno(), size))
            view[: len(header)] = header
            begin = len(header)
            for name in names:
                source = tensors[name].detach()
                on_buffer(view, source.dtype, tuple(source.shape), begin).copy_(source)
                begin += source.nbytes
            os.fsync(stream.fileno())
        if target.is_file():
            shutil.copymode(target, unfinished)
        unfinished.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(filename)) from error
    finally:
        unfinished.unlink(missing_ok=True)


class _Entry:
    """A tensor's description in a header, checked."""

    def __init__(self, name: str, described: Any) -> None:
        if not isinstance(described, dict) or set(described) != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"tensor {name!r} has no dtype, shape and data_offsets")
        code, shape, offsets = described["dtype"], described["shape"], described["data_offsets"]
        if not isinstance(code, str) or code not in _NAMES:
            raise ValueError(f"tensor {name!r} has the dtype {code!r}, which Tenure does not have")
        if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
            raise ValueError(f"tensor {name!r} has a shape or offsets that are not numbers of elements and bytes")
        self.dtype: dtype = dtype_named(_NAMES[code])
        self.shape: tuple[int, ...] = tuple(shape)
        self.begin, self.end = offsets
        needed = math.prod(self.shape) * self.dtype.itemsize
        if self.end - self.begin != needed:
            raise ValueError(f"tensor {name!r} needs {needed} bytes, and has {self.end - self.begin}")


def _are_counts(numbers: object) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 2**63 for number in numbers)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("the header has a name twice")
    return found


def _parsed(view: memoryview) -> tuple[dict[str, _Entry], dict[str, str] | None, int]:
    """Returns a file's tensors, its metadata, and where the tensors' bytes begin."""
    if len(view) < _PREFIX:
        raise ValueError(f"it has {len(view)} bytes, fewer than the length of a header")
    length = int.from_bytes(view[:_PREFIX], "little")
    if length > min(_LARGEST_HEADER, len(view) - _PREFIX):
        raise ValueError(f"its header would have {length} bytes, and {len(view) - _PREFIX} follow")
    try:
        described = json.loads(bytes(view[_PREFIX : _PREFIX + length]).decode(), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None
    if not isinstance(described, dict):
        raise ValueError("its header is not a JSON object")
    metadata = described.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise ValueError("its metadata are not strings by name")
    entries = {name: _Entry(name, value) for name, value in described.items()}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda pair: (pair[1].begin, pair[1].end)):
        if entry.begin != end:
            raise ValueError(f"tensor {name!r} begins at byte {entry.begin}, and the bytes before it end at {end}")
        end = entry.end
    if _PREFIX + length + end != len(view):
        raise ValueError(f"it has {len(view)} bytes, and its tensors end at byte {_PREFIX + length + end}")
    return entries, metadata, _PREFIX + length


class safe_open:
    """A file of tensors, which are read by name.

    Parameters
    ----------
    filename : str or PathLike
    framework : str, default "tenure"
        Accepted for programs that pass "pt". The tensors are Tenure's.
    device : device or str, default "cpu"

    Raises
    ------
    Error
        The file is damaged or cut off. The message says where.

    Examples
    --------
    >>> import tenure
    >>> from tenure.safetensors import safe_open, save_file
    >>> save_file({"weight": tenure.arange(6).reshape(2, 3)}, "/tmp/example.safetensors")
    >>> with safe_open("/tmp/example.safetensors") as file:
    ...     print(file.keys(), file.get_slice("weight")[:, 1:].tolist())
    ['weight'] [[1, 2], [4, 5]]
    """

    def __init__(
        self, filename: str | os.PathLike[str], framework: str = "tenure", device: device | str = "cpu"
    ) -> None:
        self._device = device
        with open(filename, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            # Private: writes to the tensors do not change the file.
            view = memoryview(mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_COPY) if size else b"")
        try:
            self._entries, self._metadata, self._begin = _parsed(view)
        except ValueError as error:
            raise Error(f"{os.fspath(filename)}: not a whole file of safetensors: {error}") from None
        self._view: memoryview | None = view

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Tensors that were read keep the mapping.
        self._view = None

    def keys(self) -> list[str]:
        """Returns the tensors' names, in the order of their bytes."""
        return sorted(self._entries, key=lambda name: (self._entries[name].begin, name))

    def metadata(self) -> dict[str, str] | None:
        """Returns the file's metadata."""
        return self._metadata

    def get_tensor(self, name: str) -> Tensor:
        """Returns a tensor, on the CPU without a copy."""
        return self._mapped(name).to(self._device)

    def get_slice(self, name: str) -> FileSlice:
        """Returns an object whose indexing reads a part of a tensor."""
        return FileSlice(self._mapped(name), self._device)

    def _mapped(self, name: str) -> Tensor:
        if self._view is None:
            raise ValueError("the file is closed")
        entry = self._entries.get(name)
        if entry is None:
            raise KeyError(f"the file has no tensor {name!r}: it has {', '.join(map(repr, self.keys())) or 'none'}")
        return on_buffer(self._view, entry.dtype, entry.shape, self._begin + entry.begin)


class FileSlice:
    """A tensor in a file. Indexing it reads the part alone."""

    def __init__(self, tensor: Tensor, device: device | str) -> None:
        self._tensor = tensor
        self._device = device

    def get_shape(self) -> list[int]:
        """Returns the tensor's sizes."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """Returns the format's name of the dtype, such as `F32`."""
        return _CODES[self._tensor.dtype.name]

    def __getitem__(self, index: Any) -> Tensor:
        return self._tensor[index].to(self._device)


def load_file(filename: str | os.PathLike[str], device: device | str = "cpu") -> dict[str, Tensor]:
    """Returns the tensors of a file by name. On the CPU, they are on the mapped file, without a copy.

    Parameters
    ----------
    filename : str or PathLike
    device : device or str, default "cpu"

    Raises
    ------
    Error
        The file is damaged or cut off. The message says where.
    """
    with safe_open(filename, device=device) as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def save(obj: Any, f: str | os.PathLike[str]) -> None:
    """Saves a value with tensors, such as the states of a model and of its optimizer, in the safetensors format.

    A value is a tensor, None, a boolean, an integer, a float, a string, or a list, tuple or dictionary of values, whose
    keys are strings and integers. Other mappings are saved as dictionaries. A dictionary of tensors by name is saved as
    `save_file` does. Otherwise a tensor has the name of its path, such as `optimizer.state.0.exp_avg`, and the file's
    metadata has the rest of the value as JSON by the name `tenure.structure`. All programs that read safetensors find
    the tensors. There is no pickle, so that no code runs when a file is loaded.

    Parameters
    ----------
    obj : value with tensors
    f : str or PathLike

    Raises
    ------
    TypeError
        The value has a part of another type. The message says where.

    Examples
    --------
    >>> import tenure
    >>> x = tenure.ones(2, requires_grad=True)
    >>> optimizer = tenure.optim.Adam([x])
    >>> tenure.save({"x": x, "optimizer": optimizer.state_dict(), "epoch": 3}, "/tmp/example.safetensors")
    >>> loaded = tenure.load("/tmp/example.safetensors")
    >>> loaded["epoch"], loaded["optimizer"]["param_groups"][0]["betas"]
    (3, (0.9, 0.999))
    """
    if isinstance(obj, Mapping) and all(isinstance(key, str) and isinstance(obj[key], Tensor) for key in obj):
        save_file(obj, f)
    else:
        tensors, text = flattened(obj)
        save_file(tensors, f, {KEY: text})


def load(f: str | os.PathLike[str], map_location: device | str | None = None) -> Any:
    """Loads a value that `save` saved, or the tensors of any file of safetensors by name.

    On the CPU, the tensors are on the mapped file, without a copy.

    Parameters
    ----------
    f : str or PathLike
    map_location : device or str, default None
        The device of the tensors; by default the CPU.

    Raises
    ------
    Error
        The file is damaged or cut off. The message says where.
    """
    with safe_open(f, device="cpu" if map_location is None else map_location) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        text = (file.metadata() or {}).get(KEY)
    if text is None:
        return tensors
    try:
        return restored(text, tensors)
    except ValueError as error:
        raise Error(f"{os.fspath(f)}: {error}") from None
