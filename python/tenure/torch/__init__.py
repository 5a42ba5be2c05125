"""Stock PyTorch on Tenure's allocator.

One line, before the program first uses CUDA, puts Tenure's memory under an unpatched PyTorch:

>>> import tenure.torch
>>> tenure.torch.install()  # doctest: +SKIP

`function` makes a function on Tenure's tensors one on PyTorch's, with its gradient, and without a copy.

PyTorch is imported at the first use of a name in this module, not with the module itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # An import under its own name tells type checkers that this module exports the name.
    from tenure.torch.budgets import Budget as Budget
    from tenure.torch.budgets import StepReport as StepReport
    from tenure.torch.budgets import budget as budget
    from tenure.torch.functions import function as function
    from tenure.torch.installation import install as install
    from tenure.torch.installation import status as status
    from tenure.torch.installation.state import InstallError as InstallError
    from tenure.torch.installation.state import Status as Status
    from tenure.torch.placement import Placement as Placement
    from tenure.torch.placement import Recording as Recording
    from tenure.torch.placement import record as record
    from tenure.torch.purpose import tagged as tagged
    from tenure.torch.shared_cache import SharedCacheSettings as SharedCacheSettings
    from tenure.torch.shared_cache import allocate_shared_cache as allocate_shared_cache
    from tenure.torch.shared_cache import check_shared_parameters as check_shared_parameters
    from tenure.torch.shared_cache import clear_shared_cache as clear_shared_cache
    from tenure.torch.shared_cache import configure_shared_cache as configure_shared_cache
    from tenure.torch.shared_cache import insert_shared_cache_for_computation as insert_shared_cache_for_computation
    from tenure.torch.shared_cache import insert_shared_cache_for_parameter as insert_shared_cache_for_parameter
    from tenure.torch.shared_cache import own_bytes as own_bytes
    from tenure.torch.shared_cache import publish_shared_parameters as publish_shared_parameters
    from tenure.torch.shared_cache import recv_shared_cache as recv_shared_cache
    from tenure.torch.shared_cache import send_shared_cache as send_shared_cache
    from tenure.torch.shared_cache import shared_parameters as shared_parameters
    from tenure.torch.shared_cache.modules import attach_module as attach_module
    from tenure.torch.shared_cache.modules import share_module as share_module
    from tenure.torch.switching.model import SwitchedModel as SwitchedModel
    from tenure.torch.switching.model import SwitchedModelReport as SwitchedModelReport
    from tenure.torch.switching.switcher import Switcher as Switcher
    from tenure.torch.switching.switcher import SwitcherReport as SwitcherReport
    from tenure.torch.tagging.operations import tag_operations as tag_operations
    from tenure.torch.tagging.reports import report as report
    from tenure.torch.tagging.tags import Tagging as Tagging
    from tenure.torch.tagging.tags import tag as tag

#: The public names of each module.
_NAMES = {
    "budgets": ["Budget", "StepReport", "budget"],
    "functions": ["function"],
    "installation": ["install", "status"],
    "installation.state": ["InstallError", "Status"],
    "placement": ["Placement", "Recording", "record"],
    "purpose": ["tagged"],
    "shared_cache": [
        "SharedCacheSettings",
        "allocate_shared_cache",
        "check_shared_parameters",
        "clear_shared_cache",
        "configure_shared_cache",
        "insert_shared_cache_for_computation",
        "insert_shared_cache_for_parameter",
        "own_bytes",
        "publish_shared_parameters",
        "recv_shared_cache",
        "send_shared_cache",
        "shared_parameters",
    ],
    "shared_cache.modules": ["attach_module", "share_module"],
    "switching.model": ["SwitchedModel", "SwitchedModelReport"],
    "switching.switcher": ["Switcher", "SwitcherReport"],
    "tagging.operations": ["tag_operations"],
    "tagging.reports": ["report"],
    "tagging.tags": ["Tagging", "tag"],
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from tenure.torch.installation.state import InstallError

        raise InstallError(f"PyTorch cannot be imported ({error}): pip install torch") from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
