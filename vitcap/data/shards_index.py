"""What is known of a set of shards before it is read: how many samples each holds, and all their texts.

`python scripts/prepare.py shards` writes it beside the shards of a split: NAME.json, the index, and NAME.jsonl, a line
of JSON for each sample. For shards of others one pass makes the same in the cache, once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vitcap.data.reading import parse_json, read_json
from vitcap.data.shards_sample import ShardSample, read_samples
from vitcap.data.shards_urls import ShardError, cache_folder, is_remote, opened, shard_name
from vitcap.files import whole

log = logging.getLogger(__name__)

FORMAT = 1
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_READERS = 4


@dataclass(frozen=True)
class Shard:
    """A tar archive: where it is, and how many samples and captions it holds. bytes, sha256: of the file, if known."""

    where: str
    samples: int
    captions: int
    bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Index:
    """The shards of a split, in order. texts: the file with a line for each sample (see `line_of`).

    classes: (id, name) of each, in the order of the labels; None where there are none. about: how it was made.
    """

    shards: tuple[Shard, ...]
    texts: Path
    classes: tuple[tuple[str, str], ...] | None = None
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Of all shards."""
        return sum(shard.samples for shard in self.shards)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change when the texts or the shards do."""
        with self.texts.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        digest.update(repr([(shard_name(s.where), s.samples, s.bytes) for s in self.shards]).encode())
        return digest.hexdigest()[:16]

    def lines(self) -> Iterator[dict[str, Any]]:
        """What is known of every sample, in the order of the shards. Raises ValueError where a line is broken."""
        with self.texts.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    good = _is_line(row := json.loads(line), len(self.shards))
                except (ValueError, RecursionError):
                    good = False
                if not good:
                    raise ValueError(f"{self.texts}: line {number} is cut or not as vitcap writes it")
                yield row


def _is_line(row: Any, shards: int) -> bool:
    def number(value: object, below: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below

    if not isinstance(row, dict):
        return False
    id_, said, at, label = (row.get(name) for name in ("id", "captions", "at", "label"))
    return (
        number(row.get("shard"), shards)
        and isinstance(row.get("key"), str)
        and (isinstance(id_, int | str) and not isinstance(id_, bool))
        and (isinstance(said, list) and all(isinstance(text, str) for text in said))
        and (at is None or (isinstance(at, list) and [number(value, 2**60) for value in at] == [True, True]))
        and (label is None or number(label, 10**8))
    )


def line_of(number: int, sample: ShardSample) -> str:
    """The line of a sample in the file of texts. number: of its shard. at: [offset, bytes] of the picture in it."""
    row = {"shard": number, "key": sample.key, "id": sample.id, "captions": sample.captions, "label": sample.label}
    place = sample.image if isinstance(sample.image, tuple) else None
    row |= {"at": place} | ({"error": sample.error} if sample.error else {})
    text = json.dumps(row, ensure_ascii=False)
    if any("\ud800" <= letter <= "\udfff" for letter in text):  # a file name that is no UTF-8
        text = json.dumps(row)
    return text + "\n"


def write(path: Path, index: Index, *, split: str) -> None:
    """Write an index as PATH, whole; its file of texts and its shards lie beside it."""
    content = {
        "format": FORMAT,
        "split": split,
        "samples": index.samples,
        "captions": sum(shard.captions for shard in index.shards),
        "shards": [
            {"name": shard_name(s.where)} | {k: getattr(s, k) for k in ("samples", "captions", "bytes", "sha256")}
            for s in index.shards
        ],
        "texts": index.texts.name,
        "classes": index.classes,
        **index.about,
    }
    with whole(path) as part:
        part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8", "backslashreplace")


def read(where: str) -> Index:
    """The index in a file, or at a web address; its shards lie beside it, and it can name no others.

    Raises FileNotFoundError and ValueError that name the file: it is no index, is not finished, or its shards are
    missing or of other sizes.
    """
    if is_remote(where):
        base = where.rpartition("/")[0]
        content = _remote_json(where)
        beside: Callable[[str], str] = lambda name: f"{base}/{name}"  # noqa: E731
    else:
        content, folder = read_json(Path(where)), Path(where).parent
        beside = lambda name: str(folder / name)  # noqa: E731
    if not isinstance(content, dict) or not isinstance(content.get("shards"), list) or "format" not in content:
        raise ValueError(f"{where}: no index of shards")
    if content["format"] != FORMAT:
        raise ValueError(f"{where}: format {content['format']!r}, and this version of vitcap reads {FORMAT}")
    if content.get("complete") is False:
        raise ValueError(f"{where}: its shards are not all written; run the command that began it once more")
    shards = tuple(_shard(where, row, beside) for row in content["shards"])
    if not any(shard.samples for shard in shards):
        raise ValueError(f"{where}: there is no sample in its shards")
    texts = beside(_name(where, content.get("texts")))
    if not is_remote(where):
        _check_files(where, shards)
    about = {k: v for k, v in content.items() if k in ("data", "split", "options", "left_out")}
    return Index(shards, _texts(texts), _classes(where, content.get("classes")), about)


def _name(where: str, name: object) -> str:
    if not isinstance(name, str) or not _PLAIN.fullmatch(name):
        raise ValueError(f"{where}: {str(name)[:80]!r} is refused: an index names files beside it, without any folder")
    return name


def _shard(where: str, row: object, beside: Callable[[str], str]) -> Shard:
    row = row if isinstance(row, dict) else {}
    counts: list[Any] = [row.get(key) for key in ("samples", "captions")]
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 10**9 for n in counts):
        raise ValueError(f"{where}: {str(row)[:80]} lacks the name or the counts of a shard")
    size, digest = row.get("bytes"), row.get("sha256")
    return Shard(
        beside(_name(where, row.get("name"))),
        counts[0],
        counts[1],
        size if isinstance(size, int) else None,
        digest if isinstance(digest, str) else None,
    )


def _classes(where: str, pairs: object) -> tuple[tuple[str, str], ...] | None:
    if pairs is None:
        return None
    good = isinstance(pairs, list) and all(
        isinstance(p, list) and len(p) == 2 and all(isinstance(t, str) for t in p) for p in pairs
    )
    if not good:
        raise ValueError(f"{where}: classes: a list of [id, name] is wanted")
    return tuple((p[0], p[1]) for p in pairs)  # type: ignore[attr-defined]


def _check_files(where: str, shards: Sequence[Shard]) -> None:
    lacking = [s.where for s in shards if not os.path.isfile(s.where)]
    if lacking:
        raise FileNotFoundError(f"{where}: {len(lacking)} of {len(shards)} shards are not there, such as {lacking[0]}")
    for s in shards:
        if s.bytes is not None and (size := os.path.getsize(s.where)) != s.bytes:
            raise ValueError(f"{s.where}: {size} bytes, and {where} says {s.bytes}: copy or write it anew")


def _remote_json(where: str) -> Any:
    try:
        with opened(where) as stream:
            return parse_json(stream.read().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, ShardError) else ValueError(f"{where}: no index of shards") from None


def _texts(where: str) -> Path:
    """The file of texts; that of a web address is fetched once a run, for it is small beside the shards."""
    if not is_remote(where):
        if not (path := Path(where)).is_file():
            raise FileNotFoundError(f"{where}: no such file, and the index beside it names it; write the shards anew")
        return path
    copy = cache_folder() / "texts" / f"{hashlib.sha256(where.encode()).hexdigest()[:16]}.jsonl"
    with opened(where) as stream, whole(copy) as part, part.open("wb") as out:
        while block := stream.read(2**20):
            out.write(block)
    return copy


def survey(shards: Sequence[str]) -> Index:
    """Count and list shards that have no index, in one pass over all of them, and keep that in the cache.

    A plain file is known by its path, size and time of change; of a web address or command nothing shows a change.
    """
    state = json.dumps([_state(shard) for shard in shards])
    folder = cache_folder() / "lists" / hashlib.sha256(state.encode()).hexdigest()[:16]
    kept, texts = folder / "counts.json", folder / "texts.jsonl"
    if not (kept.exists() and texts.exists()):
        log.info("%d shards without an index: read once to count and list them", len(shards))
        counts = []
        with whole(texts) as part, part.open("w", encoding="utf-8") as out, ThreadPoolExecutor(_READERS) as pool:
            for lines, samples, captions in pool.map(_list, range(len(shards)), shards):
                out.writelines(lines)
                counts.append([samples, captions])
        with whole(kept) as part:
            part.write_text(json.dumps(counts), encoding="ascii")
    counts = json.loads(kept.read_text(encoding="ascii"))
    made = tuple(Shard(s, *count) for s, count in zip(shards, counts, strict=True))
    if not any(shard.samples for shard in made):
        raise ValueError(f"{shards[0]}: no pictures in this or the other {len(shards) - 1} shards")
    return Index(made, texts)


def _state(where: str) -> list[str | int]:
    if is_remote(where):
        return [where]
    found = os.stat(where)
    return [os.path.abspath(where), found.st_size, found.st_mtime_ns]


def _list(number: int, where: str) -> tuple[list[str], int, int]:
    samples = list(read_samples(where, pictures=False))
    return [line_of(number, s) for s in samples], len(samples), sum(len(s.captions) for s in samples)
