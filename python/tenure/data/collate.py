"""Batches made of samples."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tenure._native import Tensor, asarray, float64, tensor
from tenure._operations import stack


def _is_array(element: object) -> bool:
    """Returns whether an object is a NumPy array or scalar, and imports nothing."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(element, (numpy.ndarray, numpy.generic))


def _has_numbers(element: Any) -> bool:
    return element.dtype.kind in "biuf"


def _rebuilt_mapping(like: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    try:
        return type(like)(values)  # type: ignore[call-arg]
    except TypeError:
        # Mappings that are not made of a mapping.
        return values


def _rebuilt_sequence(like: Sequence[Any], values: list[Any]) -> Any:
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*values)
    if isinstance(like, tuple):
        return values
    try:
        return type(like)(values)  # type: ignore[call-arg]
    except TypeError:
        # Sequences that are not made of a list, such as `range`.
        return values


def default_convert(data: Any) -> Any:
    """Returns a sample with its NumPy arrays as tensors, on the same memory; the loader's default without batches."""
    if isinstance(data, Tensor):
        return data
    if _is_array(data):
        return asarray(data) if _has_numbers(data) else data
    if isinstance(data, Mapping):
        return _rebuilt_mapping(data, {key: default_convert(value) for key, value in data.items()})
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _rebuilt_sequence(data, [default_convert(value) for value in data])
    return data


def _collated_array(batch: Sequence[Any]) -> Tensor:
    if not _has_numbers(batch[0]):
        raise TypeError(f"default_collate takes arrays of numbers, not of {batch[0].dtype}: pass collate_fn")
    if batch[0].shape == ():
        return asarray(sys.modules["numpy"].asarray(batch))
    return stack([asarray(element) for element in batch], 0)


def default_collate(batch: Any) -> Any:
    """Returns a batch of samples: tensors are stacked, numbers become a tensor, and structures keep their form.

    Parameters
    ----------
    batch : sequence
        Samples of the same form: tensors, NumPy arrays, numbers, strings, mappings and sequences of these.

    Examples
    --------
    >>> from tenure.data import default_collate
    >>> default_collate([{"x": 1.5, "name": "a"}, {"x": 2.5, "name": "b"}])
    {'x': tensor([1.5000, 2.5000], dtype=tenure.float64), 'name': ['a', 'b']}
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return stack(list(batch), 0)
    if _is_array(first):
        return _collated_array(batch)
    if isinstance(first, float):
        return tensor(list(batch), dtype=float64)
    if isinstance(first, int):
        return tensor(list(batch))
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return _rebuilt_mapping(first, {key: default_collate([sample[key] for sample in batch]) for key in first})
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise RuntimeError("the sequences of a batch must have the same length: pass collate_fn to pad them")
        return _rebuilt_sequence(first, [default_collate(samples) for samples in zip(*batch, strict=True)])
    raise TypeError(
        f"default_collate takes tensors, arrays, numbers, strings, mappings and sequences, not "
        f"{type(first).__name__}: pass collate_fn"
    )
