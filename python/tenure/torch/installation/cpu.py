"""The shim of PyTorch's CPU allocator."""

from __future__ import annotations

import ctypes
import threading

from tenure import _native
from tenure.torch.installation import build
from tenure.torch.installation.state import InstallError

_installing = threading.Lock()
_shim: ctypes.CDLL | None = None


def put_under() -> None:
    """Installs the shim of PyTorch's CPU allocator, once."""
    global _shim
    with _installing:
        if _shim is not None:
            return
        try:
            torch = build.Torch.current()
            library = build.prebuilt(torch, build.on_cpu()) or build.built(torch, build.on_cpu())
            shim = ctypes.CDLL(str(library))
        except (build.BuildError, OSError) as error:
            raise InstallError(f"Tenure cannot be put under PyTorch's memory of the CPU: {error}") from error
        shim.tenure_cpu_install.restype = ctypes.c_bool
        message = ctypes.create_string_buffer(4096)
        if not shim.tenure_cpu_install(ctypes.c_void_p(_native.cpu_api()), message, ctypes.c_size_t(len(message))):
            raise InstallError(message.value.decode(errors="replace"))
        _shim = shim


def is_installed() -> bool:
    """Returns whether the shim is under PyTorch."""
    return _shim is not None
