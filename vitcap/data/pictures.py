"""The data module of pictures: records, tokenizer, feature cache, and the loaders of training and evaluation."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from PIL import Image, ImageOps
from torch import Tensor

from vitcap.data.check_training import require_check
from vitcap.data.features import FeatureCache, fill
from vitcap.data.loader import CaptionDataset, EpochBatches
from vitcap.data.module import RecordData, require_options, train_tokenizer
from vitcap.data.records import Source
from vitcap.data.shards import ShardRecords, ShardSource
from vitcap.data.shards_stream import TapeBatches, TapeDataset
from vitcap.data.tokenizer import Tokenizer
from vitcap.data.transforms import Preprocess
from vitcap.processes import Share, first
from vitcap.types import DataSpec, require_number

log = logging.getLogger(__name__)


class CaptionData(RecordData):
    """Captioned or labelled pictures for training and evaluation.

    source: callable that makes the Source; root is handed to it unless it is None.
    batch_size: images (each with its captions) of a training batch.
    captions_per_image: G. tokenizer: "word" or "bpe", None for no captions; min_count, vocab_size: of its vocabulary.
    max_length: longest caption in tokens, BOS and EOS included; what is longer is cut, and the share is logged.
    resize, crop_pct: override how the encoder's weights want pictures fitted ("crop", "squash" or "letterbox").
    augment: callable (size=, interpolation=) -> random training transform, None for the evaluation transform.
    cache: folder for features of the encoder's frozen part; None computes them anew from the pictures each time.
    cache_key: "bytes" or "mtime". cache_flip: also cache mirrored pictures. cache_views: also cache so many draws of
    `augment` of each picture. Training takes one of a picture's views at random each time.
    check: "auto" looks at the data before training, "off" does not; see check_training.
    eval_batch_size, num_workers, worker_start, on_bad, train_limit, val_limit, seed: see RecordData.
    """

    def __init__(
        self,
        source: Callable[..., Source],
        root: str | None = None,
        *,
        batch_size: int = 32,
        eval_batch_size: int = 64,
        num_workers: int = 0,
        worker_start: str | None = None,
        captions_per_image: int = 5,
        tokenizer: str | None = "word",
        min_count: int = 5,
        vocab_size: int = 10000,
        max_length: int = 40,
        resize: str | None = None,
        crop_pct: float | None = None,
        augment: Callable[..., Any] | None = None,
        cache: str | None = None,
        cache_key: str = "bytes",
        cache_flip: bool = False,
        cache_views: int = 0,
        on_bad: str = "error",
        check: str = "auto",
        train_limit: int | None = None,
        val_limit: int | None = None,
        seed: int = 0,
    ) -> None:
        require_options(
            captions_per_image=(captions_per_image, 1),
            min_count=(min_count, 1),
            vocab_size=(vocab_size, 5),  # the special tokens and a word
            max_length=(max_length, 3),  # start, a word, end
        )
        require_number("data.cache_views", cache_views, 0, whole=True)
        if cache is not None and augment is not None and not cache_views:
            raise ValueError(
                "cached features cannot be augmented anew each epoch: give data.cache_views=4, so many random views of "
                "each picture to be cached, or set data.augment=null or data.cache=null"
            )
        if cache_views and (cache is None or augment is None):
            needed = "data.cache=FOLDER" if cache is None else "data.augment, the random transform"
            raise ValueError(f"data.cache_views={cache_views} needs {needed}")
        super().__init__(
            source() if root is None else source(root),
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            worker_start=worker_start,
            on_bad=on_bad,
            train_limit=train_limit,
            val_limit=val_limit,
            seed=seed,
        )
        if cache is not None and isinstance(self.source, ShardSource):
            raise ValueError("data.cache keeps features of picture files, not of data=shards: set data.cache=null")
        self.check = require_check(check)
        self.captions_per_image, self.min_count, self.max_length = captions_per_image, min_count, max_length
        self._tokenizer_options: dict[str, Any] = {"kind": tokenizer, "min_count": min_count, "vocab_size": vocab_size}
        self.resize, self.crop_pct, self.augment = resize, crop_pct, augment
        self.cache, self.cache_key, self.cache_flip, self.cache_views = cache, cache_key, cache_flip, cache_views
        self.preprocess: Preprocess | None = None
        self._features: dict[str, Callable[[int, torch.Generator], Tensor]] = {}

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """Vocabulary of the training captions."""
        if self._tokenizer_options["kind"] is None:
            return None
        records, options = self.records("train"), self._tokenizer_options

        def make(captions: Sequence[str]) -> Tokenizer:
            return train_tokenizer(captions, "captions", max_length=self.max_length, **options)

        if isinstance(records, ShardRecords):
            return records.tokenizer(options, lambda: make(records.captions))
        return make([caption for record in records for caption in record.captions])

    def references(self, split: str) -> dict[int | str, tuple[str, ...]]:
        """Captions of every picture of a split. Raises ValueError for an id that is there twice, as in some shards."""
        found = {record.image_id: record.captions for record in self.records(split)}
        if len(found) < len(self.records(split)):
            raise ValueError(f"data={self.source.name}, {split}: an id is there twice: give each picture its own")
        return found

    @property
    def spec(self) -> DataSpec:
        """Sizes that the model takes from the data."""
        return DataSpec(vocab_size=None if self.tokenizer is None else self.tokenizer.vocab_size)

    def fit_to(self, wanted: dict[str, Any]) -> Preprocess:
        """Take over the preprocessing that the encoder's weights expect, with this data's own resize rule."""
        changes = {"mode": self.resize, "crop_pct": self.crop_pct}
        self.preprocess = Preprocess.from_dict({**wanted, **{k: v for k, v in changes.items() if v is not None}})
        return self.preprocess

    def cache_features(
        self,
        splits: Sequence[str],
        *,
        fingerprint: str,
        extract: Callable[[Tensor], Tensor],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Fill the feature cache for these splits; their loaders then give features instead of images.

        fingerprint: of the trunk's weights. extract: (B, 3, H, W) uint8 -> (B, N, C). Unreadable pictures are left
        out with on_bad="skip" and an error otherwise.
        """
        assert self.cache is not None
        for split in splits:
            views: list[tuple[FeatureCache, list[str | None]]] = []
            for view, transform in self._transforms(train=split == "train"):
                identity = {"trunk": fingerprint, **view}
                work = partial(
                    fill,
                    FeatureCache(self.cache, identity),
                    self.records(split),
                    extract=extract,
                    transform=transform,
                    key_by=self.cache_key,
                    batch_size=self.eval_batch_size,
                    progress=progress,
                )
                keys, bad = first(work)  # of several processes one computes, and all read
                cache = FeatureCache(self.cache, identity)
                if bad and self.on_bad == "error":
                    names = "; ".join(list(bad.values())[:3])
                    raise ValueError(f"{len(bad)} pictures cannot be read: {names} (data.on_bad=skip leaves them out)")
                for reason in bad.values():
                    log.warning("left out: %s", reason)
                self.bad[split].update(bad)
                views.append((cache, keys))
            usable = [i for i in range(len(self.records(split))) if all(keys[i] is not None for _, keys in views)]
            self._records[split] = [self.records(split)[i] for i in usable]
            self._features[split] = _Views([(cache, [str(keys[i]) for i in usable]) for cache, keys in views])

    def _transforms(self, *, train: bool) -> Iterator[tuple[dict[str, Any], Callable[[Image.Image, str], Tensor]]]:
        """What makes a cached view what it is, in plain JSON types, and its transform of (picture, key)."""
        assert self.preprocess is not None
        preprocess = self.preprocess
        plain = {"preprocess": preprocess.to_dict()}
        yield {**plain, "mirror": False}, lambda image, key: preprocess(image)
        if train and self.cache_flip:
            yield {**plain, "mirror": True}, lambda image, key: preprocess(ImageOps.mirror(image))
        if train and self.cache_views:
            augment = self._random()
            for view in range(self.cache_views):
                # Drawn from the picture itself, so that a run that was broken off goes on with the same views.
                yield {"augment": f"{augment!r}", "view": view}, partial(_drawn, augment, view)

    def _random(self) -> Callable[[Image.Image, torch.Generator], Tensor]:
        """The random transform, to what the encoder's weights want. Raises ValueError for what makes none."""
        assert self.preprocess is not None
        assert self.augment is not None
        try:
            return self.augment(size=self.preprocess.size, interpolation=self.preprocess.interpolation)
        except TypeError as error:
            wanted = "{_target_: vitcap.data.transforms.Augment, _partial_: true, scale: [0.5, 1.0]}"
            raise ValueError(f"data.augment={self.augment}: it makes no transform ({error}); give {wanted}") from None

    def batches(self, split: str, size: int, *, train: bool, share: Share, even: bool) -> EpochBatches:
        """As of any data; training reads shards from front to back."""
        records = self.records(split)
        if not train or not isinstance(records, ShardRecords):
            return super().batches(split, size, train=train, share=share, even=even)
        options: dict[str, Any] = {"seed": self.seed, "share": share, "workers": self.num_workers, **records.options}
        return TapeBatches(records.counts, size, **options)

    def dataset(self, split: str, train: bool) -> CaptionDataset:
        """Samples of a split; its training pictures are augmented."""
        assert self.preprocess is not None, "fit_to comes first"
        transform: Callable[[Image.Image, torch.Generator], Tensor] = _Fixed(self.preprocess)
        if train and self.augment is not None and self.cache is None:
            transform = self._random()
        options: dict[str, Any] = {"transform": transform, "features": self._features.get(split), "seed": self.seed}
        options |= {"captions_per_image": self.captions_per_image, "max_length": self.max_length}
        records = self.records(split)
        if isinstance(records, ShardRecords):
            if train:
                return TapeDataset(records.shards, records.counts, self.tokenizer, **options)
            records = list(records)
        return CaptionDataset(records, self.tokenizer, **options)


def _drawn(augment: Callable[..., Tensor], view: int, image: Image.Image, key: str) -> Tensor:
    digits = hashlib.sha256(f"{key} {view}".encode()).hexdigest()
    return augment(image, torch.Generator().manual_seed(int(digits[:15], 16)))


class _Fixed:
    """The evaluation transform under the signature of the random ones."""

    def __init__(self, preprocess: Preprocess) -> None:
        self.preprocess = preprocess

    def __call__(self, image: Image.Image, generator: torch.Generator) -> Tensor:
        return self.preprocess(image)


class _Views:
    """Cached features of each record, from one of several views (plain, mirrored) at random."""

    def __init__(self, views: list[tuple[FeatureCache, list[str]]]) -> None:
        self.views = views

    def __call__(self, index: int, generator: torch.Generator) -> Tensor:
        view = int(torch.randint(len(self.views), (), generator=generator)) if len(self.views) > 1 else 0
        cache, keys = self.views[view]
        return cache[keys[index]]
