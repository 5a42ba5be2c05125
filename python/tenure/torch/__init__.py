"""Stock PyTorch on Tenure's allocator.

One line, before the program first uses CUDA, puts Tenure's memory under an unpatched PyTorch:

>>> import tenure.torch
>>> tenure.torch.install()  # doctest: +SKIP

PyTorch is imported when something here is first used, not with this module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.torch.installation import InstallError, install
    from tenure.torch.operations import tag_operations
    from tenure.torch.purpose import tagged
    from tenure.torch.reporting import report
    from tenure.torch.state import Status, status
    from tenure.torch.tags import Tagging, tag

__all__ = [
    "InstallError",
    "Status",
    "Tagging",
    "install",
    "report",
    "status",
    "tag",
    "tag_operations",
    "tagged",
]

_MODULES = {
    "InstallError": "installation",
    "Status": "state",
    "Tagging": "tags",
    "install": "installation",
    "report": "reporting",
    "status": "state",
    "tag": "tags",
    "tag_operations": "operations",
    "tagged": "purpose",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
