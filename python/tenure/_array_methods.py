"""Methods of tensors that the Python array API standard asks for, and that no kernel computes."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from tenure._native import Tensor, device

#: The standard's versions that `tenure.array_api` meets: each contains the ones before.
_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")


def __array_namespace__(self: Tensor, /, *, api_version: str | None = None) -> ModuleType:
    """Returns `tenure.array_api`, the functions of the Python array API standard.

    Parameters
    ----------
    api_version : str, default None
        The version of the standard that the caller needs, such as ``"2025.12"``.
    """
    if api_version is not None and api_version not in _VERSIONS:
        raise ValueError(f"unknown version {api_version!r} of the array API: Tenure has {', '.join(_VERSIONS)}")
    return importlib.import_module("tenure.array_api")


def __complex__(self: Tensor, /) -> complex:
    """Returns the element of a tensor of one element as a complex number."""
    return complex(self.item())


def to_device(self: Tensor, device: device | str, /, *, stream: Any = None) -> Tensor:
    """Copies the tensor to a device; returns the tensor itself if it is there.

    Parameters
    ----------
    device : device or str
    stream : None
        The copy always runs on the thread's current stream.
    """
    if stream is not None:
        raise ValueError("to_device copies on the current stream: use tenure.cuda.stream for another one")
    return self.to(device)


for _method in (__array_namespace__, __complex__, to_device):
    setattr(Tensor, _method.__name__, _method)
