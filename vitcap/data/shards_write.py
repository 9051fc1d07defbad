"""Writing shards: the records of any reader as tar archives that are the same, byte for byte, for the same input."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from vitcap.data import shards_index
from vitcap.data.images import IMAGE_SUFFIXES, ImageError
from vitcap.data.records import CaptionRecord
from vitcap.data.shards_index import Index, Shard, line_of
from vitcap.data.shards_sample import ShardSample, read_samples
from vitcap.data.shards_urls import library
from vitcap.files import whole

QUALITY = 95
_BLOCK, _HEAD = 512, 1024
_SUFFIXES = {"jpeg": "jpg", "jpe": "jpg", "jfif": "jpg", "tiff": "tif"}

Entry = tuple[str, CaptionRecord]


@dataclass(frozen=True)
class Plan:
    """How records become shards. name: of the split; it begins all file names.

    per_shard: samples of a shard; or, in place of it, megabytes: about the size of one (10^6 bytes), of pictures that
    are kept as they are. resize: pixels of the shorter side of larger pictures, which become JPEG; None keeps every
    file as it is. seed: of the order; None keeps it. on_bad: "error" or "skip" for pictures that cannot be read.
    """

    name: str
    per_shard: int | None = 1000
    megabytes: float | None = None
    resize: int | None = None
    seed: int | None = 0
    on_bad: str = "error"

    def chunks(self, records: Sequence[CaptionRecord]) -> list[list[Entry]]:
        """(key, record) of each shard. Raises ValueError for sizes of pictures that are not files, or resized."""
        order = list(records)
        if self.seed is not None:
            random.Random(f"{self.seed}/{self.name}").shuffle(order)
        entries = [(f"{number:09d}", record) for number, record in enumerate(order)]
        if self.megabytes is None:
            assert self.per_shard is not None
            return [entries[start : start + self.per_shard] for start in range(0, len(entries), self.per_shard)]
        chunks: list[list[Entry]] = []
        size = limit = self.megabytes * 1e6
        for key, record in entries:
            if self.resize is not None or not isinstance(record.image, Path):
                raise ValueError("--shard-size is for picture files that are kept as they are: give --per-shard")
            own = _padded(os.path.getsize(record.image)) + _padded(len(_about(record, None)))
            if size + own > limit:
                chunks.append([])
                size = 0
            chunks[-1].append((key, record))
            size += own
        return chunks


def _padded(size: int) -> int:
    return _HEAD // 2 + -(-size // _BLOCK) * _BLOCK


def write_shards(
    records: Sequence[CaptionRecord],
    out: str | Path,
    plan: Plan,
    *,
    data: str,
    classes: Sequence[tuple[str, str]] | None = None,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Index:
    """Write OUT/NAME-000000.tar, ..., and NAME.json and NAME.jsonl (see shards_index).

    data: the name of the reader, for the index. classes: (id, name) of each label. workers: threads. progress: called
    with (done, total) pictures. A run that was broken off goes on with the shards that are not there yet.

    Every picture is decoded once: with on_bad="error" one that cannot be raises ImageError, else it is left out and
    named in the index. Raises ValueError where the folder holds other shards of this name, or another process is
    writing them.
    """
    library()  # now, if it is missing
    out = Path(out)
    options = {"resize": plan.resize, "seed": plan.seed, "per_shard": plan.per_shard, "megabytes": plan.megabytes}
    chunks = plan.chunks(records)
    named = tuple((str(id_), str(name)) for id_, name in classes) if classes else None
    state = _fingerprint(chunks, options | {"classes": named})
    file = out / f"{plan.name}.json"
    names = [f"{plan.name}-{number:06d}.tar" for number in range(len(chunks))]
    with _alone(out, plan.name):
        if _begun(file, names, state):
            return shards_index.read(str(file))
        with whole(file) as part:
            part.write_text(
                json.dumps({"format": shards_index.FORMAT, "complete": False, "state": state, "shards": []})
            )
        killed = re.compile(rf"\.{re.escape(plan.name)}(-\d+\.tar|\.jsonl?)\.\d+\.part")
        for part in out.iterdir():
            if killed.fullmatch(part.name):  # left by a run that was
                part.unlink(missing_ok=True)
        done = 0

        def work(name: str, chunk: list[Entry]) -> tuple[Shard, list[ShardSample], dict[str, str]]:
            if not (out / name).exists():
                with whole(out / name) as part:
                    bad = _write(part, chunk, plan, classes)
            else:
                there = {sample.key for sample in read_samples(str(out / name), pictures=False)}
                bad = {key: _trouble(record) for key, record in chunk if key not in there}
            return (*_listed(out / name), {str(dict(chunk)[key].image_id): reason for key, reason in bad.items()})

        shards, left_out, texts = [], dict[str, str](), out / f"{plan.name}.jsonl"
        with whole(texts) as part, part.open("w", encoding="utf-8", newline="\n") as lines, _Pool(workers) as pool:
            for number, (shard, samples, bad) in enumerate(pool.map(work, names, chunks)):
                lines.writelines(line_of(number, sample) for sample in samples)
                shards.append(shard)
                left_out |= bad
                done += len(chunks[number])
                if progress is not None:
                    progress(done, len(records))
        if len(left_out) == len(records):
            raise ValueError(
                f"none of {len(records)} pictures can be read, the first: {next(iter(left_out.values()), '')}"
            )
        about = {"data": data, "options": options, "left_out": left_out, "state": state}
        index = Index(tuple(shards), texts, named, about)
        shards_index.write(file, index, split=plan.name)
        return index


@contextmanager
def _alone(out: Path, name: str) -> Iterator[None]:
    """ValueError where another process writes the shards of this name, as far as files can be locked."""
    path = out / f".{name}.lock"
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError:  # what is to be written there says it
        yield
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = f"{out}: another process is writing the shards of {name}; wait for it, or choose another folder"
            raise ValueError(told) from None
        except OSError:
            pass
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


class _Pool(ThreadPoolExecutor):
    """Threads, for decoding and hashing leave Python's lock; what waits is dropped when something is wrong."""

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self.shutdown(cancel_futures=kind is not None)


def _fingerprint(chunks: Sequence[Sequence[Entry]], options: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for chunk in chunks:
        for key, record in chunk:
            file = record.image.name if isinstance(record.image, Path) else repr(record.image)
            digest.update(repr((key, record.image_id, file, record.captions, record.label)).encode("utf-8", "replace"))
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _begun(file: Path, names: Sequence[str], state: str) -> bool:
    """Whether the very same shards are all written. Raises ValueError where there are others."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found.get("state") == state:
            return found.get("complete") is not False
        told = f"{file}: an index of other records or options"
    except FileNotFoundError:
        old = [name for name in names if (file.parent / name).exists()]
        if not old:
            return False
        told = f"{file.parent / old[0]}: a shard that no index tells of"
    except (ValueError, AttributeError):
        told = f"{file}: no index of shards"
    raise ValueError(f"{told}: choose another folder, or remove what is there")


def _write(path: Path, chunk: Sequence[Entry], plan: Plan, classes: Sequence[tuple[str, str]] | None) -> dict[str, str]:
    """Write one archive; returns key -> reason of the pictures left out. Times, owners and modes are always equal."""
    bad: dict[str, str] = {}
    with (
        path.open("wb") as file,
        library().TarWriter(file, encoder=False, mtime=0, user="", group="", mode=0o644) as tar,
    ):
        for key, record in chunk:
            try:
                suffix, content = _picture(record, plan.resize)
            except ImageError as error:
                if plan.on_bad == "error":
                    raise ImageError(f"{error} (--on-bad skip leaves such pictures out)") from None
                bad[key] = _reason(record, error)
                continue
            tar.write({"__key__": key, suffix: content, "json": _about(record, classes)})
    return bad


def _picture(record: CaptionRecord, resize: int | None) -> tuple[str, bytes]:
    """(suffix, bytes) of the file of a picture: its own, where that is possible."""
    picture = record.open()
    out = io.BytesIO()
    if resize is not None:
        factor = resize / min(picture.size)
        if factor < 1:
            width, height = (max(1, round(side * factor)) for side in picture.size)
            picture = picture.resize((width, height), Image.Resampling.LANCZOS)
        picture.save(out, "JPEG", quality=QUALITY)
        return "jpg", out.getvalue()
    if isinstance(record.image, Path):
        suffix = record.image.suffix.lower()
        suffix = suffix[1:] if suffix in IMAGE_SUFFIXES else "jpg"  # what it is, its bytes say
        return _SUFFIXES.get(suffix, suffix), record.image.read_bytes()
    picture.save(out, "PNG")
    return "png", out.getvalue()


def _about(record: CaptionRecord, classes: Sequence[tuple[str, str]] | None) -> bytes:
    row: dict[str, Any] = {"id": record.image_id, "captions": record.captions}
    if isinstance(record.image, Path):
        row["file"] = record.image.name
    if record.label is not None:
        row |= {"label": record.label} | ({"class": classes[record.label][0]} if classes else {})
    return json.dumps(row, ensure_ascii=True).encode("ascii")


def _listed(path: Path) -> tuple[Shard, list[ShardSample]]:
    samples = list(read_samples(str(path), pictures=False))
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    captions = sum(len(sample.captions) for sample in samples)
    return Shard(str(path), len(samples), captions, path.stat().st_size, digest), samples


def _trouble(record: CaptionRecord) -> str:
    try:
        record.open()
    except ImageError as error:
        return _reason(record, error)
    return f"{record.image_id}: left out before, and can be read now"


def _reason(record: CaptionRecord, error: ImageError) -> str:
    """Without folders, for the index is to be the same wherever the pictures are."""
    return str(error).replace(str(record.image), getattr(record.image, "name", str(record.image_id)))
