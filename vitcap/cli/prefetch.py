"""Pictures read ahead in threads, in order; pictures of the same bytes are read once."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from vitcap.data.images import ImageError


@dataclass(frozen=True)
class Ready:
    """A picture that was read: found is what reading gave, or its ImageError; None for the twin of an earlier picture.

    key: what pictures of the same bytes share; None where no other has as many bytes. twin_of: the earlier picture.
    """

    path: str
    found: Any
    key: bytes | None = None
    twin_of: str | None = None


class Twins:
    """Which pictures have the same bytes, and what was said of the first of them, on disk while the program runs.

    Only files that share their size with another are hashed. paths: all pictures that may be twins.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        counts = Counter(map(_size, paths))
        self._sizes: set[int | None] = {size for size, count in counts.items() if count > 1 and size is not None}
        self._first: dict[bytes, str] = {}
        self._places: dict[bytes, int] = {}
        self._rows = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed with the object)

    def sizes(self, paths: Sequence[str]) -> set[int | None]:
        """Sizes of those of some pictures that may have twins."""
        return self._sizes.intersection(map(_size, paths)) if self._sizes else set()

    def key(self, path: str, sizes: set[int | None] | None = None) -> bytes | None:
        """The hash of a file that may have a twin (sizes: of those that matter); None for another."""
        if _size(path) not in (self._sizes if sizes is None else sizes):
            return None
        try:
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").digest()
        except OSError:  # reading the picture will say so
            return None

    def first(self, key: bytes | None, path: str) -> str | None:
        """The earlier picture of that key, if there is one; otherwise this one is the first."""
        first = path if key is None else self._first.setdefault(key, path)
        return None if first == path else first

    def keep(self, key: bytes | None, row: dict[str, Any]) -> None:
        """What the twins of a first picture will be told."""
        if key is not None:
            self._places[key] = self._rows.seek(0, os.SEEK_END)
            print(json.dumps(row), file=self._rows)

    def row(self, key: bytes) -> dict[str, Any]:
        """What was kept under a key."""
        self._rows.seek(self._places[key])
        return json.loads(self._rows.readline())


def read_ahead(
    paths: Sequence[str], read: Callable[[str], Any], *, workers: int, ahead: int, twins: Twins | None = None
) -> Iterator[Ready]:
    """The pictures in order, up to `ahead` of them read before they are asked for.

    read: from a path to anything; called in one of `workers` threads, and not for twins.
    """

    def attempt(path: str) -> Any:
        try:
            return read(path)
        except ImageError as error:
            return error

    pool = ThreadPoolExecutor(workers, thread_name_prefix="pictures")
    try:
        rest = iter(paths)
        hashing: deque[tuple[str, Future[bytes | None]]] = deque()
        reading: deque[tuple[Ready, Future[Any] | None]] = deque()
        while True:
            # Hashes are needed in order, so that the first of some twins is the first in the list: they run in front.
            key_of = twins.key if twins is not None else (lambda path: None)
            hashing += [(path, pool.submit(key_of, path)) for path in islice(rest, 2 * ahead - len(hashing))]
            while hashing and len(reading) < ahead:
                path, future = hashing.popleft()
                key = future.result()
                earlier = twins.first(key, path) if twins is not None else None
                reading.append((Ready(path, None, key, earlier), None if earlier else pool.submit(attempt, path)))
            if not reading:
                return
            item, waiting = reading.popleft()
            yield item if waiting is None else Ready(item.path, waiting.result(), item.key)
    finally:
        pool.shutdown(cancel_futures=True)


def _size(path: str) -> int | None:
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return None
    return state.st_size if stat.S_ISREG(state.st_mode) else None  # a pipe would be waited for, a device has no end
