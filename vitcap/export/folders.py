"""New folders that are whole or not there at all, and never take the place of others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitcap.files import full_disk_told, part_of


def require_new(path: str | Path) -> Path:
    """The path, if nothing is there but perhaps an empty folder. Raises ValueError otherwise."""
    path = Path(path)
    if path.is_dir() and not any(path.iterdir()):
        return path
    if path.exists() or path.is_symlink():
        state = "holds files already" if path.is_dir() else "is there already"
        raise ValueError(f"{path} {state}: name another --out, or remove it")
    return path


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder beside `path`, which becomes it when the block ends well, and is deleted otherwise.

    Raises ValueError where `path` is there already (an empty folder may be), and OSError as `vitcap.files.whole`.
    """
    path = require_new(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = part_of(path)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with full_disk_told(path):
            temporary.mkdir()
            yield temporary
            if path.exists():  # into it, as a shell may stand in it
                for file in sorted(
                    temporary.iterdir(), key=lambda file: file.name == "config.json"
                ):  # read first: last
                    os.replace(file, path / file.name)
            else:
                os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
