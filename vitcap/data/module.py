"""What the data modules of pictures and of sentences share: splits of records, loaders that resume, vocabularies."""

from __future__ import annotations

import logging
import multiprocessing
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import lightning as L
import torch
from torch.utils.data import Dataset

from vitcap import processes
from vitcap.data.loader import BadRecord, BatchLoader, EpochBatches, Sample
from vitcap.data.tokenizer import Tokenizer
from vitcap.processes import Share
from vitcap.types import require_number

log = logging.getLogger(__name__)


class RecordData(L.LightningDataModule):
    """Records of one source in splits, and loaders of them that go on where a resumed run stopped.

    source: see the subclasses; `.split(name)` gives its records. batch_size, eval_batch_size: records of a batch.
    num_workers: processes that read records, 0 for the main one alone. worker_start: how they come to be: "fork",
    "spawn" or "forkserver"; None as Python does it on this system.
    on_bad: "error" or "skip" for records that cannot be read. train_limit, val_limit: first so many records only.
    seed: of the order of the records and of every random choice.

    bad: split -> id -> reason of the records left out so far. Raises ValueError for options out of range.
    """

    def __init__(
        self,
        source: Any,
        *,
        batch_size: int,
        eval_batch_size: int,
        num_workers: int,
        worker_start: str | None,
        on_bad: str,
        train_limit: int | None,
        val_limit: int | None,
        seed: int,
    ) -> None:
        super().__init__()
        require_options(batch_size=(batch_size, 1), eval_batch_size=(eval_batch_size, 1), num_workers=(num_workers, 0))
        limits = {"train": train_limit, "val": val_limit}
        require_options(**{f"{split}_limit": (limit, 1) for split, limit in limits.items() if limit is not None})
        if on_bad not in ("error", "skip"):
            raise ValueError(f"data.on_bad={on_bad}: choose error or skip")
        if worker_start not in (None, *(known := multiprocessing.get_all_start_methods())):
            raise ValueError(
                f"data.worker_start={worker_start}: this system has {', '.join(known)}, or null for its own"
            )
        self.worker_start = worker_start
        self.source = source
        self.batch_size, self.eval_batch_size, self.num_workers = batch_size, eval_batch_size, num_workers
        self.on_bad, self.limits, self.seed = on_bad, limits, seed
        self.bad: defaultdict[str, dict[int | str, str]] = defaultdict(dict)
        self._records: dict[str, Sequence[Any]] = {}
        self._train_loader: BatchLoader | None = None
        self._resume_at = {"done": 0}

    def records(self, split: str) -> Sequence[Any]:
        """Records of a split, read once; cut to its limit."""
        if split not in self._records:
            limit = self.limits.get(split)
            records = self.source.split(split)
            self._records[split] = records if limit is None else records[:limit]
        return self._records[split]

    def require_all(self, split: str, ids: Iterable[int | str]) -> None:
        """AssertionError unless `ids` are those of all records of a split, each as often as there, but of bad ones."""
        known: Iterable[Any] = (
            getattr(record, "image_id", getattr(record, "id", None)) for record in self.records(split)
        )
        bad = self.bad[split]
        wanted: Counter[Any] = Counter(i for i in known if i not in bad)
        found: Counter[Any] = Counter(i for i in ids if i not in bad)
        assert found == wanted, f"records left out or counted twice: {[*(wanted - found), *(found - wanted)][:3]}"

    def dataset(self, split: str, train: bool) -> Dataset[Sample | BadRecord]:
        """Samples of a split, as training or as evaluation wants them."""
        raise NotImplementedError

    def lengths(self, split: str) -> Sequence[int] | None:
        """Lengths of the records of a split, by which training batches are made; None for batches of any."""
        return None

    def batches(self, split: str, size: int, *, train: bool, share: Share, even: bool) -> EpochBatches:
        """The order in which the records of a split are read."""
        options: dict[str, Any] = {"seed": self.seed, "lengths": self.lengths(split), "share": share, "even": even}
        return EpochBatches(len(self.records(split)), size, shuffle=train, **options)

    def loader(self, split: str, *, train: bool = False, share: Share = (0, 1), even: bool = False) -> BatchLoader:
        """Loader of a split: shuffled and augmented for training, in order otherwise. share, even: see EpochBatches."""
        size = self.batch_size if train else self.eval_batch_size
        loader = BatchLoader(
            self.dataset(split, train),
            self.batches(split, size, train=train, share=share, even=even),
            on_bad=self.on_bad,
            num_workers=self.num_workers,
            multiprocessing_context=self.worker_start if self.num_workers else None,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
        )
        loader.bad = self.bad[split]  # known to all loaders of the split, and told at the end
        return loader

    def train_dataloader(self) -> BatchLoader:
        """Shuffled; goes on where a resumed run stopped. Processes split its batches."""
        self._train_loader = self.loader("train", train=True, share=processes.share())
        require_layout(self._resume_at, self._train_loader)
        self._train_loader.load_state_dict(self._resume_at)
        return self._train_loader

    def state_dict(self) -> dict[str, int]:
        """How far the epoch is, for the checkpoint."""
        loader = self._train_loader
        return {"done": 0} if loader is None else loader.state_dict() | loader.batches.layout

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """The next training loader starts there."""
        self._resume_at = state_dict

    def val_dataloader(self) -> BatchLoader:
        """The val split in its own order, its batches shared by the processes."""
        return self.loader("val", share=processes.share(), even=True)


def require_options(**options: tuple[object, int]) -> None:
    """ValueError that names the first of the data's options that is no whole number of at least its limit."""
    for name, (value, low) in options.items():
        require_number(f"data.{name}", value, low, whole=True)


def require_layout(state: dict[str, int], loader: BatchLoader) -> None:
    """ValueError where an epoch that was broken off would go on with other records than those that are left."""
    now = loader.batches.layout
    other = [name for name, value in now.items() if state.get(name) != value]
    if state["done"] % max(len(loader.batches), 1) and other:
        told = ", ".join(f"{name} {state.get(name, 'unknown')} (now {now[name]})" for name in other)
        raise ValueError(
            f"resume: the epoch that was broken off was read with other {told}: give the same again, for the order of "
            "samples in shards depends on it"
        )


def train_tokenizer(texts: Sequence[str], what: str, *, max_length: int, **options: Any) -> Tokenizer:
    """Vocabulary of training texts; logs its size, unknown words and texts that will be cut.

    what: the texts in a word, for the log. max_length: tokens of a text, BOS and EOS included. options: of
    Tokenizer.train.
    """
    tokenizer = Tokenizer.train(texts, **options)
    sample = texts[:: max(len(texts) // 20000, 1)]
    lengths = [len(tokenizer.encode(text)) + 2 for text in sample]
    unknown = tokenizer.unknown_share(sample)
    log.info(
        "%d training %s, vocabulary %d (%s), unknown %.2f %%, longer than %d tokens and cut %.2f %%",
        len(texts),
        what,
        tokenizer.vocab_size,
        tokenizer.kind,
        100 * unknown,
        max_length,
        100 * sum(length > max_length for length in lengths) / len(lengths),
    )
    if unknown > 0.1:
        log.warning(
            "%.0f %% of the words are unknown to the vocabulary and can never be said: lower data.min_count=%d",
            100 * unknown,
            options["min_count"],
        )
    return tokenizer
