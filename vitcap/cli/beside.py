"""Captions where other programs look for them: a .txt beside the photo, and the description inside it."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from vitcap.cli.metadata import describe, described, exiv2
from vitcap.files import whole

_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Beside:
    """Writes the texts of photos beside them and into them, as asked for; what stands there already is kept.

    paths: all photos. sidecar: write PHOTO without its ending + ".txt" (`photo.txt` of `photo.jpg`), one line of UTF-8.
    metadata: write IPTC and XMP descriptions; UsageError if pyexiv2 is missing. overwrite: replace what is there.
    spare: files that are never written. note: says what was kept.
    kept, failed: how many texts were not written since another was there, or could not be.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        sidecar: bool,
        metadata: bool,
        overwrite: bool,
        spare: Sequence[str],
        note: Callable[[str], None],
    ) -> None:
        self.sidecar, self.metadata, self.overwrite, self.note = sidecar, metadata, overwrite, note
        self.kept = self.failed = 0
        self._owner: dict[str, str] = {}
        if sidecar:
            for path in paths:
                self._owner.setdefault(sidecar_of(path), path)
            self._spared = {os.path.abspath(path) for path in (*paths, *spare)}
        if metadata:
            exiv2()

    def __bool__(self) -> bool:
        return self.sidecar or self.metadata

    def lacks(self, path: str) -> bool:
        """Whether a photo has yet to get a text of those that are asked for. One whose text file is another's always
        has, so that every run reports it."""
        name = sidecar_of(path)
        if self.overwrite or (self.sidecar and (self._owner[name] != path or not os.path.lexists(name))):
            return True
        return self.metadata and not described(path)

    def __call__(self, path: str, text: str) -> None:
        """Write the text of a photo. What cannot be done is reported and counted; OSError where the disk is full."""
        for wanted, write, place in (
            (self.sidecar, self._write_sidecar, sidecar_of(path)),
            (self.metadata, self._describe, path),
        ):
            try:
                if wanted and not write(path, text):
                    self.kept += 1
                    what = "text" if write == self._write_sidecar else "description"
                    self.note(f"{place}: has another {what}, which is kept (--overwrite replaces it)")
            except (ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno in _FATAL:
                    raise
                self.failed += 1
                reason = str(error) if isinstance(error, ValueError) else f"{place}: not written ({error.strerror})"
                print(f"vitcap: {reason}", file=sys.stderr)

    def _describe(self, path: str, text: str) -> bool:
        return describe(path, text, overwrite=self.overwrite)

    def _write_sidecar(self, path: str, text: str) -> bool:
        name = sidecar_of(path)
        if (owner := self._owner.get(name, path)) != path:
            raise ValueError(f"{path}: {name} is that of {owner}; two photos of one folder need different names")
        if os.path.abspath(name) in self._spared:
            raise ValueError(f"{path}: its text would replace {name}, which this run reads or writes itself")
        content = f"{text}\n".encode("utf-8", "surrogateescape")
        file = Path(name)
        if file.is_dir():
            raise ValueError(f"{path}: {name} is a folder, where its text would go")
        if os.path.lexists(file):
            # Any other text may be somebody's own work, whoever wrote it first.
            if file.is_file() and file.read_bytes().rstrip(b"\r\n") == content.rstrip(b"\r\n"):
                return True
            if not self.overwrite:
                return False
        with whole(file) as temporary:
            temporary.write_bytes(content)
        return True


def sidecar_of(path: str) -> str:
    """Name of the text file of a photo: its own, with .txt for its ending."""
    return os.path.splitext(path)[0] + ".txt"
