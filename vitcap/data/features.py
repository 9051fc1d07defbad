"""Cache of a frozen trunk's features on disk: float16 rows in one memory-mapped file, appended as pictures come.

One folder for each (trunk weights, preprocessing, view); in it `features.f16` holds the rows and `keys.txt` the hash
of the picture of each row. A row counts only when its key line is complete, so an interrupted run goes on where it
was, a changed picture gets a new row, and another trunk or preprocessing another folder: nothing can be stale.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitcap.data.images import ImageError
from vitcap.data.records import CaptionRecord

log = logging.getLogger(__name__)

KEYS = ("bytes", "mtime")
MAPPED_BYTES = 2**28


def picture_key(path: Path, by: str) -> str:
    """Hash that changes when the picture does: of its bytes, or (faster on slow disks) of path, size and mtime."""
    if by == "bytes":
        return hashlib.sha256(path.read_bytes()).hexdigest()[:32]
    stat = path.stat()
    return hashlib.sha256(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()[:32]


class FeatureCache:
    """Features (N, C) of pictures by key.

    root: folder of all caches. identity: what makes the features what they are (trunk fingerprint, preprocessing,
    view), plain JSON types; it is written beside them in `identity.json`.
    """

    def __init__(self, root: str | Path, identity: dict[str, object]) -> None:
        text = json.dumps(identity, sort_keys=True)
        self.folder = Path(root) / hashlib.sha256(text.encode()).hexdigest()[:16]
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "identity.json").write_text(text + "\n", encoding="utf-8")
        self.shape: tuple[int, int] | None
        self.rows: dict[str, int]
        self._map: np.memmap | None
        self._read()

    def _read(self) -> None:
        """Index of the complete rows."""
        self.shape, self.rows, self._map, self._stored = None, {}, None, 0
        shape_file, keys_file = self.folder / "shape.json", self.folder / "keys.txt"
        if not shape_file.exists() or not keys_file.exists():
            return
        try:
            self.shape = tuple(json.loads(shape_file.read_text(encoding="utf-8")))
        except ValueError:
            raise ValueError(
                f"{shape_file}: damaged; delete the folder {self.folder}, or use another data.cache"
            ) from None
        lines = keys_file.read_text(encoding="ascii").split("\n")[:-1]  # the last piece is empty or a cut line
        row_bytes = self.shape[0] * self.shape[1] * 2
        self._stored = min(len(lines), (self.folder / "features.f16").stat().st_size // row_bytes)
        self.rows = {key: row for row, key in enumerate(lines[: self._stored])}
        if self.rows:
            self._open()

    def _open(self) -> None:
        assert self.shape is not None
        shape = (self._stored, *self.shape)
        self._map = np.memmap(self.folder / "features.f16", dtype=np.float16, mode="r", shape=shape)
        self._touched = 0

    def __getstate__(self) -> dict[str, object]:
        # A loader process maps the file itself; the mapping would be copied as an array.
        return {**self.__dict__, "_map": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__ |= state
        if self.rows:
            self._open()

    def __contains__(self, key: str) -> bool:
        return key in self.rows

    def __getitem__(self, key: str) -> Tensor:
        """(N, C) float16."""
        assert self._map is not None
        row = torch.from_numpy(self._map[self.rows[key]].copy())
        self._touched += row.nbytes
        if self._touched > MAPPED_BYTES:
            self._open()  # pages of a mapping count as this process's memory until it is closed
        return row

    def extend(self, batches: Iterable[tuple[Sequence[str], Tensor]]) -> None:
        """Append (keys, features (B, N, C)) as they come; each batch is safe on disk before the next is asked for.

        Raises BlockingIOError when another process is filling the same folder, ValueError for features that do not
        fit float16.
        """
        with open(self.folder / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(
                    f"another process is filling the feature cache {self.folder}; wait, or use another data.cache"
                ) from None
            self._read()
            features_file, keys_file = self.folder / "features.f16", self.folder / "keys.txt"
            # Cut away what an interrupted run left behind the last complete row.
            with open(features_file, "ab") as f:
                f.truncate(self._map.nbytes if self._map is not None else 0)
            lines = keys_file.read_text(encoding="ascii").split("\n")[: self._stored] if self._stored else []
            keys_file.write_text("".join(line + "\n" for line in lines), encoding="ascii")
            with open(features_file, "ab") as rows, open(keys_file, "a", encoding="ascii") as keys:
                for names, features in batches:
                    if self.shape is None:
                        self.shape = (features.shape[1], features.shape[2])
                        temporary = self.folder / "shape.json.new"
                        temporary.write_text(json.dumps(self.shape), encoding="utf-8")
                        os.replace(temporary, self.folder / "shape.json")
                    assert tuple(features.shape) == (len(names), *self.shape), "one trunk, one shape"
                    if not bool(features.isfinite().all()) or float(features.abs().max()) > 65000:
                        raise ValueError("features do not fit float16 (not finite, or beyond 65,000): use cache=null")
                    rows.write(features.to(torch.float16).contiguous().numpy().tobytes())
                    rows.flush()
                    os.fsync(rows.fileno())  # the row first: a key on disk without it would be believed
                    keys.write("".join(name + "\n" for name in names))
                    keys.flush()
            self._read()


def fill(
    cache: FeatureCache,
    records: Sequence[CaptionRecord],
    *,
    extract: Callable[[Tensor], Tensor],
    transform: Callable[[Image.Image, str], Tensor],
    key_by: str = "bytes",
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[str | None], dict[int | str, str]]:
    """Make sure that every record's features are in the cache.

    extract: pictures (B, 3, H, W) uint8 -> (B, N, C). transform: picture and its key -> (3, H, W) uint8.
    progress: called with (done, total) pictures. Returns the key of each record (None where the picture is unreadable)
    and id -> reason of the unreadable ones. Raises ValueError for records that are not files.
    """
    if key_by not in KEYS:
        raise ValueError(f"cache key must be one of {', '.join(KEYS)}, got {key_by!r}")
    keys: list[str | None] = []
    bad: dict[int | str, str] = {}
    missing: dict[str, int] = {}
    unreadable: dict[str, str] = {}
    for index, record in enumerate(records):
        if not isinstance(record.image, Path):
            raise ValueError(
                f"record {record.image_id!r} is drawn, not a file: only picture files can be cached (data.cache=null)"
            )
        try:
            key = picture_key(record.image, key_by)
        except OSError as error:
            keys.append(None)
            bad[record.image_id] = f"{record.image}: {error.strerror}"
            continue
        keys.append(key)
        if key not in cache:
            missing.setdefault(key, index)

    def batches() -> Iterable[tuple[list[str], Tensor]]:
        pending = list(missing.items())
        for start in range(0, len(pending), batch_size):
            names, pictures = [], []
            for key, index in pending[start : start + batch_size]:
                try:
                    pictures.append(transform(records[index].open(), key))
                    names.append(key)
                except ImageError as error:
                    unreadable[key] = str(error)
            if progress is not None:
                progress(min(start + batch_size, len(pending)), len(pending))
            if pictures:
                yield names, extract(torch.stack(pictures))

    if missing:
        cache.extend(batches())
    # Records with the very same unreadable bytes share a key; each is reported.
    bad |= {record.image_id: unreadable[k] for record, k in zip(records, keys, strict=True) if k in unreadable}
    return [key if key is not None and key in cache else None for key in keys], bad
