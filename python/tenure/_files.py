"""Files that appear only when they are complete."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from uuid import uuid4


def write_whole(file: Path, content: str | bytes) -> None:
    """Replaces a file at once: readers see the old content or the new. A device or a pipe is written to instead."""
    data = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(file))
    is_there = os.path.exists(file)
    if is_there and not target.is_file():
        # If it is a folder, this raises the right error.
        file.write_bytes(data)
        return
    unfinished = target.with_name(f".unfinished-{uuid4().hex}")
    try:
        with unfinished.open("xb") as stream:
            stream.write(data)
        if is_there:
            shutil.copymode(target, unfinished)
        unfinished.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error
    finally:
        unfinished.unlink(missing_ok=True)
