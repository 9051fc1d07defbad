"""Sentence pairs from records to batches: cutting, drawing of targets, padding, vocabularies, resuming."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from vitcap.data.images import ImageError
from vitcap.data.loader import BadRecord, BatchLoader, EpochBatches, Sample, collate
from vitcap.data.sentences import SentenceData, SentenceDataset
from vitcap.data.sequences import DigitsSource, SequenceRecord
from vitcap.data.tokenizer import Tokenizer
from vitcap.types import BOS, EOS, PAD, UNK, Batch

RECORDS = [
    SequenceRecord("a", "one two three", ("uno dos tres", "un dos tres", "uno due tre"), frozenset({(0, 0)})),
    SequenceRecord("b", "two", ("dos",)),
    SequenceRecord("c", "three three one two one", ("tres tres uno dos uno",)),
    SequenceRecord("d", "one new word", ("uno",)),
]


class Given:
    """A source of given records."""

    name = "given"

    def __init__(self, root: str | None = None, **splits: Sequence[SequenceRecord]) -> None:
        self.root, self._splits = root, splits or {"train": RECORDS[:3], "val": RECORDS[3:]}

    def splits(self) -> tuple[str, ...]:
        return tuple(self._splits)

    def split(self, name: str) -> list[SequenceRecord]:
        return list(self._splits[name])


def tokenizers() -> tuple[Tokenizer, Tokenizer]:
    sources = Tokenizer.train([r.source for r in RECORDS[:3]], kind="space", min_count=1)
    return sources, Tokenizer.train([t for r in RECORDS[:3] for t in r.targets], kind="space", min_count=1)


def dataset(records: Sequence[SequenceRecord] = RECORDS, **options: int) -> SentenceDataset:
    settings = {"targets_per_source": 1, "max_length": 20, "seed": 0, **options}
    return SentenceDataset(records, *tokenizers(), **settings)


def sample(data: SentenceDataset, index: int, epoch: int = 0) -> Sample:
    found = data[epoch, index]
    assert isinstance(found, Sample)
    return found


def test_a_source_is_plain_and_a_target_is_framed() -> None:
    data = dataset()
    source, target = tokenizers()
    found = sample(data, 2)
    assert (found.id, found.image, found.features, found.label) == ("c", None, None, None)
    assert found.source == tuple(source.encode("three three one two one"))
    assert found.captions == ((BOS, *target.encode("tres tres uno dos uno"), EOS),)
    assert sample(data, 3).source == (source.encode("one")[0], UNK, UNK)
    assert len(data) == 4


def test_what_is_longer_is_cut_on_both_sides() -> None:
    found, whole = sample(dataset(max_length=4), 2), sample(dataset(), 2)
    assert found.source is not None
    assert whole.source is not None
    assert found.source == whole.source[:4]
    assert found.captions == ((*whole.captions[0][:3], EOS),)


def test_of_several_targets_some_are_drawn_anew_in_each_epoch() -> None:
    data, target = dataset(targets_per_source=2), tokenizers()[1]
    possible = {(BOS, *target.encode(text), EOS) for text in RECORDS[0].targets}
    drawn = [sample(data, 0, epoch).captions for epoch in range(30)]
    assert all(len(set(captions)) == 2 and set(captions) <= possible for captions in drawn)
    assert set().union(*drawn) == possible
    assert drawn == [sample(dataset(targets_per_source=2), 0, epoch).captions for epoch in range(30)]
    assert drawn != [sample(dataset(targets_per_source=2, seed=1), 0, epoch).captions for epoch in range(30)]
    assert set(sample(dataset(targets_per_source=9), 0).captions) == possible


def test_a_source_of_which_nothing_is_left_is_a_bad_record() -> None:
    words = Tokenizer.train(["one two"], kind="word", min_count=1)
    data = SentenceDataset(
        [SequenceRecord("t.tsv:7", "?! ...", ("uno",))], words, words, targets_per_source=1, max_length=9, seed=0
    )
    bad = data[0, 0]
    assert isinstance(bad, BadRecord)
    assert bad.id == "t.tsv:7"
    assert bad.reason == "t.tsv:7: no token is left of the source sentence '?! ...'"


def test_collation_pads_sources_and_targets() -> None:
    samples = [
        Sample("a", source=(5, 6, 7), captions=((BOS, 4, EOS),)),
        Sample("b", source=(8,), captions=((BOS, 4, 5, 6, EOS), (BOS, EOS))),
    ]
    batch, bad = collate([*samples, BadRecord("c", "why")])
    assert batch is not None
    assert [b.id for b in bad] == ["c"]
    assert batch.ids == ("a", "b")
    assert batch.source is not None
    assert batch.captions is not None
    assert batch.source.dtype == batch.captions.dtype == torch.int64
    assert batch.source.tolist() == [[5, 6, 7], [8, PAD, PAD]]
    assert batch.captions.tolist() == [
        [[BOS, 4, EOS, PAD, PAD], [PAD] * 5],
        [[BOS, 4, 5, 6, EOS], [BOS, EOS, PAD, PAD, PAD]],
    ]
    assert batch.images is batch.features is batch.labels is None
    moved = batch.to("meta")
    assert moved.source is not None
    assert moved.source.is_meta
    pictures, _ = collate([Sample("p", image=torch.zeros(3, 2, 2, dtype=torch.uint8))])
    assert pictures is not None
    assert pictures.source is None


# the data module


def module(**options: object) -> SentenceData:
    return SentenceData(Given, **options)  # type: ignore[arg-type]


def test_each_side_has_a_vocabulary_of_its_training_sentences() -> None:
    data = module()
    assert data.source_tokenizer.encode("one two three word")[:3] != [UNK] * 3
    assert data.source_tokenizer.encode("word new") == [UNK, UNK]
    assert data.tokenizer.encode("one") == [UNK]
    assert UNK not in data.tokenizer.encode("uno dos tres un due tre")
    assert (data.spec.vocab_size, data.spec.source_vocab_size) == (4 + 6, 4 + 3)
    limited = module(train_limit=2, min_count=2)
    assert limited.source_tokenizer.encode("two three") == [4, UNK]
    assert data.references("val") == {"d": ("uno",)}
    assert module(tokenizer="bpe", vocab_size=300).tokenizer.kind == "bpe"


def test_the_root_is_handed_on_only_where_there_is_one() -> None:
    assert SentenceData(Given).source.root is None
    assert SentenceData(Given, "folder").source.root == "folder"


def digits(**options: object) -> SentenceData:
    def make() -> DigitsSource:
        return DigitsSource(min_length=1, max_length=9, train_size=230, val_size=20, test_size=5)

    return SentenceData(make, batch_size=8, eval_batch_size=6, **options)  # type: ignore[arg-type]


def test_evaluation_keeps_the_order_and_training_takes_every_sentence_once_an_epoch() -> None:
    data = digits()
    assert [i for batch in data.val_dataloader() for i in batch.ids] == [r.id for r in data.records("val")]
    wanted = {record.id: record for record in data.records("train")}
    orders = []
    for epoch in range(2):
        loader = data.train_dataloader()
        loader.batches.set_epoch(epoch)
        seen: list[int | str] = []
        for batch in loader:
            check(batch, wanted, data)
            seen += batch.ids
        assert sorted(seen) == sorted(wanted)  # type: ignore[type-var]
        orders.append(seen)
    assert orders[0] != orders[1]


def check(batch: Batch, wanted: dict[int | str, SequenceRecord], data: SentenceData) -> None:
    """Sources and targets of a batch belong together."""
    assert batch.source is not None
    assert batch.captions is not None
    for id_, source, captions in zip(batch.ids, batch.source.tolist(), batch.captions.tolist(), strict=True):
        assert data.source_tokenizer.decode(source) == wanted[id_].source
        assert data.tokenizer.decode(captions[0]) == wanted[id_].targets[0]


def test_training_batches_hold_sentences_of_similar_length() -> None:
    data = digits()
    assert list(data.lengths("train")) == [len(record.source.split()) for record in data.records("train")]

    def padding(loader: BatchLoader) -> float:
        sources = [batch.source for batch in loader]
        return float(sum(int((s == PAD).sum()) for s in sources)) / sum(s.numel() for s in sources)

    mixed = BatchLoader(data.dataset("train", True), EpochBatches(230, 8, shuffle=True))
    assert padding(data.train_dataloader()) < 0.5 * padding(mixed)


@pytest.mark.parametrize("done", [1, 13, 28])
def test_a_resumed_epoch_goes_on_at_the_next_batch(done: int) -> None:
    data = digits()
    whole = [batch.ids for batch in data.train_dataloader()]
    loader = data.train_dataloader()
    first = [batch.ids for batch, _ in zip(loader, range(done), strict=False)]
    again = digits()
    again.load_state_dict({"done": done})
    rest = [batch.ids for batch in again.train_dataloader()]
    assert first + rest == whole
    assert len(whole) == 29


def test_workers_give_the_same_batches() -> None:
    plain, workers = ([batch.source for batch in digits(num_workers=n).val_dataloader()] for n in (0, 2))
    assert all(torch.equal(a, b) for a, b in zip(plain, workers, strict=True))


def test_bad_sentences_end_the_run_or_are_left_out_and_counted() -> None:
    bad = SequenceRecord("t.tsv:7", "...", ("uno",))

    def make() -> Given:
        return Given(train=RECORDS[:3], val=[RECORDS[0], bad, RECORDS[1]])

    with pytest.raises(ImageError, match=r"t\.tsv:7: no token is left of the source sentence '\.\.\.'"):
        list(SentenceData(make, tokenizer="word").val_dataloader())
    loader = SentenceData(make, tokenizer="word", on_bad="skip").val_dataloader()
    assert [batch.ids for batch in loader] == [("a", "b")]
    assert set(loader.bad) == {"t.tsv:7"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "data.batch_size=0: a whole number of at least 1"),
        ({"eval_batch_size": 2.5}, "data.eval_batch_size=2.5: a whole number of at least 1"),
        ({"targets_per_source": 0}, "data.targets_per_source=0: a whole number of at least 1"),
        ({"max_length": 2}, "data.max_length=2: a whole number of at least 3"),
        ({"vocab_size": 4}, "data.vocab_size=4: a whole number of at least 5"),
        ({"on_bad": "ignore"}, "data.on_bad=ignore: choose error or skip"),
        ({"val_limit": 0}, "data.val_limit=0: a whole number of at least 1"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module(**options)


def test_an_unknown_tokenizer_is_named() -> None:
    with pytest.raises(ValueError, match="unknown tokenizer kind 'letters'; choose one of word, bpe, space"):
        _ = module(tokenizer="letters").spec
