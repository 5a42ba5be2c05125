"""The memory report of the running program."""

from __future__ import annotations

import json
import sys
from os import PathLike
from pathlib import Path
from typing import Any, Literal, overload

import torch

from tenure import _native
from tenure._files import write_whole
from tenure.torch.holdings import tag_holdings

__all__ = ["report"]


@overload
def report(
    path: str | PathLike[str] | None = None, device: int | None = None, *, format: Literal["html"] = "html"
) -> Path: ...
@overload
def report(path: None = None, device: int | None = None, *, format: Literal["json"]) -> dict[str, Any]: ...
@overload
def report(path: str | PathLike[str], device: int | None = None, *, format: Literal["json"]) -> Path: ...
def report(
    path: str | PathLike[str] | None = None, device: int | None = None, *, format: Literal["html", "json"] = "html"
) -> Path | dict[str, Any]:
    """Writes who holds the program's memory: by tag, by module, block by block, and how it came about.

    `tenure.torch.tag` says what memory is for; without it, everything is ``unknown``. The page shows memory over time
    if ``torch.cuda.memory._record_memory_history()`` was called.

    Parameters
    ----------
    path
        The file. By default ``memory-report-<device>.html`` in the working directory; for ``json``, no file.
    device
        The device's number; by default the current one.
    format
        ``html`` for a page that needs no network and no script, ``json`` for the figures.

    Returns
    -------
    Path or dict
        The file that was written; of ``json`` without a path, the figures.

    Raises
    ------
    tenure.Error
        Tenure holds no memory of that device.
    """
    if format not in ("html", "json"):
        raise ValueError(f"format={format!r}: expected 'html' or 'json'")
    if device is None:
        device = torch.cuda.current_device() if torch.cuda.is_available() else 0
    tag_holdings()
    content = _native.memory_report(device, _title(device), format == "json")
    if path is None:
        if format == "json":
            figures: dict[str, Any] = json.loads(content)
            return figures
        path = f"memory-report-{device}.html"
    file = Path(path)
    write_whole(file, content)
    return file


def _title(device: int) -> str:
    """The program, and the device."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    name = torch.cuda.get_device_name(device) if torch.cuda.is_available() else "CUDA device"
    return f"{program} on {name} ({device})"
