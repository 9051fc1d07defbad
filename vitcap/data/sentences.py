"""The data module of sequence-to-sequence tasks: source and target sentences, a tokenizer for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from torch.utils.data import Dataset

from vitcap.data.check_training import require_check
from vitcap.data.loader import BadRecord, Place, Sample, draw_some, framed, place_generator
from vitcap.data.module import RecordData, require_options, train_tokenizer
from vitcap.data.sequences import SequenceRecord
from vitcap.data.tokenizer import Tokenizer
from vitcap.types import DataSpec


class SentenceDataset(Dataset[Sample | BadRecord]):
    """Sentence pairs, tokenised one at a time.

    targets_per_source: G; of more target sentences G are drawn anew each epoch. max_length: tokens of a target, BOS
    and EOS included, and of a source, which has neither; what is longer is cut.
    """

    def __init__(
        self,
        records: Sequence[SequenceRecord],
        source_tokenizer: Tokenizer,
        tokenizer: Tokenizer,
        *,
        targets_per_source: int,
        max_length: int,
        seed: int,
    ) -> None:
        self.records, self.source_tokenizer, self.tokenizer = records, source_tokenizer, tokenizer
        self.targets_per_source, self.max_length, self.seed = targets_per_source, max_length, seed

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, place: Place) -> Sample | BadRecord:
        record = self.records[place[1]]
        source = tuple(self.source_tokenizer.encode(record.source)[: self.max_length])
        if not source:
            return BadRecord(record.id, f"{record.id}: no token is left of the source sentence {record.source!r}")
        targets = draw_some(record.targets, self.targets_per_source, place_generator(self.seed, place))
        captions = tuple(framed(self.tokenizer, target, self.max_length) for target in targets)
        return Sample(record.id, captions=captions, source=source)


class SentenceData(RecordData):
    """Source and target sentences for training and evaluation.

    source: callable that makes the source of SequenceRecords; root is handed to it unless it is None.
    tokenizer: "space" (tokens between blanks), "word" or "bpe", for both sides; min_count, vocab_size: of each
    vocabulary. targets_per_source, max_length: see SentenceDataset. check: see CaptionData. The others: see RecordData.
    """

    preprocess = None
    cache = None

    def __init__(
        self,
        source: Callable[..., Any],
        root: str | None = None,
        *,
        batch_size: int = 64,
        eval_batch_size: int = 128,
        num_workers: int = 0,
        worker_start: str | None = None,
        targets_per_source: int = 1,
        tokenizer: str = "space",
        min_count: int = 1,
        vocab_size: int = 10000,
        max_length: int = 50,
        on_bad: str = "error",
        check: str = "auto",
        train_limit: int | None = None,
        val_limit: int | None = None,
        seed: int = 0,
    ) -> None:
        require_options(
            targets_per_source=(targets_per_source, 1),
            min_count=(min_count, 1),
            vocab_size=(vocab_size, 5),
            max_length=(max_length, 3),
        )
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
        self.check = require_check(check)
        self.targets_per_source, self.min_count, self.max_length = targets_per_source, min_count, max_length
        self._tokenizer_options = {"kind": tokenizer, "min_count": min_count, "vocab_size": vocab_size}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Vocabulary of the training targets."""
        texts = [target for record in self.records("train") for target in record.targets]
        return train_tokenizer(texts, "target sentences", max_length=self.max_length, **self._tokenizer_options)

    @cached_property
    def source_tokenizer(self) -> Tokenizer:
        """Vocabulary of the training sources."""
        texts = [record.source for record in self.records("train")]
        return train_tokenizer(texts, "source sentences", max_length=self.max_length + 2, **self._tokenizer_options)

    @property
    def spec(self) -> DataSpec:
        """Sizes that the model takes from the data."""
        return DataSpec(self.tokenizer.vocab_size, self.source_tokenizer.vocab_size)

    def references(self, split: str) -> dict[int | str, tuple[str, ...]]:
        """Target sentences of every source sentence of a split."""
        return {record.id: record.targets for record in self.records(split)}

    def lengths(self, split: str) -> list[int]:
        """Words of each source sentence."""
        return [len(record.source.split()) for record in self.records(split)]

    def dataset(self, split: str, train: bool) -> SentenceDataset:
        """Samples of a split."""
        return SentenceDataset(
            self.records(split),
            self.source_tokenizer,
            self.tokenizer,
            targets_per_source=self.targets_per_source,
            max_length=self.max_length,
            seed=self.seed,
        )
