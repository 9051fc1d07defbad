"""Captioned pictures as records, and what every reader of them shares: cleaning, counting, checking, splitting.

Nothing is dropped, merged or changed without a count: `FileSource.report` holds the counts, the log tells them.
"""

from __future__ import annotations

import hashlib
import logging
import os
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from PIL import Image

from vitcap.data.images import load_image
from vitcap.data.reading import clean_caption, existing_folder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CaptionRecord:
    """One picture with its captions.

    image_id: unique in its source. image: the file, or a picklable callable that draws the picture.
    captions: clean text, one line each. label: class index, if the source has classes.
    """

    image_id: int | str
    image: Path | Callable[[], Image.Image]
    captions: tuple[str, ...]
    label: int | None = None

    def open(self) -> Image.Image:
        """The upright RGB picture; ImageError if the file is none."""
        return load_image(self.image) if isinstance(self.image, Path) else self.image()


class Source(Protocol):
    """Where records come from."""

    name: str

    def splits(self) -> tuple[str, ...]:
        """Names that `split` takes: train, val, test, and others if the format has them."""
        ...

    def split(self, name: str) -> list[CaptionRecord]:
        """The records of a split; no image is in two splits."""
        ...


class Entry(NamedTuple):
    """One picture as an annotation file tells it: captions unchecked, `where` for messages ("line 7", "image 42").

    lines: of the file, one for each caption, where it has lines.
    """

    image_id: int | str
    path: Path
    captions: Sequence[object]
    where: str
    lines: Sequence[int] = ()

    def place(self, index: int) -> str:
        """Where a caption of it stands."""
        return f"{self.where.rpartition(' line ')[0]} line {self.lines[index]}" if self.lines else self.where


class FileSource(ABC):
    """A source on disk; subclasses say which splits there are and list their entries.

    val_fraction: for data without a val split: this share of the train images, at least one, becomes val. An image's
        place depends on its id and split_seed only, through a hash, so that adding images moves few others.
    on_missing: "error" or "skip" for pictures that are not on disk.
    report: counts over the splits read so far: images, captions, and everything skipped or repaired.
    places: where in the files that was, as far as a reader tells.
    refused: None; or a list, to which readers then add what they would stop at, and go on without that record.
    """

    name = "files"

    def __init__(
        self, root: str | os.PathLike[str] | None, *, val_fraction: float | None, split_seed: int, on_missing: str
    ) -> None:
        self.root = existing_folder(root)
        if val_fraction is not None and not (isinstance(val_fraction, int | float) and 0 < val_fraction < 1):
            raise ValueError(f"val_fraction {val_fraction}: a share between 0 and 1 is wanted")
        if on_missing not in ("error", "skip"):
            raise ValueError(f"on_missing {on_missing!r}: choose error or skip")
        self.val_fraction, self.split_seed, self.on_missing = val_fraction, split_seed, on_missing
        self.report: Counter[str] = Counter()
        self.places: defaultdict[str, list[str]] = defaultdict(list)
        self.refused: list[str] | None = None
        self._read: dict[str, list[CaptionRecord]] = {}

    @abstractmethod
    def _own_splits(self) -> tuple[str, ...]:
        """Splits that the files themselves have."""

    @abstractmethod
    def _entries(self, split: str) -> list[Entry]:
        """The pictures of one of `_own_splits`, each id once."""

    def _note(self, what: str, where: str, count: int = 1) -> None:
        """Count something that a reader has skipped or repaired; the first of its kind is logged with its place."""
        if count and what not in self.report:
            log.warning("%s: %s (counted from here on)", where, what)
        if count:
            self.places[what].append(where)
        self.report[what] += count

    def _refuse(self, what: str) -> None:
        """A record that cannot be taken: ValueError, or a line in `refused`."""
        if self.refused is None:
            raise ValueError(what)
        self.refused.append(what)

    def _why_not(self, split: str) -> str:
        """What would have to be there for a split that is not."""
        return ""

    def splits(self) -> tuple[str, ...]:
        """Splits that can be read, the one carved out by val_fraction included."""
        own = self._own_splits()
        return (*own, "val") if self.val_fraction is not None and "val" not in own else own

    def split(self, name: str) -> list[CaptionRecord]:
        """The records of a split. Raises ValueError or FileNotFoundError, naming file and record, for bad data."""
        own = self._own_splits()
        carve = self.val_fraction is not None and name in ("train", "val")
        if carve and ("val" in own or "train" not in own):
            raise ValueError(
                f"{self.root}: val_fraction is for data with a train and no val split; this has {_listed(own)}"
            )
        if not carve and name not in own:
            hint = "; set data.source.val_fraction to take some of train" if name == "val" else ""
            if name == "train" and "all" in own:
                hint = ", or set data.source.val_fraction to make train and val of it"
            raise ValueError(
                f"{self.root}: no split {name!r}; there is {_listed(own) or 'none'}{self._why_not(name)}{hint}"
            )
        if name not in self._read:
            if carve:
                self._read.update(self._carve(self._finish("train", self._entries("train"))))
            else:
                self._read[name] = self._finish(name, self._entries(name))
            self._check_disjoint(name)
        return list(self._read[name])

    def _carve(self, records: list[CaptionRecord]) -> dict[str, list[CaptionRecord]]:
        assert self.val_fraction is not None
        count = max(1, round(self.val_fraction * len(records)))
        if count >= len(records):
            raise ValueError(f"{self.root}: val_fraction {self.val_fraction} of {len(records)} images leaves none")

        def place(record: CaptionRecord) -> bytes:
            return hashlib.sha256(f"{self.split_seed}:{record.image_id}".encode(errors="replace")).digest()

        chosen = {record.image_id for record in sorted(records, key=place)[:count]}
        log.warning(
            "%s: val is %d of the %d train images (val_fraction=%g, split_seed=%d), not an official split",
            *(self.root, count, len(records), self.val_fraction, self.split_seed),
        )
        return {
            "train": [record for record in records if record.image_id not in chosen],
            "val": [record for record in records if record.image_id in chosen],
        }

    def _finish(self, split: str, entries: list[Entry]) -> list[CaptionRecord]:
        """Clean the captions, drop with a count what cannot be used, check that the pictures are there."""
        counts: Counter[str] = Counter(images=0, captions=0)
        examples: dict[str, str] = {}
        records, missing, listing = [], [], _Listing()
        for entry in entries:
            if _is_broken(f"{entry.image_id}/{entry.path.name}"):
                told = ascii(f"{entry.where}: {entry.path.name}, id {entry.image_id}")
                self._refuse(f"{self.root}: a name or id with broken characters, which no file can hold: {told}")
                continue
            captions = []
            for index, raw in enumerate(entry.captions):
                caption, remark = clean_caption(raw)
                if remark:
                    counts[remark] += 1
                    examples.setdefault(remark, entry.place(index))
                if caption is not None:
                    captions.append(caption)
            if not captions:
                counts["images without captions skipped"] += 1
                examples.setdefault("images without captions skipped", entry.where)
            elif entry.path not in listing:
                missing.append(f"{entry.path} ({entry.where})")
            else:
                counts["repeated captions kept"] += len(captions) - len(set(captions))
                counts["images"] += 1
                counts["captions"] += len(captions)
                records.append(CaptionRecord(entry.image_id, entry.path, tuple(captions)))
        if missing and self.on_missing == "error":
            raise FileNotFoundError(
                f"{self.root}: {len(missing)} of {len(entries)} {split} images are not there: {_first(missing)}; "
                "check the image folder, or set data.source.on_missing=skip"
            )
        if missing:
            counts["missing images skipped"] = len(missing)
            examples["missing images skipped"] = _first(missing)
        counts = +counts
        shown = {
            what: f"{n} {what}" + (f" (as {examples[what]})" if what in examples else "") for what, n in counts.items()
        }
        told = ", ".join(shown.values())
        log.log(logging.WARNING if examples else logging.INFO, "%s, %s: %s", self.root, split, told)
        self.report.update(counts)
        if not records:
            raise ValueError(f"{self.root}: split {split!r} has no image with a caption ({told or 'nothing listed'})")
        return records

    def _check_disjoint(self, name: str) -> None:
        here = {record.image for record in self._read[name]}
        for other, records in self._read.items():
            if other != name and (both := [str(record.image) for record in records if record.image in here]):
                raise ValueError(f"{self.root}: {len(both)} images are in {other} and in {name}: {_first(both)}")


class _Listing:
    """Is a file there? One listing for each folder instead of one question for each file."""

    def __init__(self) -> None:
        self._names: dict[Path, set[str]] = {}

    def __contains__(self, path: Path) -> bool:
        if path.parent not in self._names:
            self._names[path.parent] = set(os.listdir(path.parent)) if os.path.isdir(path.parent) else set()
        return path.name in self._names[path.parent] or os.path.isfile(path)  # Path.is_file raises for too long names


def _is_broken(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)  # half of a pair of UTF-16


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _first(items: Sequence[str], count: int = 3) -> str:
    return ", ".join(items[:count]) + (f" and {len(items) - count} more" if len(items) > count else "")
