"""Reading annotation files: encodings, broken JSON, captions as people write them, and where files lie."""

from __future__ import annotations

import json
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def clean_caption(raw: object) -> tuple[str | None, str | None]:
    """A caption as one line of clean text, or None; and the name of what was wrong with it, if anything was.

    Line breaks of every kind, tabs and control characters become one blank, Unicode is composed (NFC), lone
    surrogates become U+FFFD. Text without a letter or a digit counts as blank, since no word would be left of it.
    """
    if not isinstance(raw, str):
        return None, "captions that are missing or no text skipped"
    text, remark = raw, None
    if not (text.isascii() and text.isprintable()):
        text = "".join(" " if unicodedata.category(c) == "Cc" or c == "\ufeff" else c for c in text)
        if any("\ud800" <= c <= "\udfff" for c in text):
            text, remark = (
                text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
                "captions with broken characters repaired",
            )
        text = unicodedata.normalize("NFC", text)
    text = " ".join(text.split())
    if not any(c.isalnum() for c in text):
        return None, "blank captions skipped"
    return text, remark


def read_text(path: Path) -> str:
    """A UTF-8 text file, with or without byte order mark, whatever the locale; ValueError names other encodings."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no regular file" if path.exists() else ""
        raise FileNotFoundError(f"{path}: {f'is {found}, a file is wanted' if found else 'no such file'}")
    data = path.read_bytes()
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError(f"{path}: UTF-16; save it as UTF-8")
    if 3 * data.count(0) > len(data):  # every second byte of most text in UTF-16
        raise ValueError(f"{path}: UTF-16 without its mark, or no text; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}: line {line} is not UTF-8 (byte 0x{data[error.start]:02x}); save it as UTF-8"
        ) from None


def parse_json(text: str) -> Any:
    """JSON in which no object has a key twice: readers keep the last and drop the others without a word."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            raise ValueError(f"an object has the key {twice!r} more than once")
        return content

    return json.loads(text, object_pairs_hook=once)


def read_json(path: Path) -> Any:
    """A UTF-8 JSON file; ValueError with line and column where it is cut or broken."""
    text = read_text(path)
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        ended = "; the file is cut" if error.pos >= len(text.rstrip()) - 1 or "Unterminated" in error.msg else ""
        raise ValueError(f"{path}: line {error.lineno} column {error.colno}: {error.msg}{ended}") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, lists in lists without end
        raise ValueError(f"{path}: JSON that cannot be read ({str(error).partition(';')[0]})") from None


def plain_path(name: str) -> str:
    """A file name from an annotation file, with forward slashes."""
    return name.strip().replace("\\", "/")


def only_file(root: Path, patterns: Iterable[str], option: str) -> Path:
    """The one file under root that fits; an error that names the option if there are none or several."""
    patterns = list(patterns)
    found = sorted({path for pattern in patterns for path in root.glob(pattern) if not path.name.startswith(".")})
    if not found:
        raise FileNotFoundError(f"{root}: no {' or '.join(patterns)}; name the file with {option}=")
    if len(found) > 1:
        names = ", ".join(path.relative_to(root).as_posix() for path in found)
        raise ValueError(f"{root}: several files fit ({names}); choose one with {option}=")
    return found[0]


def image_folder(root: Path, given: str | None, usual: Iterable[str], example: str) -> Path:
    """The folder that image names start from: as given, or the first of the usual ones that holds the example."""
    if given is not None:
        return existing_folder(root / given)
    tried = [root / name for name in usual]
    there = [folder for folder in tried if folder.is_dir()]
    return next((folder for folder in there if os.path.isfile(folder / example)), there[0] if there else tried[-1])


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one; not where it is a link in a circle, at which `is_dir` raises."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def existing_folder(root: str | os.PathLike[str] | None) -> Path:
    """The folder, or ValueError if none is named and FileNotFoundError if it is not there."""
    if root is None or not os.fspath(root):
        raise ValueError("no data folder given; name it with data.root=")
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: {'a file; a folder is wanted' if folder.exists() else 'no such folder'}")
    return folder
