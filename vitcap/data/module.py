"""The LightningDataModule: one source of caption records, its tokenizer, and the loaders of training and evaluation."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import lightning as L
import torch
from PIL import Image, ImageOps
from torch import Tensor

from vitcap.data.features import FeatureCache, fill
from vitcap.data.loader import BatchLoader, CaptionDataset, EpochBatches
from vitcap.data.records import CaptionRecord, Source
from vitcap.data.tokenizer import Tokenizer
from vitcap.data.transforms import Preprocess
from vitcap.types import DataSpec, require_number

log = logging.getLogger(__name__)


class CaptionData(L.LightningDataModule):
    """Captioned pictures for training and evaluation.

    source: callable that makes the Source; root is handed to it unless it is None.
    batch_size: images (each with its captions) of a training batch; eval_batch_size: of an evaluation batch.
    captions_per_image: G. tokenizer: "word" or "bpe"; min_count, vocab_size: of its vocabulary.
    max_length: longest caption in tokens, BOS and EOS included; what is longer is cut, and the share is logged.
    resize, crop_pct: override how the encoder's weights want pictures fitted ("crop", "squash" or "letterbox").
    augment: callable (size=, interpolation=) -> random training transform, None for the evaluation transform.
    cache: folder for features of the encoder's frozen part; None computes them anew from the pictures each time.
    cache_key: "bytes" or "mtime". cache_flip: also cache mirrored pictures and train on both at random.
    on_bad: "error" or "skip" for pictures that cannot be read. train_limit, val_limit: first so many records only.
    seed: of the order of the records and of every random choice.

    bad: split -> id -> reason of the pictures left out so far. Raises ValueError for options out of range.
    """

    def __init__(
        self,
        source: Callable[..., Source],
        root: str | None = None,
        *,
        batch_size: int = 32,
        eval_batch_size: int = 64,
        num_workers: int = 0,
        captions_per_image: int = 5,
        tokenizer: str = "word",
        min_count: int = 5,
        vocab_size: int = 10000,
        max_length: int = 40,
        resize: str | None = None,
        crop_pct: float | None = None,
        augment: Callable[..., Any] | None = None,
        cache: str | None = None,
        cache_key: str = "bytes",
        cache_flip: bool = False,
        on_bad: str = "error",
        train_limit: int | None = None,
        val_limit: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for option, value, low in (
            ("batch_size", batch_size, 1),
            ("eval_batch_size", eval_batch_size, 1),
            ("num_workers", num_workers, 0),
            ("captions_per_image", captions_per_image, 1),
            ("min_count", min_count, 1),
            ("vocab_size", vocab_size, 5),  # the special tokens and a word
            ("max_length", max_length, 3),  # start, a word, end
            ("train_limit", train_limit, 1),
            ("val_limit", val_limit, 1),
        ):
            if value is not None or not option.endswith("_limit"):
                require_number(f"data.{option}", value, low, whole=True)
        if on_bad not in ("error", "skip"):
            raise ValueError(f"data.on_bad={on_bad}: choose error or skip")
        if cache is not None and augment is not None:
            raise ValueError("cached features cannot be augmented: set data.augment=null or data.cache=null")
        self.source = source() if root is None else source(root)
        self.batch_size, self.eval_batch_size, self.num_workers = batch_size, eval_batch_size, num_workers
        self.captions_per_image, self.max_length, self.seed, self.on_bad = captions_per_image, max_length, seed, on_bad
        self._tokenizer_options: dict[str, Any] = {"kind": tokenizer, "min_count": min_count, "vocab_size": vocab_size}
        self.resize, self.crop_pct, self.augment = resize, crop_pct, augment
        self.cache, self.cache_key, self.cache_flip = cache, cache_key, cache_flip
        self.limits = {"train": train_limit, "val": val_limit}
        self.preprocess: Preprocess | None = None
        self._features: dict[str, Callable[[int, torch.Generator], Tensor]] = {}
        self._records: dict[str, Sequence[CaptionRecord]] = {}
        self.bad: defaultdict[str, dict[int | str, str]] = defaultdict(dict)
        self._train_loader: BatchLoader | None = None
        self._resume_at = {"done": 0}

    def records(self, split: str) -> Sequence[CaptionRecord]:
        """Records of a split, read once; cut to its limit."""
        if split not in self._records:
            limit = self.limits.get(split)
            records = self.source.split(split)
            self._records[split] = records if limit is None else records[:limit]
        return self._records[split]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Vocabulary of the training captions; logs its size, unknown words and captions that will be cut."""
        captions = [caption for record in self.records("train") for caption in record.captions]
        tokenizer = Tokenizer.train(captions, **self._tokenizer_options)
        sample = captions[:: max(len(captions) // 20000, 1)]
        lengths = [len(tokenizer.encode(caption)) + 2 for caption in sample]
        cut = sum(length > self.max_length for length in lengths) / len(lengths)
        unknown = tokenizer.unknown_share(sample)
        log.info(
            "%d training captions, vocabulary %d (%s), unknown %.2f %%, longer than %d tokens and cut %.2f %%",
            len(captions),
            tokenizer.vocab_size,
            tokenizer.kind,
            100 * unknown,
            self.max_length,
            100 * cut,
        )
        if unknown > 0.1:
            log.warning(
                "%.0f %% of the words are unknown to the vocabulary and can never be said: lower data.min_count=%d",
                100 * unknown,
                self._tokenizer_options["min_count"],
            )
        return tokenizer

    @property
    def spec(self) -> DataSpec:
        """Sizes that the model takes from the data."""
        return DataSpec(vocab_size=self.tokenizer.vocab_size)

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
        assert self.preprocess is not None
        preprocess = self.preprocess
        for split in splits:
            views: list[tuple[FeatureCache, list[str | None]]] = []
            mirrored = (False, True) if self.cache_flip and split == "train" else (False,)
            for mirror in mirrored:
                identity = {"trunk": fingerprint, "preprocess": preprocess.to_dict(), "mirror": mirror}
                cache = FeatureCache(self.cache, identity)
                transform = (lambda image: preprocess(ImageOps.mirror(image))) if mirror else preprocess
                keys, bad = fill(
                    cache,
                    self.records(split),
                    extract=extract,
                    transform=transform,
                    key_by=self.cache_key,
                    batch_size=self.eval_batch_size,
                    progress=progress,
                )
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

    def loader(self, split: str, *, train: bool = False) -> BatchLoader:
        """Loader of a split: shuffled and augmented for training, in order otherwise."""
        assert self.preprocess is not None, "fit_to comes first"
        records = self.records(split)
        transform: Callable[[Image.Image, torch.Generator], Tensor] = _Fixed(self.preprocess)
        if train and self.augment is not None:
            transform = self.augment(size=self.preprocess.size, interpolation=self.preprocess.interpolation)
        dataset = CaptionDataset(
            records,
            self.tokenizer,
            transform=transform,
            features=self._features.get(split),
            captions_per_image=self.captions_per_image,
            max_length=self.max_length,
            seed=self.seed,
        )
        batches = EpochBatches(
            len(records), self.batch_size if train else self.eval_batch_size, shuffle=train, seed=self.seed
        )
        return BatchLoader(
            dataset,
            batches,
            on_bad=self.on_bad,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
        )

    def train_dataloader(self) -> BatchLoader:
        """Shuffled; goes on where a resumed run stopped."""
        self._train_loader = self.loader("train", train=True)
        self._train_loader.load_state_dict(self._resume_at)
        return self._train_loader

    def state_dict(self) -> dict[str, int]:
        """How far the epoch is, for the checkpoint."""
        return self._train_loader.state_dict() if self._train_loader is not None else {"done": 0}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """The next training loader starts there."""
        self._resume_at = state_dict

    def val_dataloader(self) -> BatchLoader:
        """The val split in its own order."""
        return self.loader("val")


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
