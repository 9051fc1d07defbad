"""Files of captions that grow picture by picture and can be gone on with: JSON lines and CSV.

A file of any length is read piece by piece: what stays in memory is the names of its pictures.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from vitcap.cli.options import UsageError
from vitcap.cli.rows import dump
from vitcap.files import full_disk_told, whole

Row = dict[str, Any]
_KNOWN = ("image", "caption", "probability", "score", "finished", "text", "same_as", "below_confidence", "error")
_MADE = ("model", "options")
_FLAGS = ("finished", "below_confidence")
_NUMBERS = re.compile(r"probability(_\d+)?|score")
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
"""Texts that a spreadsheet may take for a formula, which a file name can bring, or that `Table` marked."""


class Output(ABC):
    """A file with one piece (line, record) a picture. n_best: captions of each picture."""

    kind: str
    end: bytes
    header = b""

    def __init__(self, path: Path, n_best: int = 1) -> None:
        self.path = path
        self._makers: set[tuple[Any, ...]] = set()
        self._dirty = False

    @abstractmethod
    def dump(self, row: Row) -> bytes:
        """The piece of one picture."""

    @abstractmethod
    def parse(self, piece: bytes) -> Row | None:
        """What a piece holds; None if it is none of ours, or was cut."""

    @abstractmethod
    def cut(self, piece: bytes) -> bool:
        """Whether a piece that cannot be parsed is the beginning of one of ours."""

    def whole_pieces(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        """The pieces that lines of the file are of."""
        return lines

    def scan(self) -> list[str]:
        """The pictures that the file has captions of. Raises UsageError if it holds anything but captions."""
        if not self.path.is_file():  # nor is a pipe or a device, of which nothing can be read back
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return []
        done, place = [], 1
        for _, piece in self._pieces():
            row = self.parse(piece)
            if row is None and not (self.cut(piece) and not piece.endswith(b"\n")):
                raise UsageError(
                    f"{self.path}, line {place}: not a caption record, so nothing was written; "
                    "give another --out, or remove it"
                )
            if row is not None and "caption" in row:
                done.append(row["image"])
                self._makers.add(tuple(row.get(name) for name in _MADE))
                self._dirty |= not piece.endswith(b"\n")
            elif piece != self.header:
                self._dirty = True
            place += piece.count(b"\n")
        return done

    def require(self, made: Row) -> None:
        """UsageError where captions of the file, as scanned, come of another model or other options."""
        for maker in self._makers:
            for name, was, what in zip(_MADE, maker, ("by another model", "with other options"), strict=True):
                if was != made[name]:
                    old, new = ([] if text is None else re.split(r" (?=\w+=)", text) for text in (was, made[name]))
                    before = " ".join(part for part in old if part not in new) or "unknown"
                    now = " ".join(part for part in new if part not in old) or "fewer"
                    raise UsageError(
                        f"{self.path}: its captions were made {what} ({before}; now {now}): name another --out, or "
                        "remove it"
                    )

    def clean(self) -> None:
        """Take out a last piece that was cut and pictures that failed, which are tried again. At once, so that the file
        is never half written. UsageError where another run is writing it."""
        if not self._dirty:
            return
        with open(self.path, "rb") as old, whole(self.path) as temporary, open(temporary, "wb") as file:
            self._require_alone(old)
            file.write(self.header)
            for _, piece in self._pieces():
                if (row := self.parse(piece)) is not None and "caption" in row:
                    file.write(piece.rstrip(b"\r\n") + self.end)
        self._dirty = False

    def rows(self) -> Iterator[Row]:
        """What the file has of every picture."""
        for _, piece in self._pieces():
            if (row := self.parse(piece)) is not None and row:
                yield row

    def put_in_order(self, paths: Sequence[str]) -> None:
        """Sort the pieces by `paths`; those of other pictures come first, as they were. Not while another run is
        writing the file."""
        if self.path.is_file():
            with open(self.path, "rb") as old:
                if _lock(old):
                    self._sort(old, paths)

    def _sort(self, old: IO[bytes], paths: Sequence[str]) -> None:
        order = {path: place for place, path in enumerate(paths)}
        starts, ranks = array("q"), array("q")
        for start, piece in self._pieces():
            row = self.parse(piece)
            starts.append(start)
            ranks.append(order.get(row["image"], -1) if row else -2)
        sorted_by = np.argsort(np.frombuffer(ranks, np.int64), kind="stable")
        if (np.diff(sorted_by) > 0).all():
            return
        starts.append(self.path.stat().st_size)
        with whole(self.path) as temporary, open(temporary, "wb") as new:
            for place in sorted_by.tolist():
                old.seek(starts[place])
                new.write(old.read(starts[place + 1] - starts[place]))

    @contextmanager
    def writer(self) -> Iterator[Callable[[Row], None]]:
        """A function that appends a picture; it is in the file when it returns. UsageError where another run is writing
        it, which would replace the file at its end, and lose what others have added."""
        with full_disk_told(self.path), open(self.path, "ab") as file:
            self._require_alone(file)
            head = b"" if self.path.is_file() and self.path.stat().st_size else self.header

            def write(row: Row) -> None:
                nonlocal head
                file.write(head + self.dump(row))
                file.flush()
                head = b""

            yield write

    def _require_alone(self, file: IO[bytes]) -> None:
        # One that ended between the opening and the lock has put another file in its place.
        if not (_lock(file) and os.path.samestat(os.fstat(file.fileno()), os.stat(self.path))):
            raise UsageError(f"{self.path}: another run is writing it; wait for its end, or name another --out")

    def _pieces(self) -> Iterator[tuple[int, bytes]]:
        """(where it starts, piece) for all of the file."""
        start = 0
        if not self.path.is_file():
            return
        with open(self.path, "rb") as file:
            for piece in self.whole_pieces(iter(file)):
                yield start, piece
                start += len(piece)


class JsonLines(Output):
    """One JSON object a line."""

    end = b"\n"

    def dump(self, row: Row) -> bytes:
        return dump(row).encode() + b"\n"

    def parse(self, piece: bytes) -> Row | None:
        try:
            row = json.loads(piece)
        except ValueError:
            return None
        if not isinstance(row, dict) or not isinstance(row.get("image"), str):
            return None
        # A table of images to train on is somebody's work, and no list of pictures that failed.
        return row if isinstance(row.get("caption"), str) or isinstance(row.get("error"), str) else None

    def cut(self, piece: bytes) -> bool:
        try:
            json.loads(piece)
        except ValueError:
            return piece[:8] == b'{"image"'[: len(piece)]
        return False


class Table(Output):
    """CSV as spreadsheets read it (RFC 4180, UTF-8 with its mark). `rows` gives texts, but for true and false, and
    leaves out what is empty. Texts that would be formulas there have an apostrophe before them, which `rows` omits."""

    end = b"\r\n"

    def __init__(self, path: Path, n_best: int = 1) -> None:
        super().__init__(path, n_best)
        others = [f"{name}_{rank}" for rank in range(2, n_best + 1) for name in ("caption", "probability")]
        self.columns = [*_KNOWN, *others, *_MADE]
        self.header = b"\xef\xbb\xbf" + _csv(self.columns)

    def dump(self, row: Row) -> bytes:
        for rank, one in enumerate(row.get("n_best", ()), 1):
            row = row | {f"{name}_{rank}": one[name] for name in ("caption", "probability")}
        values = [row.get(name, "") for name in self.columns]
        values = [json.dumps(value) if isinstance(value, bool) else value for value in values]
        return _csv([f"'{v}" if self._marked(n, v) else v for n, v in zip(self.columns, values, strict=True)])

    @staticmethod
    def _marked(name: str, value: Any) -> bool:
        return isinstance(value, str) and not _NUMBERS.fullmatch(name) and _FORMULA.match(value) is not None

    def parse(self, piece: bytes) -> Row | None:
        if piece == self.header:
            return {}
        if not piece.endswith(b"\n"):  # its last value may be cut
            return None
        text = piece.decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")
        try:
            (values,) = csv.reader([text], strict=True)
        except (csv.Error, ValueError):
            return None
        if values == ["\ufeff" + self.columns[0], *self.columns[1:]] or values == self.columns:
            return {}
        if len(values) != len(self.columns) or not values[0]:
            return None
        row: Row = {name: value for name, value in zip(self.columns, values, strict=True) if value}
        row = {n: v[1:] if v[0] == "'" and self._marked(n, v) else v for n, v in row.items()}
        row |= {name: row[name] == "true" for name in _FLAGS if name in row}
        return row if "error" in row else {"caption": "", **row}

    def cut(self, piece: bytes) -> bool:
        return True

    def scan(self) -> list[str]:
        if self.path.is_file():
            first = next(self._pieces(), (0, self.header))[1]
            if self.parse(first) != {} and not (len(first) < len(self.header) and self.header.startswith(first)):
                raise UsageError(
                    f"{self.path}, line 1: not a table of captions, or one with another --n-best, so nothing was "
                    f"written; give another --out, or remove it (its columns would be {', '.join(self.columns)})"
                )
        return super().scan()

    def whole_pieces(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        piece, quotes = [], 0
        for line in lines:
            piece.append(line)
            quotes += line.count(b'"')
            if quotes % 2 == 0:  # outside of quotes a line break ends a record
                yield b"".join(piece)
                piece, quotes = [], 0
        if piece:
            yield b"".join(piece)


def _lock(file: IO[bytes]) -> bool:
    """Whether no other run writes a file; none can then until it is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a pipe, or a file system without locks
        pass
    return True


def _csv(values: Sequence[Any]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(values)
    return text.getvalue().encode("utf-8", "surrogateescape")


def output(path: Path, n_best: int = 1) -> Output:
    """The file of captions of that name: CSV if it ends in .csv, else JSON lines."""
    return (Table if path.suffix.lower() == ".csv" else JsonLines)(path, n_best)
