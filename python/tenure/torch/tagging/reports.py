"""The memory report of the running program."""

from __future__ import annotations

import json
import os
import sys
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

import torch

from tenure import Error, _native
from tenure._files import write_whole
from tenure.torch.installation import installed
from tenure.torch.tagging.holdings import tag_holdings

__all__ = ["report"]

Device: TypeAlias = "int | str | torch.device | None"


@overload
def report(
    path: str | PathLike[str] | None = None,
    device: Device = None,
    *,
    format: Literal["html"] = "html",
) -> Path: ...
@overload
def report(path: None = None, device: Device = None, *, format: Literal["json"]) -> dict[str, Any]: ...
@overload
def report(path: str | PathLike[str], device: Device = None, *, format: Literal["json"]) -> Path: ...
def report(
    path: str | PathLike[str] | None = None,
    device: Device = None,
    *,
    format: Literal["html", "json"] = "html",
) -> Path | dict[str, Any]:
    """Writes a report on the program's memory: by tag, by module, block by block, and over time.

    `tenure.torch.tag` sets the tags; without it, all memory is ``unknown``. The page shows memory over time if
    ``torch.cuda.memory._record_memory_history()`` was called.

    Parameters
    ----------
    path
        The file to write. By default ``memory-report-<device>.html`` in the working directory; for ``json``, no file.
    device
        The device, or its number; by default the current one.
    format
        ``html`` for a page that needs no network and no script, ``json`` for the figures.

    Returns
    -------
    Path or dict
        The file that was written; for ``json`` without a path, the figures.

    Raises
    ------
    tenure.Error
        There is no such device, or Tenure holds no memory on it.
    OSError
        The file cannot be written.
    """
    if format not in ("html", "json"):
        raise ValueError(f"format={format!r}: expected 'html' or 'json'")
    number = _number_of(device)
    tag_holdings()
    content = _native.memory_report(number, _title(number), format == "json")
    if path is None:
        if format == "json":
            figures: dict[str, Any] = json.loads(content)
            return figures
        path = f"memory-report-{number}.html"
    file = Path(path)
    write_whole(file, content)
    return file


def _number_of(device: Device) -> int:
    """Returns the number of a device. Opens its memory if Tenure is installed."""
    if device is None or isinstance(device, int):
        number = device
    else:
        given = torch.device(device)
        if given.type != "cuda":
            raise Error(f"device={str(given)!r}: expected one of CUDA's")
        number = given.index
    if number is None:
        number = torch.cuda.current_device() if torch.cuda.is_available() else 0
    if number in _native.installed():
        return number
    count = torch.cuda.device_count()
    if not 0 <= number < count:
        raise Error(f"device {number}: PyTorch sees {count or 'no'} CUDA device{'s' if count != 1 else ''}")
    if installed() is not None:
        # The first block opens the device.
        torch.empty(1, device=f"cuda:{number}")
    return number


def _title(device: int) -> str:
    """Returns a title: the program and the device."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    name = torch.cuda.get_device_name(device) if torch.cuda.is_available() else "CUDA device"
    # A file name may be any bytes.
    return os.fsencode(f"{program} on {name} ({device})").decode(errors="replace")
