"""What the namespace can do, for programs that ask it."""

from __future__ import annotations

import tenure
from tenure import _native
from tenure._native import device, dtype
from tenure.array_api._data_types import DTYPES, isdtype

__all__ = ["__array_namespace_info__"]


class NamespaceInfo:
    """Capabilities, devices and dtypes: what `__array_namespace_info__` returns."""

    def capabilities(self) -> dict[str, bool | int | None]:
        """Returns the optional capabilities: all, and arrays of any number of axes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> device:
        """Returns the device of new arrays."""
        return tenure.device("cpu")

    def default_dtypes(self, *, device: device | str | None = None) -> dict[str, dtype]:
        """Returns the default dtype of each kind. There is none for complex numbers."""
        return {"real floating": tenure.get_default_dtype(), "integral": tenure.int64, "indexing": tenure.int64}

    def devices(self) -> tuple[device, ...]:
        """Returns the devices of this process."""
        gpus = (tenure.device("cuda", index) for index in range(_native.device_count()))
        return (tenure.device("cpu"), *gpus)

    def dtypes(
        self, *, device: device | str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, dtype]:
        """Returns the standard's dtypes that Tenure has, of a kind if one is given, by name."""
        return {name: dtype for name, dtype in DTYPES.items() if kind is None or isdtype(dtype, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """Returns functions that tell what the namespace can do."""
    return NamespaceInfo()
