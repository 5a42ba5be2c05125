"""Stock PyTorch on Tenure's allocator.

One line, before the program first uses CUDA, puts Tenure's memory under an unpatched PyTorch:

>>> import tenure.torch
>>> tenure.torch.install()  # doctest: +SKIP

PyTorch is imported at the first use of a name in this module, not with the module itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.torch.budgets import Budget, StepReport, budget
    from tenure.torch.cache import (
        SharedCacheSettings,
        allocate_shared_cache,
        attach_module,
        check_shared_parameters,
        clear_shared_cache,
        configure_shared_cache,
        insert_shared_cache_for_computation,
        insert_shared_cache_for_parameter,
        own_bytes,
        publish_shared_parameters,
        recv_shared_cache,
        send_shared_cache,
        share_module,
        shared_parameters,
    )
    from tenure.torch.installation import InstallError, install
    from tenure.torch.operations import tag_operations
    from tenure.torch.placement import Placement, Recording, record
    from tenure.torch.purpose import tagged
    from tenure.torch.reporting import report
    from tenure.torch.state import Status, status
    from tenure.torch.switched import SwitchedModel, SwitchedModelReport
    from tenure.torch.switcher import Switcher, SwitcherReport
    from tenure.torch.tags import Tagging, tag

__all__ = [
    "Budget",
    "InstallError",
    "Placement",
    "Recording",
    "SharedCacheSettings",
    "Status",
    "StepReport",
    "SwitchedModel",
    "SwitchedModelReport",
    "Switcher",
    "SwitcherReport",
    "Tagging",
    "allocate_shared_cache",
    "attach_module",
    "budget",
    "check_shared_parameters",
    "clear_shared_cache",
    "configure_shared_cache",
    "insert_shared_cache_for_computation",
    "insert_shared_cache_for_parameter",
    "install",
    "own_bytes",
    "publish_shared_parameters",
    "record",
    "recv_shared_cache",
    "report",
    "send_shared_cache",
    "share_module",
    "shared_parameters",
    "status",
    "tag",
    "tag_operations",
    "tagged",
]

_MODULES = {
    "Budget": "budgets",
    "InstallError": "installation",
    "Placement": "placement",
    "Recording": "placement",
    "SharedCacheSettings": "cache",
    "Status": "state",
    "StepReport": "budgets",
    "SwitchedModel": "switched",
    "SwitchedModelReport": "switched",
    "Switcher": "switcher",
    "SwitcherReport": "switcher",
    "Tagging": "tags",
    "allocate_shared_cache": "cache",
    "attach_module": "cache",
    "budget": "budgets",
    "check_shared_parameters": "cache",
    "clear_shared_cache": "cache",
    "configure_shared_cache": "cache",
    "insert_shared_cache_for_computation": "cache",
    "insert_shared_cache_for_parameter": "cache",
    "install": "installation",
    "own_bytes": "cache",
    "publish_shared_parameters": "cache",
    "record": "placement",
    "recv_shared_cache": "cache",
    "report": "reporting",
    "send_shared_cache": "cache",
    "share_module": "cache",
    "shared_parameters": "cache",
    "status": "state",
    "tag": "tags",
    "tag_operations": "operations",
    "tagged": "purpose",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from tenure.torch.installation import InstallError

        raise InstallError(f"PyTorch cannot be imported ({error}): pip install torch") from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
