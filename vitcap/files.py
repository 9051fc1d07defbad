"""Files that are whole or not there at all, however a program ends; and one clear error where the disk is full."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FULL = {errno.ENOSPC: "no space left on the disk", errno.EDQUOT: "the quota of the disk is used up"}

_LONG = 200


@contextmanager
def whole(path: str | Path) -> Iterator[Path]:
    """A temporary path beside the given one, which it replaces when the block ends well, and is deleted otherwise.

    What is written is on the disk before it has the final name, so that neither a killed process nor a lost machine
    leaves half of it there; what was there before stays until then. Makes the folder. Of a link the file that it leads
    to is replaced; pipes and devices, such as /dev/stdout, cannot be, and are given as they are.
    Raises OSError that names the final path where the disk is full, whatever the writer makes of it.
    """
    path = Path(path)
    if path.is_fifo() or path.is_char_device():
        with full_disk_told(path):
            yield path
        return
    path = path.resolve() if path.is_symlink() else path
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = part_of(path)
    try:
        with full_disk_told(path):
            yield temporary
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError as error:
        if error.filename == str(temporary):  # which nobody has asked for
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        with suppress(OSError):  # of a disk that is read only, which would hide the first error, or its name
            temporary.unlink(missing_ok=True)


def part_of(path: Path) -> Path:
    """The temporary name beside a path: of 255 bytes at most, as file systems have it, however long the other is."""
    name = path.name
    if len(os.fsencode(name)) > _LONG:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return path.with_name(f".{name}.{os.getpid()}.part")


@contextmanager
def full_disk_told(path: str | Path) -> Iterator[None]:
    """Errors that come of a full disk, as one OSError that names `path`; all others as they are."""
    try:
        yield
    except Exception as error:
        number = _full(error)
        if number is None:
            raise
        named = error.filename if isinstance(error, OSError) and error.filename else path
        raise OSError(number, f"{_FULL[number]}: free some; what was written before is whole", str(named)) from error


def _full(error: BaseException | None) -> int | None:
    """The error number of a full disk that an error, or one that it comes of, stands for; None for all others."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in _FULL:
            return error.errno
        for number in _FULL:  # safetensors has only the text of the system
            if os.strerror(number) in str(error):
                return number
        error = error.__cause__ or error.__context__
    return None


def clear_parts(*folders: Path) -> None:
    """Delete what `whole` leaves in these folders when a process is killed."""
    for folder in folders:
        for part in folder.glob(".*.part"):
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)
