"""The files of the project that `prose` and `idioms` count in."""

import os
from pathlib import Path

#: Folders of build outputs. Those whose names begin with a dot belong to tools, but for these.
BUILT = {"target", "__pycache__", "node_modules", "prebuilt"}
HIDDEN = {".ci", ".github"}
PROJECT = Path(__file__).resolve().parent.parent


def source_files(paths: list[str]) -> list[Path]:
    """Returns the files that are given or are in the folders that are given, or those of the whole project, sorted.

    It walks the folders rather than asking git, which a machine that builds an archive of the project may lack.
    """
    found: list[Path] = []
    for path in map(Path, paths or [os.path.relpath(PROJECT)]):
        if path.is_file():
            found.append(path)
        for folder, folders, files in os.walk(path):
            folders[:] = [name for name in folders if name in HIDDEN or name not in BUILT and not name.startswith(".")]
            found += [Path(folder, name) for name in files]
    return sorted(found)
