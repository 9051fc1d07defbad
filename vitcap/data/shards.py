"""Captioned or labelled pictures in tar shards (WebDataset): training reads them as streams, all else as files."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from typing import Any, Generic, TypeVar, overload

from PIL import Image

from vitcap import processes
from vitcap.data import shards_index
from vitcap.data.images import Encoded, ImageError, load_image
from vitcap.data.reading import existing_folder
from vitcap.data.records import CaptionRecord
from vitcap.data.shards_index import Index
from vitcap.data.shards_sample import MOST_BYTES
from vitcap.data.shards_urls import SUFFIXES, ShardError, cache_folder, expand, is_remote, local, shard_name
from vitcap.data.tokenizer import Tokenizer
from vitcap.files import whole
from vitcap.types import require_number

log = logging.getLogger(__name__)
T = TypeVar("T")
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class ShardPicture:
    """A picture in a shard: calling it gives the upright RGB picture. at: (offset, bytes) in the unpacked shard.

    A shard at a web address is copied to the cache the first time. error: why there is none. sha256: of the shard, if
    known; offsets are those of this very file.
    """

    shard: str
    key: str
    at: tuple[int, int]
    error: str | None = None
    sha256: str | None = None

    def __call__(self) -> Image.Image:
        name = f"{shard_name(self.shard)}/{self.key}"
        if self.error is not None:
            raise ImageError(self.error)
        try:
            with open(local(self.shard, self.sha256), "rb") as file:
                file.seek(self.at[0])
                content = file.read(min(self.at[1], MOST_BYTES))
        except (OSError, ShardError) as error:
            raise ImageError(f"{name}: {error}") from None
        return load_image(Encoded(name, content))


class Lazy(Sequence[T], Generic[T]):
    """So many items that are read anew each time, so that memory does not grow with them."""

    def __init__(self, make: Callable[[], Iterator[T]], length: int) -> None:
        self._make, self._length = make, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return islice(self._make(), self._length)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        chosen = range(self._length)[place]
        if isinstance(chosen, int):
            return next(islice(self._make(), chosen, None))
        if chosen.step < 0:
            return list(self)[place]
        return list(islice(self._make(), chosen.start, chosen.stop, chosen.step))


class ShardRecords(Lazy[CaptionRecord]):
    """The samples of a split to be streamed, in the order of its index; `records[:n]` are the first n of them.

    shards, counts: where they are, and samples of each. The other options: see ShardSource.
    """

    def __init__(self, index: Index, *, limit: int | None = None, **options: Any) -> None:
        length = index.samples if limit is None else min(limit, index.samples)
        super().__init__(self._records, length)
        self.listing, self.options = index, options
        ends = [min(end, length) for end in accumulate(shard.samples for shard in index.shards)]
        self.shards = [shard.where for shard in index.shards]
        self.counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]

    def _records(self) -> Iterator[CaptionRecord]:
        return (record_of(self.listing, row) for row in self.listing.lines())

    @property
    def captions(self) -> Sequence[str]:
        """All captions."""
        if len(self) == self.listing.samples:
            count = sum(shard.captions for shard in self.listing.shards)
        else:
            count = sum(len(record.captions) for record in self)
        return Lazy(lambda: (caption for record in self for caption in record.captions), count)

    def __getitem__(self, place: Any) -> Any:
        first = isinstance(place, slice) and place.start in (None, 0) and place.step in (None, 1)
        if first and place.stop is not None and place.stop >= 0:
            return ShardRecords(self.listing, limit=min(place.stop, len(self)), **self.options)
        return super().__getitem__(place)

    def tokenizer(self, options: Mapping[str, Any], make: Callable[[], Tokenizer]) -> Tokenizer:
        """What `make` gives for these texts and options, kept in the cache."""
        wanted = json.dumps([self.listing.fingerprint, len(self), options], sort_keys=True)
        kept = cache_folder() / "tokenizers" / f"{hashlib.sha256(wanted.encode()).hexdigest()[:16]}.json"
        try:
            return Tokenizer.from_json(kept.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            made = make()
        try:
            with whole(kept) as part:
                part.write_text(made.to_json(), encoding="utf-8")
        except OSError as error:
            log.warning("%s: the vocabulary is not kept (%s)", kept, error.strerror)
        return made


def record_of(index: Index, row: Mapping[str, Any]) -> CaptionRecord:
    """The record of a line of an index's texts."""
    at, shard = row["at"] or (0, 0), index.shards[row["shard"]]
    picture = ShardPicture(shard.where, row["key"], (at[0], at[1]), row.get("error"), shard.sha256)
    return CaptionRecord(row["id"], picture, tuple(row["captions"]), row.get("label"))


class ShardSource:
    """WebDataset shards, of `scripts/prepare.py shards` or of others (img2dataset; KEY.jpg with KEY.txt, .json, .cls).

    root: a folder: with an index for each split (train.json, val.json, ...), or with a folder of shards for each, or
        with shards alone, which are then train.
    train, val, test: in place of it, a path, folder, pattern, range in braces, web address, pipe:COMMAND, or a list
        of them; or the path or address of an index. Relative paths start from root, where there is one.
    buffer: samples of which a worker draws the next at random. resample: shards are drawn with replacement, and an
        epoch is epoch_size samples (as many as there are, if left out); otherwise it is every sample once.

    train is streamed; other splits are read at any place, for which shards at web addresses are copied to the cache.
    Shards without an index are read through once, and the counts kept in the cache.
    """

    name = "shards"

    def __init__(
        self,
        root: str | None = None,
        *,
        train: str | Sequence[str] | None = None,
        val: str | Sequence[str] | None = None,
        test: str | Sequence[str] | None = None,
        buffer: int = 1000,
        resample: bool = False,
        epoch_size: int | None = None,
    ) -> None:
        self.root = None if root is None else existing_folder(root)
        require_number("data.source.buffer", buffer, 1, whole=True)
        if epoch_size is not None:
            require_number("data.source.epoch_size", epoch_size, 1, whole=True)
            if not resample:
                raise ValueError("data.source.epoch_size goes with data.source.resample=true; else data.train_limit")
        self._stream = {"buffer": buffer, "resample": resample, "size": epoch_size}
        given = {"train": train, "val": val, "test": test}
        self._where = {split: self._expand(where) for split, where in given.items() if where is not None}
        if not self._where:
            self._where = self._find()
        self._indices: dict[str, Index] = {}

    def _expand(self, given: str | Sequence[str]) -> list[str]:
        return expand(given if isinstance(given, str) else list(given), root=self.root)

    def _find(self) -> dict[str, list[str]]:
        if self.root is None:
            raise ValueError("no shards given: name their folder with data.root=, or data.source.train= and .val=")
        found = {}
        for split in SPLITS:
            if (self.root / f"{split}.json").is_file():
                found[split] = [str(self.root / f"{split}.json")]
            elif (self.root / split).is_dir():
                found[split] = expand(str(self.root / split))
        if not found and any(path.name.endswith(SUFFIXES) for path in self.root.iterdir()):
            found["train"] = expand(str(self.root))
        if not found:
            raise FileNotFoundError(
                f"{self.root}: neither an index (train.json) nor shards (*.tar) in it: `python scripts/prepare.py "
                "shards` writes them"
            )
        return found

    def splits(self) -> tuple[str, ...]:
        """Splits that are given or found."""
        return tuple(self._where)

    def index(self, split: str) -> Index:
        """What is known of the shards of a split. Raises ValueError for one that is not there."""
        if split not in self._where:
            raise ValueError(
                f"data=shards: no split {split!r}; there is {', '.join(self._where)}: name shards of its own with "
                f"data.source.{split}="
            )
        if split not in self._indices:
            where = self._where[split]
            if len(where) == 1 and where[0].endswith(".json"):
                made = shards_index.read(where[0])
            else:
                # One of several processes counts; what is kept then serves all that see the same cache.
                processes.first(lambda: shards_index.survey(where) and None)
                made = shards_index.survey(where)
            self._indices[split] = made
            log.info("shards, %s: %d pictures in %d shards", split, made.samples, len(made.shards))
        return self._indices[split]

    def split(self, name: str) -> Sequence[CaptionRecord]:
        """The records of a split: of train to be streamed, of others a list. Raises ValueError for ids that are there
        twice, and labels that are none of the classes."""
        index = self.index(name)
        if name == "train":
            return ShardRecords(index, **self._stream)
        if remote := [shard for shard in index.shards if is_remote(shard.where)]:
            processes.first(lambda: [str(local(shard.where, shard.sha256)) for shard in remote])
        records = [record_of(index, row) for row in index.lines()]
        captioned, labelled = [r for r in records if r.captions], [r for r in records if r.label is not None]
        if kept := captioned or labelled:
            if len(kept) < len(records):
                lacking = "captions" if captioned else "a class"
                log.warning("shards, %s: %d pictures without %s skipped", name, len(records) - len(kept), lacking)
            records = kept
        seen: dict[int | str, CaptionRecord] = {}
        for record in records:
            if record.image_id in seen:
                raise ValueError(
                    f"shards, {name}: the id {record.image_id!r} is there twice: give each picture its own"
                )
            seen[record.image_id] = record
        labels = self.__dict__.get("_classes")  # where they are asked for; to find them may take a pass over train
        if labels and (wrong := [r for r in records if r.label is not None and r.label >= len(labels)]):
            raise ValueError(f"shards, {name}: {wrong[0].image_id}: label {wrong[0].label}, of {len(labels)} classes")
        return records

    @cached_property
    def _classes(self) -> tuple[tuple[str, str], ...] | None:
        split = next(iter(self._where))
        index = self.index("train" if "train" in self._where else split)
        most = max((row["label"] for row in index.lines() if row.get("label") is not None), default=None)
        if index.classes is not None:
            if most is not None and most >= len(index.classes):
                raise ValueError(f"{index.texts}: label {most}, and the index names {len(index.classes)} classes")
            return index.classes
        return None if most is None else tuple((str(n), str(n)) for n in range(most + 1))

    @property
    def classes(self) -> tuple[str, ...]:
        """Class ids in the order of the labels; AttributeError where there are none, as of sources without classes."""
        if self._classes is None:
            raise AttributeError("these shards have no classes")
        return tuple(id_ for id_, _ in self._classes)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Likewise, to be read by people."""
        if self._classes is None:
            raise AttributeError("these shards have no classes")
        return tuple(name for _, name in self._classes)
