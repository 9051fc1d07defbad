"""Descriptions inside picture files: IPTC Caption-Abstract and XMP dc:description, by Exiv2 (package pyexiv2)."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from vitcap.cli.options import UsageError
from vitcap.data.images import Encoded, load_image
from vitcap.files import whole

_CAPTION, _CHARACTERS, _UTF8 = "Iptc.Application2.Caption", "Iptc.Envelope.CharacterSet", "\x1b%G"
_LONGEST = 2000  # IPTC-IIM 4.2, dataset 2:120
_DESCRIPTION, _DEFAULT = "Xmp.dc.description", 'lang="x-default"'


def exiv2() -> ModuleType:
    """The package pyexiv2; UsageError where it is missing."""
    try:
        import pyexiv2
    except (ImportError, OSError) as error:
        raise UsageError(
            f"--write-metadata needs the package pyexiv2, which cannot be loaded ({error}): "
            'pip install "vitcap[metadata]"'
        ) from None
    pyexiv2.set_log_level(4)  # what it finds odd in metadata that are none of ours is not told; errors are raised
    return pyexiv2


@dataclass(frozen=True)
class _Found:
    """What a picture file holds. writable: of "iptc" and "xmp", what its format can take. languages: of dc:description,
    to their text. iptc: texts read as Latin-1, thus byte by byte, whatever their encoding."""

    kind: str
    writable: frozenset[str]
    languages: dict[str, str]
    iptc: dict[str, Any]

    @property
    def texts(self) -> list[str]:
        """The descriptions that are there."""
        return [text for text in (*self.languages.values(), _text(self.iptc.get(_CAPTION, ""))) if text.strip()]


def described(path: str) -> bool:
    """Whether a picture file has a description; False too for a file that can have none, or is no picture."""
    try:
        return bool(_read(path).texts)
    except (ValueError, OSError):
        return False


def describe(path: str, text: str, *, overwrite: bool = False) -> bool:
    """Write a text into a picture file as its description; other metadata and the compressed picture stay as they are.

    IPTC Caption-Abstract (in UTF-8, and marked so where it is not ASCII) and XMP dc:description (x-default), each as
    far as the format has it. The new file takes the place of the old one at once, with its mode and times; behind a
    link, the file that it leads to. Returns whether the text is there now: another description that is there stays,
    unless `overwrite`. Raises ValueError, with the file as it was, where it cannot be done.
    """
    found = _read(path)
    if not found.writable:
        raise ValueError(_cannot(path, f"{found.kind} files"))
    if (size := len(text.encode("utf-8", "surrogateescape"))) > _LONGEST:
        raise ValueError(f"{path}: a text of {size} bytes, and {_LONGEST} is the most that IPTC Caption-Abstract holds")
    if not overwrite and any(one != text for one in found.texts):
        return False
    xmp = "xmp" in found.writable and found.languages.get(_DEFAULT) != text
    iptc = "iptc" in found.writable and _text(found.iptc.get(_CAPTION, "")) != text
    if xmp or iptc:
        before = Path(path).read_bytes()
        with _told(path):
            image = exiv2().ImageData(before)
            if xmp:
                image.modify_xmp({_DESCRIPTION: found.languages | {_DEFAULT: text}})
            if iptc:
                image.modify_iptc(_marked(path, text, found.iptc) | {_CAPTION: text})
            after = image.get_bytes()
            image.close()
        _replace(path, before, after)
    return True


def _read(path: str) -> _Found:
    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
        raise ValueError(_cannot(path, "what is no regular file"))
    with _told(path):
        try:
            image = exiv2().Image(os.path.realpath(path))
        except UnicodeEncodeError:  # a name that is not UTF-8
            image = exiv2().ImageData(Path(path).read_bytes())
        with closing(image):
            modes, xmp = image.get_access_mode(), image.read_xmp()
            iptc = image.read_iptc("latin-1")
            kind = image.get_mime_type().removeprefix("image/").removeprefix("x-ms-").upper()
    old = xmp.get(_DESCRIPTION, {})
    writable = frozenset(name for name in ("iptc", "xmp") if modes[name] == "read+write")
    return _Found(kind, writable, old if isinstance(old, dict) else {_DEFAULT: str(old)}, iptc)


def _marked(path: str, text: str, iptc: dict[str, Any]) -> dict[str, str]:
    """What tells readers that the IPTC texts are UTF-8, where that is needed."""
    if text.isascii() or iptc.get(_CHARACTERS) == _UTF8:
        return {}
    if not all(str(value).isascii() for key, value in iptc.items() if key != _CAPTION):
        raise ValueError(
            f"{path}: its IPTC texts are not in UTF-8, beside which this one cannot stand; convert them first"
        )
    return {_CHARACTERS: _UTF8}


def _replace(path: str, before: bytes, after: bytes) -> None:
    """Give a file other bytes, at once, if it still shows the same picture."""
    status = os.stat(path)
    if not os.access(path, os.W_OK):
        raise ValueError(f"{path}: may not be written (its mode is {status.st_mode & 0o777:o})")
    was, now = (load_image(Encoded(path, content), exif=False) for content in (before, after))
    if was.size != now.size or was.tobytes() != now.tobytes():
        raise ValueError(f"{path}: with a description it would look otherwise, so it was left as it is")
    with whole(path) as temporary:
        temporary.write_bytes(after)
        with suppress(PermissionError):  # another user's file, in a folder that we may write in
            os.chown(temporary, status.st_uid, status.st_gid)
        shutil.copystat(path, temporary)


@contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # Exiv2's own
        reason = " ".join(str(error).split()).removeprefix(f"{os.path.realpath(path)}: ")
        if "unknown image type" in reason:
            raise ValueError(_cannot(path, "a file of its format")) from None
        raise ValueError(f"{path}: no description can be written into it ({reason})") from None


def _cannot(path: str, what: str) -> str:
    return f"{path}: a description cannot be written into {what}; convert it, or use --sidecar"


def _text(value: str) -> str:
    """An IPTC text that was read as Latin-1: in UTF-8 if it is that."""
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value
