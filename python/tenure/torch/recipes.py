"""The shim that tells what PyTorch's operations make, makes it again, and has what autograd saves.

It stands between autograd and the kernels, for threads that a budget listens to. A mode of Python's would hear the
same, and take as long as the operation itself for it.
"""

from __future__ import annotations

import ctypes
from functools import cache

from torch import _ops
from torch._C import _dispatch_key_parse as _parse_dispatch_key

from tenure.torch import build

__all__ = ["operations"]

#: Where the shim stands.
_KEY = "Fake"


@cache
def operations() -> int:
    """The address of the shim's table, which the package's extension module calls: it is loaded once, and stays.

    Raises
    ------
    InstallError
        It cannot be built, or loaded.
    """
    from tenure.torch.installation import InstallError

    torch, shim = build.Torch.current(), build.on_operations()
    try:
        library = ctypes.CDLL(str(build.prebuilt(torch, shim) or build.built(torch, shim)))
    except (build.BuildError, OSError) as error:
        raise InstallError(f"Tenure cannot note what PyTorch's operations make: {error}") from error
    library.tenure_operations_table.restype = ctypes.c_size_t
    _let_through()
    return int(library.tenure_operations_table())


def _let_through() -> None:
    """Has operations that are given functions, such as ``torch.cond``, pass by: what the functions do is noted."""
    key = _parse_dispatch_key(_KEY)
    _ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
    for operation in _ops._higher_order_ops.values():
        operation.fallthrough(key)
