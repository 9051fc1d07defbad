"""What one request, and all of them together, may ask of the server; and the error that says no."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

MOST_BEAMS = MOST_N_BEST = 20
MOST_LENGTH = 100
"""Most tokens of a caption that are written."""
MOST_TEXT = 1000
"""Longest option, a given caption among them, in characters."""
FORM = 64 * 1024
"""Bytes that a form may take beside its picture."""


class Refused(Exception):
    """A request that is not carried out: its HTTP status, and a sentence for whoever sent it."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


def busy(why: str) -> Refused:
    """That the server has no room now."""
    return Refused(503, f"{why}; try again in a few seconds", {"Retry-After": "5"})


@dataclass(frozen=True)
class Limits:
    """max_upload: bytes of a picture file. timeout: seconds that a request's head, its body, its place in the queue and
    a reader of the answer may each take. queue: requests that wait for the model. batch: pictures that it reads at
    once. connections: open at once.
    """

    max_upload: int = 20 * 2**20
    timeout: float = 30.0
    queue: int = 32
    batch: int = 8
    connections: int = 256

    @property
    def held(self) -> int:
        """Bytes of all uploads together that are being read or wait."""
        return max(8 * self.max_upload, 64 * 2**20)


class Room:
    """Bytes that all uploads together may take."""

    def __init__(self, size: int) -> None:
        self.left = size

    @contextmanager
    def share(self) -> Iterator[Share]:
        """What one request takes of it, given back at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self.left += share.taken


class Share:
    """Part of a Room."""

    def __init__(self, room: Room) -> None:
        self.room, self.taken = room, 0

    def take(self, size: int) -> None:
        """Raises Refused where there is no room left."""
        if size > self.room.left:
            raise busy("the server holds as many uploads as it has room for")
        self.room.left -= size
        self.taken += size
