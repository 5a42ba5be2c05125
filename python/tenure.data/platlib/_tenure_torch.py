"""Puts Tenure's allocator under PyTorch in programs that do not ask for it: `TENURE_TORCH=1`.

When Python starts, `tenure.pth` calls `arm` if the variable is set. Nothing is imported then: the allocator is
installed right after the program's own `import torch`. `tenure.torch.install` gets its arguments from
`TENURE_TORCH_OPTIONS="allocator=paged,fraction=0.9"`. A failure prints one line to stderr, and the program goes on with
PyTorch's allocator.

This module is not part of the package `tenure`: so it can be imported without the cost of importing the package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: The accepted values of the variable, in any case.
_ON = ("1", "true", "yes", "on")
_OFF = ("", "0", "false", "no", "off")

#: The known options, and the functions that parse their values.
_READERS: dict[str, Callable[[str], Any]] = {
    "allocator": str,
    "fraction": float,
    "headroom": str,
    "pinned_cache": str,
    "background": str,
}


_is_armed = False


def arm() -> None:
    """Arranges for the allocator to be installed after the import of `torch`, if the variable is on. Never raises.

    In a virtual environment, Python calls this twice.
    """
    global _is_armed
    if _is_armed:
        return
    _is_armed = True
    wish = os.environ.get("TENURE_TORCH", "").lower()
    if wish in _OFF:
        return
    if wish not in _ON:
        _say(f"TENURE_TORCH={wish!r} is taken for 0: expected 1, for Tenure's allocator under PyTorch, or 0")
        return
    if "torch" in sys.modules:
        _install()
    else:
        sys.meta_path.insert(0, _TorchFinder())


class _TorchFinder:
    """A finder that finds `torch` as the other finders do, and installs Tenure once after it is loaded.

    It stays in the list of finders: other threads may be iterating over the list, and would skip a finder if it moved.
    """

    def __init__(self) -> None:
        self._is_done = False
        self._searching = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch" or self._is_done or getattr(self._searching, "here", False):
            return None
        self._searching.here = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching.here = False
        if spec is None or spec.loader is None:
            return None
        loader = spec.loader
        load = loader.exec_module

        def load_and_install(module: ModuleType) -> None:
            del loader.exec_module
            load(module)
            if not self._is_done:
                self._is_done = True
                _install()

        loader.exec_module = load_and_install  # type: ignore[method-assign]
        return spec


def _install() -> None:
    try:
        import tenure.torch

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tenure.torch.install(**_options(os.environ.get("TENURE_TORCH_OPTIONS", "")))
        for warning in caught:
            _say(str(warning.message))
    except Exception as error:
        _say(f"TENURE_TORCH is set, but PyTorch keeps its own allocator: {str(error) or type(error).__name__}")


def _say(text: str) -> None:
    stderr = sys.stderr
    if stderr is None:
        return
    line = f"tenure: {' '.join(text.split())}\n"
    is_replaced = stderr is not sys.__stderr__
    with contextlib.suppress(OSError, ValueError):  # of a full disk, or of a file that is closed
        if is_replaced:
            stderr.write(line)
            return
        # Bypasses the buffer: some versions of Python exit with status 120 if buffered text cannot be written.
        stderr.flush()
        os.write(stderr.fileno(), line.encode(errors="replace"))


def _options(text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, _, value = (part.strip() for part in item.partition("="))
        try:
            options[name] = _READERS[name](value)
        except (KeyError, ValueError):
            raise ValueError(
                f"TENURE_TORCH_OPTIONS has {item!r}: expected allocator=paged, native or expandable, fraction=0.9 "
                "or the like, headroom=4GiB, pinned_cache=8GiB, or background=SOCKET, with a comma between"
            ) from None
    return options
