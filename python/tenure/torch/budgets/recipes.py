"""The shim that reports and repeats PyTorch's operations, and holds the tensors that autograd saves.

It stands between autograd and the kernels, for threads that a budget records. A Python dispatch mode would see the
same, but would take as long as the operation itself.
"""

from __future__ import annotations

import ctypes
from functools import cache

from torch import _ops
from torch._C import _dispatch_key_parse as _parse_dispatch_key

from tenure.torch.installation import build
from tenure.torch.installation.state import InstallError

__all__ = ["operations"]

#: The dispatch key of the shim.
_KEY = "Fake"


@cache
def operations() -> int:
    """Returns the address of the shim's table, for the extension module. The shim is loaded once and stays loaded.

    Raises
    ------
    InstallError
        The shim cannot be built or loaded.
    """
    torch, shim = build.Torch.current(), build.on_operations()
    try:
        library = ctypes.CDLL(str(build.prebuilt(torch, shim) or build.built(torch, shim)))
    except (build.BuildError, OSError) as error:
        raise InstallError(f"Tenure cannot note what PyTorch's operations make: {error}") from error
    library.tenure_operations_table.restype = ctypes.c_size_t
    _let_through()
    return int(library.tenure_operations_table())


def _let_through() -> None:
    """Lets operations that take functions, such as ``torch.cond``, bypass the shim: those functions' operations reach
    it."""
    key = _parse_dispatch_key(_KEY)
    _ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
    for operation in _ops._higher_order_ops.values():
        operation.fallthrough(key)
