"""Files that are there when they are whole."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(file: Path, content: str) -> None:
    """Writes a file: whoever looks sees the old one or the new. A device or a pipe is not replaced, but written to."""
    if file.exists() and not file.is_file():
        file.write_text(content, encoding="utf-8")
        return
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        unfinished.write_text(content, encoding="utf-8")
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
