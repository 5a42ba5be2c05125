"""The shim that tells what PyTorch's operations make, makes it again, and has what autograd saves.

It stands between autograd and the kernels, for threads that a budget listens to. A mode of Python's would hear the
same, and take as long as the operation itself for it.
"""

from __future__ import annotations

import ctypes
from functools import cache

from tenure.torch import build

__all__ = ["operations"]


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
    return int(library.tenure_operations_table())
