"""Where shards are: paths, patterns, web addresses and commands; and the bytes at the end of each.

`pipe:COMMAND` runs a shell command. So it is taken from the command line alone, or where the environment variable
VITCAP_PIPE=1 allows it: a config may come from anybody. An index file can name neither commands nor other folders.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from vitcap.files import whole

SUFFIXES = (".tar", ".tar.gz", ".tgz")
_SCHEME = re.compile(r"(pipe|https?|s?ftps?|gs|hf|ais):", re.IGNORECASE)


class ShardError(ValueError):
    """A shard that cannot be opened or read; the message names it."""


def library() -> Any:
    """The module webdataset. Raises ValueError that says how to install it."""
    try:
        import webdataset
    except ImportError:
        raise ValueError('shards are read and written by webdataset: pip install "vitcap[shards]"') from None
    return webdataset


def is_remote(where: str) -> bool:
    """Whether it is a web address or a command, and no path."""
    return bool(_SCHEME.match(where))


def is_shard(where: str) -> bool:
    """Whether a name, pattern or address looks like one of shards."""
    end = re.sub(r"[?#].*", "", where) if where.startswith("http") else where
    return where.startswith("pipe:") or end.endswith(SUFFIXES)


def shard_name(where: str) -> str:
    """The file name of a shard, without folders; of a command, the first such name in it."""
    if where.startswith("pipe:"):
        named = re.search(r"([^\s/'\"=]+)\.(tar\.gz|tar|tgz)\b", where)
        return named[0] if named else hashlib.sha256(where.encode()).hexdigest()[:12] + ".tar"
    return re.split(r"[?#]", where)[0].rstrip("/").rpartition("/")[2] if is_remote(where) else Path(where).name


def stem(where: str) -> str:
    """The name without its ending."""
    return re.sub(r"\.(tar\.gz|tar|tgz)$", "", shard_name(where))


def expand(given: str | Sequence[str], *, root: Path | None = None, trusted: bool = False) -> list[str]:
    """The shards (or the one index, FILE.json) that a text or a list of texts means, each once, in order.

    A text is a path, a folder (all shards in it), a pattern with * or ?, a web address, or pipe:COMMAND; a range in
    braces, {000..099}, stands for all its members. Relative paths start from `root`. trusted: the user typed it, so
    that commands are allowed. Raises FileNotFoundError for paths that are not there.
    """
    found: list[str] = []
    for text in [given] if isinstance(given, str) else list(given):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{text!r}: a path, pattern or address of shards is wanted")
        for one in library().shardlists.braceexpand.braceexpand(text):
            # Here, and not before: {pipe:COMMAND,...} begins with a brace.
            if one[:5].lower() == "pipe:" and not (trusted or _allowed(text)):
                raise ValueError(
                    f"{text}: runs a command, which the config of someone else could name: give it on the command "
                    "line, or allow it with the environment variable VITCAP_PIPE=1"
                )
            one = _SCHEME.sub(lambda scheme: scheme[0].lower(), one, count=1) if is_remote(one) else one
            found += [one] if is_remote(one) else _paths(one, root)
    return list(dict.fromkeys(found))


def _allowed(text: str) -> bool:
    return os.environ.get("VITCAP_PIPE") == "1" or any(text in argument for argument in sys.argv[1:])


def _paths(text: str, root: Path | None) -> list[str]:
    path = Path(text).expanduser()
    path = path if root is None else root / path
    if path.is_dir():
        if not (found := sorted(str(p) for p in path.iterdir() if p.name.endswith(SUFFIXES) and p.name[0] != ".")):
            raise FileNotFoundError(f"{path}: no shards ({', '.join(SUFFIXES)}) in this folder")
        return found
    if not path.exists() and glob.has_magic(text):
        if not (found := sorted(glob.glob(str(path)))):
            raise FileNotFoundError(f"{path}: no file fits this pattern")
        return found
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such shard")
    return [str(path)]


@contextmanager
def opened(where: str) -> Iterator[IO[bytes]]:
    """The bytes of a shard, to be read once. Raises ShardError where it cannot be opened, or its command fails; one
    that is left before its end may end as it likes."""
    try:
        stream: Any = library().gopen(where) if is_remote(where) else open(where, "rb")  # noqa: SIM115
    except (OSError, AssertionError, ValueError, ImportError) as error:
        raise ShardError(f"{where}: cannot be opened ({_reason(error)})") from None
    whole_read = False
    try:
        yield stream
        while stream.read(2**16):  # a command whose output is not read to the end fails of that
            pass
        whole_read = True
    except OSError as error:
        raise ShardError(f"{where}: cannot be read ({_reason(error)})") from None
    finally:
        try:
            stream.close()
        except OSError as error:
            if whole_read:
                raise ShardError(f"{where}: cannot be read ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    if status := re.search(r"exit (-?\d+)", text):
        curl = {"6": "host not found", "7": "no connection", "22": "the server says no, such as 404"}.get(status[1], "")
        return f"exit status {status[1]}" + (f": {curl}" if "curl" in text and curl else "")
    return " ".join(text.split())[:200]


def cache_folder() -> Path:
    """Where copies and lists of shards are kept: below $VITCAP_CACHE, $XDG_CACHE_HOME/vitcap or ~/.cache/vitcap."""
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        cache = tempfile.gettempdir()
    return Path(os.environ.get("VITCAP_CACHE") or Path(cache, "vitcap")) / "shards"


def local(where: str, sha256: str | None = None) -> Path:
    """A plain file with the bytes of a shard, for reading at any place: itself, or a copy in the cache, unpacked.

    sha256: of the file, where an index tells it: the copy of a web address is then fetched anew when it has changed,
    and otherwise stays until it is deleted. Raises ShardError.
    """
    if not is_remote(where):
        try:
            with open(where, "rb") as file:
                if file.read(2) != b"\x1f\x8b":
                    return Path(where)
        except OSError as error:
            raise ShardError(f"{where}: cannot be opened ({error.strerror})") from None
    state = (sha256 or "") if is_remote(where) else str(os.stat(where).st_mtime_ns)
    key = hashlib.sha256(f"{where if is_remote(where) else os.path.abspath(where)}\0{state}".encode()).hexdigest()[:16]
    copy = cache_folder() / "copies" / f"{stem(where)[:40]}-{key}.tar"
    if not copy.exists():
        with whole(copy) as part, part.open("wb") as out, opened(where) as stream:
            head = stream.read(2)
            source: Any = Again(head, stream)
            try:
                shutil.copyfileobj(gzip.GzipFile(fileobj=source) if head == b"\x1f\x8b" else source, out)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise ShardError(f"{where}: a cut or damaged gzip archive ({error}); fetch it again") from None
    return copy


class Again:
    """A stream of which the first bytes were read already."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        self.head, self.stream = head, stream

    def read(self, size: int = -1) -> bytes:
        if 0 <= size < len(self.head):
            found, self.head = self.head[:size], self.head[size:]
        else:
            found, self.head = self.head + self.stream.read(size if size < 0 else size - len(self.head)), b""
        return found
