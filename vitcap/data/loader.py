"""Records to batches: dataset, collation, and a loader that can stop anywhere and go on at the same place."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from vitcap.data.images import ImageError
from vitcap.data.records import CaptionRecord
from vitcap.data.tokenizer import Tokenizer
from vitcap.machine import map_large_blocks
from vitcap.processes import Share, any_of
from vitcap.types import BOS, EOS, PAD, Batch

log = logging.getLogger(__name__)

Place = tuple[int, int]
"""(epoch, index): what the sampler hands to the dataset, so that random choices depend on nothing else."""


def _generator(seed: int) -> torch.Generator:
    """Generator of a seed; torch takes 64 bits: a seed such as 20240131 times the factors below is more."""
    return torch.Generator().manual_seed(seed % 2**63)


def place_generator(seed: int, place: Place) -> torch.Generator:
    """Generator of the random choices for one record in one epoch."""
    epoch, index = place
    return _generator((seed * 1_000_003 + epoch) * 1_000_003 + index)


@dataclass(frozen=True)
class Sample:
    """One record, ready for collation. captions: token ids with BOS and EOS, at most G of them. source: ids without."""

    id: int | str
    image: Tensor | None = None
    features: Tensor | None = None
    captions: tuple[tuple[int, ...], ...] = ()
    label: int | None = None
    source: tuple[int, ...] | None = None


@dataclass(frozen=True)
class BadRecord:
    """A record that could not be read, with the reason; it travels to the main process instead of an exception."""

    id: int | str
    reason: str


def draw_some(texts: tuple[str, ...], count: int, generator: torch.Generator) -> tuple[str, ...]:
    """All of them if there are no more than `count`, else `count` drawn at random."""
    if len(texts) <= count:
        return texts
    return tuple(texts[i] for i in torch.randperm(len(texts), generator=generator)[:count].tolist())


def framed(tokenizer: Tokenizer, text: str, max_length: int) -> tuple[int, ...]:
    """Token ids of a text between BOS and EOS; what is longer than max_length, both included, is cut."""
    return (BOS, *tokenizer.encode(text)[: max_length - 2], EOS)


class CaptionDataset(Dataset[Sample | BadRecord]):
    """Records, read and tokenised one at a time.

    transform: (picture, generator) -> (3, H, W) uint8. features: (record position, generator) -> (N, C), in place of
    pictures. captions_per_image: G; of more captions G are drawn anew each epoch. max_length: tokens of a caption,
    BOS and EOS included; longer ones are cut.
    """

    def __init__(
        self,
        records: Sequence[CaptionRecord],
        tokenizer: Tokenizer | None,
        *,
        transform: Callable[[Image.Image, torch.Generator], Tensor],
        features: Callable[[int, torch.Generator], Tensor] | None = None,
        captions_per_image: int = 5,
        max_length: int = 40,
        seed: int = 0,
    ) -> None:
        self.records, self.tokenizer = records, tokenizer
        self.transform, self.features = transform, features
        self.captions_per_image, self.max_length, self.seed = captions_per_image, max_length, seed

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, place: Place) -> Sample | BadRecord:
        return self.sample(self.records[place[1]], place)

    def sample(self, record: CaptionRecord, place: Place) -> Sample | BadRecord:
        """A record, with the random choices of its place."""
        generator = place_generator(self.seed, place)
        image = features = None
        if self.features is not None:
            features = self.features(place[1], generator)
        else:
            try:
                image = self.transform(record.open(), generator)
            except ImageError as error:
                return BadRecord(record.image_id, str(error))
        captions: tuple[tuple[int, ...], ...] = ()
        if self.tokenizer is not None:
            chosen = draw_some(record.captions, self.captions_per_image, generator)
            captions = tuple(framed(self.tokenizer, caption, self.max_length) for caption in chosen)
        return Sample(record.image_id, image, features, captions, record.label)


def collate(samples: Sequence[Sample | BadRecord]) -> tuple[Batch | None, list[BadRecord]]:
    """Samples to one batch (None if none could be read), and the records that could not be read.

    Captions and sources are padded with PAD to the longest, images with fewer captions with rows of PAD.
    """
    bad = [s for s in samples if isinstance(s, BadRecord)]
    good = [s for s in samples if isinstance(s, Sample)]
    if not good:
        return None, bad
    images = torch.stack([s.image for s in good if s.image is not None]) if good[0].image is not None else None
    features = (
        torch.stack([s.features for s in good if s.features is not None]) if good[0].features is not None else None
    )
    captions = source = None
    groups = max(len(s.captions) for s in good)
    if groups:
        length = max(len(c) for s in good for c in s.captions)
        captions = torch.full((len(good), groups, length), PAD)
        for row, sample in enumerate(good):
            for group, caption in enumerate(sample.captions):
                captions[row, group, : len(caption)] = torch.tensor(caption)
    if good[0].source is not None:
        source = pad_sequence([torch.tensor(s.source) for s in good], batch_first=True, padding_value=PAD)
    labels = [s.label for s in good]
    return (
        Batch(
            ids=tuple(s.id for s in good),
            images=images,
            features=features,
            captions=captions,
            source=source,
            labels=None if any(label is None for label in labels) else torch.tensor(labels),
        ),
        bad,
    )


class EpochBatches:
    """Batch sampler whose order is a function of (seed, epoch) alone, and that can start in the middle of an epoch.

    lengths: of the records; batches of a shuffled epoch then hold records of similar length, which wastes less on
    padding: every POOL batches in random order are sorted by length, and the batches shuffled again.

    share: of the processes that train or evaluate together. A shuffled batch is split between them, and may leave some
    without a record; of an unshuffled order each takes every so-manieth batch whole, so that what a batch gives does
    not depend on their number. even: with empty batches where it takes them to give all processes equally many.
    """

    POOL = 50

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int = 0,
        lengths: Sequence[int] | None = None,
        share: Share = (0, 1),
        even: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch size must be at least 1, got {batch_size}")
        self.size, self.batch_size, self.shuffle, self.seed, self.lengths = size, batch_size, shuffle, seed, lengths
        self.share, self.even = share, even
        self.layout: dict[str, int] = {}  # what has to be the same for an epoch to go on where it was
        self.epoch = 0
        self.start = 0

    @property
    def sampler(self) -> EpochBatches:
        """Itself: Lightning calls `set_epoch` of a batch sampler's sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning at the start of every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        batches = -(-self.size // self.batch_size)
        rank, world = self.share
        return batches if self.shuffle else -(-(batches if self.even else max(batches - rank, 0)) // world)

    def __iter__(self) -> Iterator[list[Place]]:
        order = list(range(self.size))
        if self.shuffle:
            generator = _generator(self.seed * 1_000_003 + self.epoch)
            order = torch.randperm(self.size, generator=generator).tolist()
        if self.shuffle and self.lengths is not None:
            pool = self.POOL * self.batch_size
            order = [
                i for p in range(0, self.size, pool) for i in sorted(order[p : p + pool], key=self.lengths.__getitem__)
            ]
        batches = [order[start : start + self.batch_size] for start in range(0, self.size, self.batch_size)]
        if self.shuffle and self.lengths is not None:
            batches = [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
        rank, world = self.share
        if self.shuffle:
            batches = [batch[rank::world] for batch in batches]
        else:
            batches = (batches + [[]] * (-len(batches) % world if self.even else 0))[rank::world]
        for batch in batches[self.start :]:
            yield [(self.epoch, i) for i in batch]


def _prepare(worker: int) -> None:
    map_large_blocks()
    # Ctrl-C reaches every process of a terminal, and a scheduler's SIGTERM every process of a job; a worker that dies
    # of it takes the checkpoint of the main one along. At the program's end a worker that hangs is sent a second one.
    signal.signal(signal.SIGTERM, lambda number, frame: signal.signal(number, signal.SIG_DFL))
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class BatchLoader(DataLoader[Any]):
    """DataLoader of batches that counts what it has handed out, so that training resumes at the next batch.

    on_bad: "error" ends with an ImageError at the first unreadable record; "skip" leaves it out, logs it once and
    keeps it in `bad` (id -> reason).
    A batch without a record that can be read is left out; where processes go in step (they train, or the batches are
    `even`), one of this process alone is an empty Batch.
    """

    def __init__(
        self,
        dataset: Dataset[Sample | BadRecord],
        batches: EpochBatches,
        *,
        on_bad: str = "error",
        **options: Any,
    ) -> None:
        if on_bad not in ("error", "skip"):
            raise ValueError(f"on_bad must be 'error' or 'skip', got {on_bad!r}")
        # A generator of its own: the default would draw its base seed from the global one that drives dropout.
        options |= {"generator": torch.Generator(), "worker_init_fn": _prepare}
        super().__init__(dataset, batch_sampler=batches, collate_fn=collate, **options)
        self.batches, self.on_bad = batches, on_bad
        self.bad: dict[int | str, str] = {}
        self._done = 0

    @property
    def number(self) -> int:
        """Of the batch handed out last, in the order of the epoch, however many processes share it."""
        rank, world = self.batches.share
        return self._done - 1 if self.batches.shuffle else (self._done - 1) * world + rank

    def _seen(self, batch: Batch | None) -> bool:
        """Whether any of the processes that go in step has a record of a batch."""
        world = self.batches.share[1]
        if world == 1 or self.on_bad == "error" or not self.batches.shuffle:
            return batch is not None or (world > 1 and (self.batches.shuffle or self.batches.even))
        return any_of(batch is not None)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        self._done = self.batches.start
        whole, some = self.batches.shuffle and not self._done, False
        for batch, bad in super().__iter__():
            self.batches.start = 0  # the sampler has read it; the next epoch starts at its beginning
            self._done += 1
            for record in bad:
                if self.on_bad == "error":
                    raise ImageError(f"{record.reason} (data.on_bad=skip leaves such records out)")
                if record.id not in self.bad:
                    log.warning("left out: %s", record.reason)
                    self.bad[record.id] = record.reason
            if self._seen(batch):
                some = True
                yield Batch(ids=()) if batch is None else batch
        if whole and self.bad and not some:
            first = next(iter(self.bad.values()))
            raise ValueError(f"none of the {len(self.bad)} training records can be read, the first: {first}")

    def state_dict(self) -> dict[str, int]:
        """Batches of this epoch that were handed out."""
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after that many batches."""
        self.batches.start = self._done = state["done"] % max(len(self.batches), 1)
